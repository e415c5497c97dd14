"""What `solve` shows and logs while it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ...errors import OptPipeError
from ...files import write_text
from ...units import format_time
from .files import rewritable

if TYPE_CHECKING:
    from ...solvers.race.race import Race
    from .show import Out

Watch = Callable[["Race"], None]


@contextmanager
def watching(out: Out, title: str, seconds: float) -> Iterator[Watch]:
    """Show a solver's progress in a line on stderr; nothing if stderr is not a terminal.

    No thread updates it, since engines are started as copies of this process.
    """
    if out.json or out.quiet or not sys.stderr.isatty():
        yield lambda race: None
        return
    view = _View(title, seconds)
    console = Console(stderr=True)
    with Live(view, console=console, transient=True, auto_refresh=False) as live:

        def watch(race: Race) -> None:
            view.race = race
            live.refresh()

        yield watch


class _View:
    """The line, rendered at each refresh."""

    def __init__(self, title: str, seconds: float) -> None:
        self.title, self.seconds = title, seconds
        self.spinner = Spinner("dots")
        self.race: Race | None = None

    def __rich__(self) -> Table:
        grid = Table.grid(padding=(0, 2, 0, 0))
        cells: list[Spinner | Text] = [self.spinner, Text(self.title, "bold")]
        if self.race is not None:
            cells += _state_text(self.race, self.seconds)
        grid.add_row(*cells)
        return grid


def _state_text(race: Race, seconds: float) -> list[Spinner | Text]:
    cells: list[Spinner | Text] = [Text(f"{race.seconds:.0f} of {seconds:.0f} s", "dim")]
    if race.best is not None:
        best = Text("best ", "dim").append(format_time(race.cost_ns), "bold green")
        cells.append(best.append(f" {race.engine}", "dim"))
    if race.bound_ns:
        bound = Text("bound ", "dim").append(format_time(race.bound_ns), "cyan")
        cells.append(bound.append(f" {race.bound_name}", "dim"))
    if race.best is not None and race.bound_ns:
        gap = (race.cost_ns - race.bound_ns) / race.bound_ns
        cells.append(Text("gap ", "dim").append(f"{gap:.2%}", "bold"))
    return cells


class Log:
    """A CSV of seconds, objective and bound, a row per improvement; the file is whole at all times.

    A device or a pipe, which cannot be rewritten, gets its rows at the end, from `write`.

    Attributes:
        error: why the last write failed, as when a disk is full; the rows are kept.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.rows = ["seconds,objective_ns,lower_bound_ns"]
        self.last = ("", "")
        self.error: OptPipeError | None = None
        self.rewritable = rewritable(path) is not None
        if self.rewritable:
            write_text(self.path, f"{self.rows[0]}\n")

    def __call__(self, race: Race) -> None:
        now = ("" if race.best is None else str(race.cost_ns), str(race.bound_ns))
        if now != self.last:
            self.last = now
            self.rows.append(f"{race.seconds:.3f},{now[0]},{now[1]}")
            if self.rewritable:
                self.write()

    def write(self) -> None:
        """Write the rows so far; an error does not end the search."""
        try:
            write_text(self.path, "\n".join(self.rows) + "\n")
            self.error = None
        except OptPipeError as error:
            self.error = error
