"""optpipe_sim: plan, simulate and check pipeline-parallel training schedules.

from optpipe_sim import load_profile, build, simulate

profile = load_profile("experiments/profiles/zb-1.5b-p8-m24.yaml")
trace = simulate(build("zb-h1", profile, microbatches=24), profile)
print(trace.bubble_rate, trace.peak_bytes)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analyse.check import check as check
    from .names import build as build
    from .ops import Op as Op
    from .ops import OpKind as OpKind
    from .profile import CostProfile as CostProfile
    from .profile_io import load_profile as load_profile
    from .profile_io import save_profile as save_profile
    from .schedule import Schedule as Schedule
    from .schedule import Shape as Shape
    from .sim import simulate as simulate
    from .solve import SolveResult as SolveResult
    from .solve import solve as solve
    from .trace import Trace as Trace

__version__ = "0.1.0"

# Names are looked up on first use, so that importing the package costs next to nothing.
_HOME = {
    "check": ".analyse.check",
    "Op": ".ops",
    "OpKind": ".ops",
    "CostProfile": ".profile",
    "load_profile": ".profile_io",
    "save_profile": ".profile_io",
    "Schedule": ".schedule",
    "Shape": ".schedule",
    "build": ".names",
    "simulate": ".sim",
    "solve": ".solve",
    "SolveResult": ".solve",
    "Trace": ".trace",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
