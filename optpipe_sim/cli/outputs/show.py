"""The destination of answers (a terminal, a pipe without colours, JSON), and their parts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...trace import CAUSES, Trace
from ...trace.boxes import CAUSE_COLOURS
from ...units import counted, format_size, format_time
from ..status import SCHEMA

if TYPE_CHECKING:
    from ...profile import CostProfile
    from ...reasons.hints import Hint

Progress = Callable[[str, int, int], None]

CAUSE_STYLES = {
    cause: f"{'white' if cause == 'drain' else 'black'} on {colour}"
    for cause, colour in CAUSE_COLOURS.items()
}
COMPILING = "compiling the engines for this machine, this once: some 20 s on two cores ..."
PIPE_WIDTH = 1000  # without a terminal nothing needs to be cut or wrapped


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


Cells = Mapping[str, object]  # of a row: what stands under which header


def plain_table(
    rows: Iterable[Cells],
    heads: Sequence[str] = (),
    left: Collection[str] = (),
    middle: Collection[str] = (),
    gap: int = 2,
    styles: Sequence[str] = (),
) -> Table:
    """Return a table with only a line below its headers.

    Args:
        heads: its columns; by default those of the first row.
        left: columns of text (default: the first). `middle`: of marks. Others are right-aligned, as numbers.
        gap: spaces between columns. `styles`: of the rows.
    """
    rows = list(rows)
    heads = heads or list(rows[0] if rows else ())
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, gap, 0, 0))
    for head in heads:
        other = "center" if head in middle else "right"
        justify: Any = "left" if head in (left or heads[:1]) else other
        table.add_column(head, justify=justify, no_wrap=True)
    for row, style in zip_longest(rows, styles):
        cells = (row.get(head, "") for head in heads)
        table.add_row(*(one if isinstance(one, Text) else str(one) for one in cells), style=style)
    return table


class Out:
    """The destination of a command's answer: JSON, or text with or without hints.

    Args:
        aside: text goes to stderr, as a file of the command goes to stdout.
    """

    def __init__(self, json: bool = False, quiet: bool = False, aside: bool = False) -> None:
        self.json, self.quiet, self.answered = json, quiet, False
        piped = None if (sys.stderr if aside else sys.stdout).isatty() else PIPE_WIDTH
        self.console = _Console(width=piped, highlight=False, soft_wrap=False, stderr=aside)

    def result(self, data: Mapping[str, Any]) -> None:
        """Print the JSON object, with the version of its keys, if ``--json`` is given."""
        if self.json:
            print(json.dumps({"schema": SCHEMA, **data}, allow_nan=False))
            self.answered = True

    def print(self, *parts: str | Text | Table, style: str = "") -> None:
        """Print text for people, whose lines break at words where a terminal is narrow."""
        self._print(parts, style, soft_wrap=False)

    def text(self, *parts: str | Text, style: str = "") -> None:
        """Print a line that is never broken, so that what is copied from it is whole."""
        self._print(parts, style, soft_wrap=True)

    def _print(self, parts: Iterable[str | Text | Table], style: str, soft_wrap: bool) -> None:
        # a text of its own: brackets in names are no markup
        shown = (Text(part) if isinstance(part, str) else part for part in parts)
        if not self.json:
            self.console.print(*shown, style=style, soft_wrap=soft_wrap)

    def line(self, name: str, value: str | Text) -> None:
        """Print a fact and its name."""
        self.text(Text(f"  {name:<19} ").append(value))

    def labelled(self, label: str, text: str) -> None:
        """Print a dimmed label and its text."""
        self.text(Text(f"{label}: ", "dim").append(text, "default"))

    def table(self, rows: Iterable[Cells], *heads: Any, **looks: Any) -> None:
        """Print a table; see `plain_table`."""
        self.print(plain_table(rows, *heads, **looks))

    def hint(self, *parts: str | Text, style: str = "") -> None:
        """Print a line that is never broken, unless ``--quiet`` is given."""
        if not self.quiet:
            self.text(*parts, style=style)

    def next(self, text: str, code: bool = False) -> None:
        """Print what to do next; `code`: it is a command of this program, as it is called here."""
        said = Text("next: ", "dim")
        said.append(f"{program()} {text}" if code else text, "cyan" if code else "default")
        self.hint(said)

    def written(self, files: Mapping[str, str]) -> None:
        """Print which files were written, and what they are."""
        for path, what in files.items():
            self.hint(Text("wrote ").append(path, "bold").append(f"  {what}"))

    def compiling(self) -> None:
        """Announce that the engines of the search are compiled first."""
        self.wait(COMPILING)

    def wait(self, text: str) -> None:
        """Announce something slow on stderr, as progress does, unless ``--quiet`` is given."""
        if not self.json and not self.quiet:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """Show a progress bar on stderr; nothing if stderr is not a terminal."""
        if self.json or self.quiet or not sys.stderr.isatty():
            yield lambda name, done, total: None
            return
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn(title), BarColumn(bar_width=24), TextColumn("{task.description}"))
        # no thread of its own: solvers start their engines as copies of this process
        console = Console(stderr=True)
        with Bar(*columns, console=console, transient=True, auto_refresh=False) as bar:
            task = bar.add_task("")
            yield lambda name, done, total: bar.update(
                task, description=name, completed=done, total=total, refresh=True
            )


def environment(out: Out, variables: Mapping[str, str]) -> None:
    """Print the environment variables without which the options to paste do not start, or run otherwise."""
    if variables:
        told = " ".join(f"{name}={value}" for name, value in variables.items())
        out.line("environment", f"{told}: to be set for every rank, before the options below")


def headline(profile: CostProfile, microbatches: int) -> Text:
    parts = [f"{profile.name}: {counted(profile.devices, 'device')}"]
    parts.append(counted(microbatches, "microbatch", "microbatches"))
    if profile.slices > 1:
        parts.append(f"{profile.slices} slices each")
    parts.append(f"limit {limit_text(profile)}" if profile.memory_limit else "no memory limit")
    return Text(", ".join(parts))


def limit_text(profile: CostProfile) -> str:
    limits = sorted(set(profile.memory_limit or ()))
    if len(limits) == 1:
        return f"{format_size(limits[0])} per device"
    return f"{format_size(limits[0])} to {format_size(limits[-1])} per device"


def show_hints(out: Out, hints: Sequence[Hint]) -> None:
    """Print what would make the configuration faster, as replayed."""
    for at, hint in enumerate(hints):
        out.labelled("faster, one change each" if at == 0 else "  or", str(hint))


def compiled(out: Out, seconds: float) -> None:
    """Say what compiling took, beside the time limit; nothing where nothing was compiled."""
    if seconds > 0:
        out.hint(f"compiling took {seconds:.0f} s, once; not counted", style="dim")


def program() -> str:
    """Return the command for this program: its name if that is on the PATH, else as it was called."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return "python -m optpipe_sim"
    return str(called) if shutil.which(called.name) is None else called.name


