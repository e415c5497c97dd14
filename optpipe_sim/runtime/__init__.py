"""Schedules on real devices: the stages of a model in torch, one linear program per rank, measured.

torch is imported nowhere else in the project; beside users only the command line imports this package.

    from optpipe_sim.runtime import PipelineStep, profile_modules

To see how a plan runs, read `program/program.py` (what each rank does), `execute/rank_step.py` (what
each step of it does), `execute/threads.py` or `streams.py` (when), and `model/stage.py` (the ops
themselves).
"""

from typing import TYPE_CHECKING

from ..lazy import looked_up

if TYPE_CHECKING:
    from .checkpoint import load_pipeline as load_pipeline
    from .checkpoint import save_pipeline as save_pipeline
    from .model.recompute import checkpoint as checkpoint
    from .model.recompute import mark_layers as mark_layers
    from .model.recompute import part as part
    from .model.sliced import first_token as first_token
    from .model.sliced import with_earlier as with_earlier
    from .modules.profile import profile_modules as profile_modules
    from .modules.step import PipelineStep as PipelineStep
    from .pipelining.schedule import schedule_class as schedule_class

# looked up on first use: torch takes a second or two
_HOME = {
    "PipelineStep": ".modules.step",
    "checkpoint": ".model.recompute",
    "first_token": ".model.sliced",
    "load_pipeline": ".checkpoint",
    "mark_layers": ".model.recompute",
    "part": ".model.recompute",
    "profile_modules": ".modules.profile",
    "schedule_class": ".pipelining.schedule",
    "save_pipeline": ".checkpoint",
    "with_earlier": ".model.sliced",
}
__all__ = sorted(_HOME)
__getattr__ = looked_up(__name__, _HOME)
