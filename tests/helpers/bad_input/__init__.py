"""Three hundred kinds of bad input, each with a part of the one line that refuses it."""

from __future__ import annotations

from .cases import ALWAYS, GOOD, STAGE, Row
from .command_lines import lines
from .files import experiments, machines, measurements, models, schedules
from .imports import imports
from .profiles import profiles
from .texts import texts

__all__ = ["ALWAYS", "GOOD", "ROWS", "STAGE", "Row"]

ROWS: list[Row] = [
    *lines(),
    *profiles(),
    *texts(),
    *schedules(),
    *models(),
    *machines(),
    *experiments(),
    *measurements(),
    *imports(),
]