def warn(out: Out, profile: CostProfile) -> None:
    """Print the warnings of an estimated profile."""
    for text in profile.meta.get("warnings", ()):
        out.text(f"warning: {text}", style="yellow")
    _show_imbalance(out, profile)
    _show_stash(out, profile)


def _show_imbalance(out: Out, profile: CostProfile) -> None:
    """Say how unevenly experts are taken to be loaded, if they are, and what that leaves open."""
    found = profile.meta.get("imbalance")
    if not found:
        return
    text = f"the most loaded GPU's experts get {found['usual']:.3g} times the mean of tokens"
    text = "experts are loaded evenly" if found["high"] == 1 else text
    if "time" in found:
        (least, most), (fewer, more) = found["time"], found["act"]
        text += (
            f" ({found['low']:.3g} to {found['high']:.3g}: {least - 1:+.0%} to {most - 1:+.0%} of the work,"
            f" {fewer - 1:+.0%} to {more - 1:+.0%} of the activations)"
        )
    if found.get("capacity"):
        dropped = "are computed, padded" if found["padded"] else "at most are computed"
        text += f"; {found['capacity']:g} times the mean of an expert {dropped}, others dropped"
    out.text(text)


def _show_stash(out: Out, profile: CostProfile) -> None:
    """Say what a paged stash saves, if there is one."""
    found = profile.meta.get("paged_stash")
    if found:
        work = profile.meta["work"]
        out.text(
            f"paged stash: experts keep {work['paged_stash']:g} times the mean of tokens for their backward, not"
            f" {work['expert_rank_capacity']:g}: {format_size(found['saved_bytes'])} less per microbatch in flight on stage"
            f" {found['stage']}, for {format_size(found['buffer_bytes'])} of buffers per device"
        )


def spread(out: Out, profile: CostProfile, shown: Iterable[Trace]) -> None:
    """Print by what measured times may differ from those shown; nothing where that is not known."""
    text = profile.spread_text(any(trace.offloaded for trace in shown), "these")
    if text:
        out.text(f"times: measured ones are {text}", style="dim")


