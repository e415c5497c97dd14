"""The string of ``--pipeline-model-parallel-layout``: the contents of each stage, in model order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from ...costs.layout import MARK
from ..parts import Part


def layout_string(parts: Sequence[Part]) -> str:
    """Format the layout of `parts`: E for the embedding, t for a decoder layer, m for one that
    predicts further tokens, L for the loss, a bar between stages; repetitions are abbreviated, as
    in ``Et*3|(tt|)*6tL``.

    Megatron-LM places stage s on rank s mod p, as its chunk s div p. It first expands parentheses,
    then single characters (megatron/core/transformer/pipeline_parallel_layer_layout.py, commit
    d98e8a6).
    """
    *front, last = [_stage(part) for part in parts]
    text = ""
    for stage, run in groupby(front):
        count = len(list(run))
        text += f"({stage}|)*{count}" if count > 1 else f"{stage}|"
    return text + last


def layers_in(layout: str) -> list[int | str]:
    """Return the decoder layers of each stage in a layout string, as `estimate` takes them: with an m
    behind the number where those that predict further tokens are, if not on the stage of the loss."""
    text = layout.strip("'\"").replace(",", "")
    text = re.sub(r"\(([^)]*)\)\*(\d+)", lambda found: found[1] * int(found[2]), text)
    text = re.sub(r"(.)\*(\d+)", lambda found: found[1] * int(found[2]), text)
    return [
        f"{stage.count('t')}{MARK}" if "m" in stage and "L" not in stage else stage.count("t")
        for stage in text.split("|")
    ]


def _stage(part: Part) -> str:
    layers = "t" * part.layers if part.layers < 3 else f"t*{part.layers}"
    return "E" * part.embedding + layers + "m" * part.mtp + "L" * part.loss
