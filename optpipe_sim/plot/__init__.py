"""Figures: of a trace (``gantt``, ``memory``, ``overview``, ``idle_gantt``, ``text_gantt``), of
schedules side by side (``compare_chart``), of memory against time (``frontier_chart``), of advice
(``advice_chart``), of what a solution has to idle for (``solution_chart``), of a run beside its
prediction (``confirm_figure``), of a pair on its two streams (``pair_chart``); and ``slider``, for
notebooks.

``trace.plot()`` is the shortest way to one. No module of this room has the name of its function, because one would
hide the other.
"""

from typing import TYPE_CHECKING

from ..lazy import looked_up

if TYPE_CHECKING:
    from .advise import advice_chart as advice_chart
    from .compare import compare_chart as compare_chart
    from .confirm import confirm_figure as confirm_figure
    from .frontier import frontier_chart as frontier_chart
    from .held import memory as memory
    from .idle import idle_gantt as idle_gantt
    from .interactive import slider as slider
    from .lanes import gantt as gantt
    from .pair import pair_chart as pair_chart
    from .picture import overview as overview
    from .solution import solution_chart as solution_chart
    from .text import text_gantt as text_gantt

# Looked up on first use: matplotlib is imported with the first figure.
_HOME = {
    "advice_chart": ".advise",
    "compare_chart": ".compare",
    "confirm_figure": ".confirm",
    "frontier_chart": ".frontier",
    "gantt": ".lanes",
    "idle_gantt": ".idle",
    "memory": ".held",
    "overview": ".picture",
    "pair_chart": ".pair",
    "slider": ".interactive",
    "solution_chart": ".solution",
    "text_gantt": ".text",
}
__all__ = sorted(_HOME)


__getattr__ = looked_up(__name__, _HOME)


def __dir__() -> list[str]:
    return __all__
