"""The best schedule under a memory limit, and proof of how far from the best it can be."""

from .auto import ENGINES as ENGINES
from .auto import solve as solve
