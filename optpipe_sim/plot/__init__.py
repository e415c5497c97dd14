"""Figures, a module each: of a trace (``gantt``, ``memory``, ``overview``, ``idle``, ``text``), of
schedules side by side (``compare``), of memory against time (``frontier``), of advice (``advise``).

``trace.plot()`` is the shortest way to one.
"""

from importlib import import_module
from types import ModuleType

# Looked up on first use: matplotlib comes with the first figure and not before.
__all__ = ["advise", "compare", "frontier", "gantt", "idle", "memory", "overview", "text"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return __all__
