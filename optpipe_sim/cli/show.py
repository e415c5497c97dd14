"""How results look on a terminal, in a pipe (no colours, nothing cut off), and as JSON."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from ..trace import CAUSES, Trace
from ..units import counted, format_size, format_time

if TYPE_CHECKING:
    from ..profile import CostProfile
    from ..study.compare import Comparison

Progress = Callable[[str, int, int], None]

# Okabe and Ito's colours, which people with any kind of colour vision tell apart.
CAUSE_STYLES = {
    "fill": "black on #56b4e9",
    "neighbour": "black on #e69f00",
    "communication": "black on #009e73",
    "reload": "black on #f0e442",
    "memory": "black on #cc79a7",
    "drain": "white on #0072b2",
}
MEANINGS = {
    "fill": "before the first op",
    "neighbour": "for a neighbour's op",
    "communication": "for a message",
    "reload": "for a reload",
    "memory": "for memory",
    "drain": "after the last op",
}
PIPE_WIDTH = 1000  # without a terminal nothing has to be cut or wrapped


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Out:
    """Where a command's answer goes: JSON, or text with or without the extras."""

    def __init__(self, json: bool = False, quiet: bool = False) -> None:
        self.json, self.quiet = json, quiet
        piped = None if sys.stdout.isatty() else PIPE_WIDTH
        self.console = _Console(width=piped, highlight=False, soft_wrap=False)

    def result(self, data: Mapping[str, Any]) -> None:
        """The JSON object, where it is asked for."""
        if self.json:
            print(json.dumps(data, allow_nan=False))

    def print(self, *parts: Any, **options: Any) -> None:
        """Text for people."""
        if not self.json:
            self.console.print(*parts, **options)

    def wait(self, text: str) -> None:
        """What takes a while, for people who did not ask for quiet; on stderr, as progress is."""
        if not self.json and not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def hint(self, *parts: Any, **options: Any) -> None:
        """Text for people who did not ask for quiet."""
        if not self.quiet:
            self.print(*parts, **options)

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """A bar on stderr while something takes long; nothing where nobody watches."""
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


def simulated(
    out: Out, arguments: argparse.Namespace, trace: Trace, reason: str | None, files: dict[str, str]
) -> None:
    """One schedule's measures."""
    profile, shape = trace.profile, trace.schedule.shape
    out.print(Text(arguments.schedule, "bold"), "on", headline(profile, shape.microbatches))
    out.print()
    span = "" if trace.objective == "flush" else f"; longest device {format_time(trace.cost_ns)}"
    line(out, "time per iteration", Text(f"{format_time(trace.makespan_ns)}{span}", "bold"))
    bubble, flush = f"{trace.bubble_rate:.1%}", f"{trace.bubble_rate_flush:.1%}"
    more = "" if bubble == flush else f" of the longest device span, {flush} of the iteration"
    line(out, "bubble", f"{bubble}{more}")
    total = trace.makespan_ns * shape.devices
    shares = sorted(
        ((ns / total, cause) for cause, ns in trace.idle_ns.items() if ns), reverse=True
    )
    parts = ", ".join(f"{cause} {share:.1%}" for share, cause in shares)
    line(out, "idle", f"{sum(share for share, _ in shares):.1%} of device time: {parts or 'none'}")
    line(out, "peak memory", peak_text(trace))
    if trace.offloaded:
        activations = shape.stages * shape.microbatches
        line(
            out,
            "offloaded",
            f"{trace.offloaded} of {activations} activations; host memory peaks at"
            f" {format_size(trace.host_peak_bytes)}",
        )
    if reason is not None:
        line(out, "fits", Text("✗ no; the figures are those without the limit", "bold red"))
        line(out, "", Text(reason))
    elif trace.memory_limit is not None:
        line(out, "fits", Text("✓ yes", "green"))
    written(out, files)
    if not arguments.gantt:
        hint(out, "draw it with --gantt gantt.png, or look into it with --trace trace.json")


def compared(
    out: Out,
    arguments: argparse.Namespace,
    profile: CostProfile,
    result: Comparison,
    files: dict[str, str],
) -> None:
    """The table of `compare`, and what to read from it."""
    from .table import legend, table

    out.print(Text("Schedules", "bold"), "on", headline(profile, arguments.microbatches))
    out.print()
    out.print(table(result, out.console))
    out.print(legend(result))
    out.print()
    _verdict(out, result)
    for name, reason in result.refused.items():
        out.print(
            Text(f"not run: {name}: {reason.removeprefix(f'{name}: ')}", "dim"), soft_wrap=True
        )
    written(out, files)
    program, where = _program(), shlex.quote(arguments.profile)
    limit = (
        ""
        if arguments.memory_limit is None
        else f" --memory-limit {size_text(arguments.memory_limit)}"
    )
    saved = arguments.save
    if not saved:
        saved = "best.json"
        made = f"--schedule {result.rows[0].schedule} -m {arguments.microbatches}{limit}"
        hint(out, f"{program} simulate {where} {made} --save {saved}", code=True)
    hint(out, f"{program} explain {shlex.quote(saved)} {where}{limit}", code=True)
    hint(out, "another --memory-limit, or schedules with options: --schedules gis:group=6,zb-v")


