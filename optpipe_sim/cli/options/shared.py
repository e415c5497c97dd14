"""Options that several commands have; light, as `parser` is."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from .groups import OUTPUT
from .kinds import count, framework, instant, size

FAMILIES = ("megatron", "torchtitan")  # of ``--family``


def add_numbers(
    parser: ArgumentParser,
    *rows: tuple[str, int, str],
    kind: Callable[[str], int] = count,
) -> None:
    """Add options of whole numbers: the name, the default and the help of each, which ends in the default."""
    for name, usual, text in rows:
        parser.add_argument(
            f"--{name}", type=kind, default=usual, metavar="N", help=f"{text} ({usual})"
        )


def add_flags(parser: ArgumentParser, *rows: tuple[str, str]) -> None:
    """Add options without a value: the name and the help of each."""
    for name, help in rows:
        parser.add_argument(f"--{name}", action="store_true", help=help)


def add_outputs(parser: ArgumentParser, *rows: tuple[str, str, str], **more: Any) -> None:
    """Add options that name what is written: the names of each, what stands for its value (by which `outputs.files`
    knows pictures, pages and folders) and its help."""
    for names, metavar, help in rows:
        flags = [name if name.startswith("-") else f"--{name}" for name in names.split()]
        action = parser.add_argument(*flags, metavar=metavar, help=help, **more)
        action.group, action.writes = OUTPUT, True  # type: ignore[attr-defined]


def add_schedule(parser: ArgumentParser) -> None:
    parser.add_argument(
        "schedule",
        metavar="SCHEDULE",
        help="a schedule file (.json, or torch's .csv), or a name, with -m",
    )


def add_profile(
    parser: ArgumentParser, nargs: str | None = None, help: str = "profile of costs (YAML or JSON)"
) -> None:
    parser.add_argument("profile", metavar="PROFILE", nargs=nargs, help=help)


def add_microbatches(parser: ArgumentParser, note: str = "", required: bool = False) -> None:
    parser.add_argument(
        "-m",
        "--microbatches",
        metavar="M",
        type=count,
        required=required,
        help="microbatches per iteration" + (f"; {note}" if note else ""),
    )


def add_limit(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--memory-limit",
        metavar="SIZE",
        type=size,
        help="per device: 40GiB, 512MiB, 200B or plain bytes; default: the profile's own",
    )


def add_problem(parser: ArgumentParser) -> None:
    """Add a profile, ``-m`` and ``--memory-limit``: the problem of a search or a comparison."""
    add_profile(parser)
    add_microbatches(parser, required=True)
    add_limit(parser)


def add_schedule_problem(parser: ArgumentParser) -> None:
    """Add ``-m`` and ``--memory-limit`` for one schedule by name or file."""
    add_microbatches(parser, "needed with the name of a schedule; a file has it")
    add_limit(parser)


def add_execution(parser: ArgumentParser, default: str = "the profile's own, else ideal") -> None:
    parser.add_argument(
        "--execution",
        metavar="NAME|FILE",
        help=f"how the trainer issues the work: `optpipe-sim executions` lists what ships (default: {default}). It says"
        " what ops and messages cost beside their times",
    )


def add_family(parser: ArgumentParser, help: str) -> None:
    parser.add_argument("--family", choices=FAMILIES, type=framework, help=help)


def add_objective_of_schedule(parser: ArgumentParser) -> None:
    """Add ``--execution``, and ``--objective`` for a schedule that may say it itself."""
    add_execution(parser)
    parser.add_argument(
        "--objective",
        choices=("flush", "span"),
        help="what counts as the time (default: what the schedule was solved for, or else as the execution says)",
    )


def page_of(what: str) -> tuple[str, str, str]:
    """Return ``--report`` for `add_outputs`, with what the page shows."""
    return "report", "F.html", f"write a page that works offline: {what}"


def add_pictures(parser: ArgumentParser, which: str, page: str) -> None:
    """``--gantt``, ``--trace`` and ``--report`` of `which` schedule; the report shows `page`."""
    gantt = f"draw {which} schedule with its memory (.png, .svg or .pdf)"
    add_outputs(parser, ("gantt", "F.png", gantt))
    parser.add_argument(
        "--from",
        dest="window_from",
        metavar="10%|120ms",
        type=instant,
        help="where the picture begins, as a share of the iteration or a time (default: at its start)",
    )
    parser.add_argument(
        "--to",
        dest="window_to",
        metavar="20%|150ms",
        type=instant,
        help="where the picture ends (default: at the end)",
    )
    trace = f"write the trace of {which} schedule for https://ui.perfetto.dev"
    add_outputs(parser, ("trace", "F.json", trace), page_of(page))
