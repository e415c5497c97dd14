"""Costs: from a model and a machine to a profile.

`estimate(model, machine, devices, ...)` is the entry point; `load_model` and `load_machine` take a name or
a file. Everything is plain arithmetic over the shapes of a layer, so that one estimate takes
milliseconds.
"""

from __future__ import annotations

from .estimate import estimate
from .machine_files import load_machine, machine_names
from .model_files import load_model, model_names

__all__ = ["estimate", "load_machine", "load_model", "machine_names", "model_names"]