def checked(
    out: Out, arguments: argparse.Namespace, profile: CostProfile, problems: list[str]
) -> None:
    """Valid, or every problem."""
    if not problems:
        limit = "" if profile.memory_limit is None else f" under {limit_text(profile)}"
        out.print(Text(f"✓ {arguments.schedule} is valid on {profile.name}{limit}", "green"))
    for problem in problems:
        out.print(Text(f"✗ {problem}"), soft_wrap=True)


def explained(out: Out, text: str, reason: str | None) -> None:
    """The sentences; and that the schedule does not fit, where it does not."""
    if reason is not None:
        out.print(
            Text(f"✗ does not fit; the times below are without the limit: {reason}", "red"),
            soft_wrap=True,
        )
        out.print()
    out.print(Text(text.rstrip("\n")), soft_wrap=True)


def exported(out: Out, kind: str, path: str) -> None:
    """Where the file is."""
    what = {
        "torch-csv": "compute orders for torch, where our B is I",
        "perfetto": "trace; open it at https://ui.perfetto.dev",
    }
    written(out, {path: what[kind]})


def versions(out: Out, found: Mapping[str, str | None]) -> None:
    """One line per package."""
    for name, version in found.items():
        out.print(f"{name:<12} {version or 'not installed'}")


# -- pieces ---------------------------------------------------------------------------------------


def headline(profile: CostProfile, microbatches: int) -> Text:
    parts = [f"{profile.name}: {counted(profile.devices, 'device')}"]
    parts.append(counted(microbatches, "microbatch", "microbatches"))
    parts.append(f"limit {limit_text(profile)}" if profile.memory_limit else "no memory limit")
    return Text(", ".join(parts))


def limit_text(profile: CostProfile) -> str:
    limits = sorted(set(profile.memory_limit or ()))
    if len(limits) == 1:
        return f"{format_size(limits[0])} per device"
    return f"{format_size(limits[0])} to {format_size(limits[-1])} per device"


def _program() -> str:
    """How to call this program again: by name where the PATH has it, else as it was called."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return "python -m optpipe_sim"
    return str(called) if shutil.which(called.name) is None else called.name


def size_text(size: int) -> str:
    """Bytes as the command line takes them, exact: ``40GiB``."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def line(out: Out, name: str, value: str | Text) -> None:
    text = Text(f"  {name:<19} ")
    out.print(text.append(value), soft_wrap=True)


def peak_text(trace: Trace) -> str:
    peaks, limits = trace.peak_bytes, trace.memory_limit
    top = max(range(len(peaks)), key=lambda device: peaks[device])
    low = min(range(len(peaks)), key=lambda device: peaks[device])
    text = f"{format_size(peaks[top])} on device {top}"
    if limits:
        text += f" ({percent(peaks[top] / max(limits[top], 1))} of its limit)"
    if peaks[low] != peaks[top]:
        text += f", least {format_size(peaks[low])} on device {low}"
    return text


def _verdict(out: Out, result: Comparison) -> None:
    """What to read from the table."""
    best = result.rows[0]
    time = format_time(best.trace.cost_ns)
    if best.trace.fits:
        text = Text("Fastest that fits: " if best.trace.memory_limit else "Fastest: ")
        text.append(best.schedule, "bold")
        text.append(
            f", {time} per iteration, {best.speedup:.2f}× 1F1B, at most {best.gap:.1%} above the best"
            " possible with its chunks."
        )
    else:
        text = Text("Nothing fits. ", "bold red")
        same = len({row.reason for row in result.rows}) == 1
        text.append(f"{'' if same else f'{best.schedule}: '}{best.reason}", "default")
    out.print(text, soft_wrap=not sys.stdout.isatty())
    if best.trace.fits and any(not row.trace.fits for row in result.rows):
        note = "✗: does not fit; its figures are those without the limit"
        if not result.baseline.fits:
            note += ", and so are those of the 1F1B that speeds are over"
        out.print(Text(note, "dim"))


def failed(out: Out, failures: Mapping[str, str]) -> None:
    """What went wrong in a search that has an answer nevertheless."""
    for engine, reason in failures.items():
        if engine != "save":  # the command ends with it
            line(out, "failed", Text(f"{engine}: {reason}", "yellow"))


def written(out: Out, files: Mapping[str, str]) -> None:
    for path, what in files.items():
        out.hint(Text("wrote ").append(str(path), "bold").append(f"  {what}"), soft_wrap=True)


def hint(out: Out, text: str, code: bool = False) -> None:
    out.hint(Text("next: ", "dim").append(text, "cyan" if code else "default"), soft_wrap=True)


def percent(share: float) -> str:
    """A share for people: ``97%``, and no more digits than they would read."""
    return f"{share:.0%}" if share < 10 else ">999%"


def idle_shares(trace: Trace) -> dict[str, float]:
    """Idle time by cause as a share of all device time."""
    total = trace.makespan_ns * trace.schedule.shape.devices
    idle = trace.idle_ns
    return {cause: idle[cause] / total for cause in CAUSES}