def issued(out: Out, profile: CostProfile) -> None:
    """Print the execution under which times are predicted."""
    name = profile.execution_notes["name"]
    text = (
        "ideally" if name == "ideal" else f"as by {name}; --execution ideal: without what it adds"
    )
    out.labelled("issued", text)


def times(out: Out, trace: Trace, more: Text | None = None) -> None:
    """Print the time of an iteration, the pipeline's part of it where there is more, and the idle time of that."""
    span = "" if trace.objective == "flush" else " of the longest device"
    all_of_it = trace.iteration_ns == trace.cost_ns
    whole = f"{format_time(trace.iteration_ns)}{span if all_of_it else ''}"
    whole = ", ".join(filter(None, (whole, trace.expected_text)))
    out.line("time per iteration", Text(whole, "bold").append(more or Text()))
    if not all_of_it:
        rest = f"{format_time(trace.cost_ns)}{span}; the rest: gradients, update, between ops"
        out.line("pipeline time", rest)
    text = f"{trace.bubble:.1%}"
    if trace.imbalance >= 0.0005:
        text += f", and {trace.imbalance:.1%} imbalance: devices with less work than the busiest"
    out.line("bubble", text)
    if trace.tokens_per_s is not None:
        each = (
            "" if trace.flops_per_s is None else f", {trace.flops_per_s / 1e12:.0f} TFLOP/s per GPU"
        )
        out.line("throughput", f"{trace.tokens_per_s:,.0f} tokens/s over all replicas{each}")


def memory(out: Out, trace: Trace) -> None:
    """Print the peak of the fullest device and, where it is known, what that is made of."""
    out.line("peak memory", peak_text(trace))
    fullest = fullest_text(trace)
    if fullest is not None:
        device, text = fullest
        out.line(f"  of device {device}", text)


def order(out: Out, trace: Trace, waits: bool = True) -> None:
    """Print the order of microbatches that differ, and what it is worth; `waits`: whether ops wait for memory."""
    from ...solvers.microbatch_order import ordered

    found = ordered(trace, waits)
    if found is not None:
        out.line("microbatches", found.text)


def offloaded(out: Out, trace: Trace) -> None:
    """Print how many activations are offloaded, what the host holds of them, and what that costs its drives."""
    shape = trace.schedule.shape
    text = f"{trace.offloaded} of {shape.activations} activations"
    if trace.offloaded:
        text += f"; host memory peaks at {format_size(trace.host_peak_bytes)}"
    out.line("offloaded", text)
    if trace.offloaded and trace.wear is not None:
        out.line("NVMe", str(trace.wear))


def bound_text(bound_ns: int | float, trace: Trace) -> str:
    """Return a lower bound, which is one of the pipeline where an iteration takes more than that."""
    beside = trace.iteration_ns != trace.cost_ns
    return f"{format_time(bound_ns)}{' in the pipeline' if beside else ''}"


def fullest_text(trace: Trace) -> tuple[int, str] | None:
    """Return the fullest device and what its peak is made of; None where that is not known."""
    parts = trace.memory_parts
    if parts is None:
        return None
    top = max(range(len(parts)), key=lambda device: trace.peak_bytes[device])
    return top, ", ".join(f"{name} {format_size(size)}" for name, size in parts[top].items())


def peak_text(trace: Trace) -> str:
    if trace.profile.memory_unknown:
        return f"not known: {trace.profile.memory_unknown}"
    peaks, limits = trace.peak_bytes, trace.memory_limit
    top = max(range(len(peaks)), key=lambda device: peaks[device])
    low = min(range(len(peaks)), key=lambda device: peaks[device])
    text = f"{format_size(peaks[top])} on device {top}"
    if limits:
        text += f" ({percent(peaks[top] / max(limits[top], 1))} of its limit)"
    if peaks[low] != peaks[top]:
        text += f", least {format_size(peaks[low])} on device {low}"
    return text


def failed(out: Out, failures: Mapping[str, str]) -> None:
    """Report the failures of a search that has an answer nevertheless."""
    for engine, reason in failures.items():
        if engine != "save":  # the command ends with it
            out.line("failed", Text(f"{engine}: {reason}", "yellow"))


def percent(share: float) -> str:
    """Format a share for people: ``97%``, with few digits."""
    return f"{share:.0%}" if share < 10 else ">999%"


def idle_shares(trace: Trace) -> dict[str, float]:
    """Return idle time by cause as a share of all device time."""
    total = trace.makespan_ns * trace.schedule.shape.devices
    idle = trace.idle_ns
    return {cause: idle[cause] / total for cause in CAUSES}
