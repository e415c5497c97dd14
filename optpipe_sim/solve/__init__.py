"""The best schedule under a memory limit, and proof of how far from the best it can be."""

import sys
from types import ModuleType
from typing import Any

from .auto import ENGINES as ENGINES
from .auto import solve as solve
from .result import SolveResult as SolveResult


class _Package(ModuleType):
    """``optpipe_sim.solve`` is this package, once it is imported; and users call it."""

    def __call__(self, *arguments: Any, **options: Any) -> SolveResult:
        return solve(*arguments, **options)


sys.modules[__name__].__class__ = _Package
