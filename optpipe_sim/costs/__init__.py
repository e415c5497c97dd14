"""Costs: from a model and a machine to a profile.

`estimate(model, machine, devices, ...)` is the entry point; `load_model` and `load_machine` take a name or
a file. Everything is plain arithmetic over the shapes of a layer, so that one estimate takes
milliseconds. Names are looked up on first use: the command line has its options from `layout` and `work` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import looked_up

if TYPE_CHECKING:
    from .estimating import estimate as estimate
    from .machine_files import load_machine as load_machine
    from .machine_files import machine_names as machine_names
    from .model_files import load_model as load_model
    from .model_files import model_names as model_names

_HOME = {
    "estimate": ".estimating",
    "load_machine": ".machine_files",
    "load_model": ".model_files",
    "machine_names": ".machine_files",
    "model_names": ".model_files",
}
__all__ = sorted(_HOME)
__getattr__ = looked_up(__name__, _HOME)
