"""Commented files to start from: a machine, a model, measurements."""

from __future__ import annotations

from importlib.resources import files

KINDS = ("machine", "model", "calibration")


def template(kind: str) -> str:
    """The text of a commented YAML file of that kind, which loads as it is."""
    return (files("optpipe_sim.costs") / "data" / "templates" / f"{kind}.yaml").read_text()
