"""optpipe_sim: plan, simulate and check pipeline-parallel training schedules.

from optpipe_sim import load_profile, build, simulate

profile = load_profile("experiments/profiles/zb-1.5b-p8-m24.yaml")
trace = simulate(build("zb-h1", profile, microbatches=24), profile)
print(trace.bubble_rate, trace.peak_bytes)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .lazy import PICTURES, looked_up
from .version import __version__ as __version__

if TYPE_CHECKING:
    from . import plot as plot
    from .checker.check import check as check
    from .costs.advise.advise import advise as advise
    from .costs.advise.evaluate import evaluate as evaluate
    from .costs.estimating import estimate as estimate
    from .errors import Deadlock as Deadlock
    from .errors import Infeasible as Infeasible
    from .errors import InvalidSchedule as InvalidSchedule
    from .errors import NoSolution as NoSolution
    from .errors import OptPipeError as OptPipeError
    from .errors import OutOfMemory as OutOfMemory
    from .errors import ProfileError as ProfileError
    from .errors import RuntimeFault as RuntimeFault
    from .execution import Execution as Execution
    from .execution import load_execution as load_execution
    from .names import build as build
    from .ops import Op as Op
    from .ops import OpKind as OpKind
    from .ops import Pair as Pair
    from .plot.lanes import gantt as gantt
    from .profile import CostProfile as CostProfile
    from .profile_io import load_profile as load_profile
    from .profile_io import save_profile as save_profile
    from .reasons.explain import explain as explain
    from .report.report import Report as Report
    from .schedule import Schedule as Schedule
    from .schedule.shape import Shape as Shape
    from .sim import simulate as simulate
    from .solvers.frontier import frontier as frontier
    from .solvers.result import SolveResult as SolveResult
    from .solvers.solve import solve as solve
    from .stage_cost import RecomputeLevel as RecomputeLevel
    from .stage_cost import StageCost as StageCost
    from .study.compare import compare as compare
    from .trace import Trace as Trace

# Names are looked up on first use, so that importing the package costs next to nothing.
_HOME = {
    "advise": ".costs.advise.advise",
    "build": ".names",
    "check": ".checker.check",
    "compare": ".study.compare",
    "estimate": ".costs.estimating",
    "evaluate": ".costs.advise.evaluate",
    "explain": ".reasons.explain",
    "frontier": ".solvers.frontier",
    "gantt": ".plot.lanes",
    "load_execution": ".execution",
    "load_profile": ".profile_io",
    "save_profile": ".profile_io",
    "simulate": ".sim",
    "solve": ".solvers.solve",
    "CostProfile": ".profile",
    "Deadlock": ".errors",
    "Execution": ".execution",
    "Infeasible": ".errors",
    "InvalidSchedule": ".errors",
    "NoSolution": ".errors",
    "Op": ".ops",
    "OpKind": ".ops",
    "OptPipeError": ".errors",
    "OutOfMemory": ".errors",
    "Pair": ".ops",
    "ProfileError": ".errors",
    "RecomputeLevel": ".stage_cost",
    "Report": ".report.report",
    "RuntimeFault": ".errors",
    "Schedule": ".schedule",
    "Shape": ".schedule.shape",
    "SolveResult": ".solvers.result",
    "StageCost": ".stage_cost",
    "Trace": ".trace",
}
PICTURES.update(overview=f"{__name__}.plot.picture", frontier_chart=f"{__name__}.plot.frontier")
__all__ = sorted([*_HOME, "plot"])
_found = looked_up(__name__, _HOME)


def __getattr__(name: str) -> Any:
    return import_module(".plot", __name__) if name == "plot" else _found(name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
