"""The commands that `advise` ends with: a closer look at its best plan."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....costs.advise.rows import Row
    from ...outputs.show import Out


def closer_look(out: Out, arguments: argparse.Namespace, best: Row) -> None:
    """Print commands for a closer look at the best plan."""
    from ....units import size_text
    from ...outputs.show import hint, program

    choice, called = best.choice, program()
    profile = arguments.save_profile or "P.yaml"
    m, limit = choice.microbatches, size_text((best.profile.memory_limit or (0,))[0])
    if not arguments.save_profile:
        words = ["estimate", "--model", arguments.model, "--machine", arguments.machine]
        words += ["--seq", str(arguments.seq)]
        for key, value in choice.layout.items():
            words += [f"--{key.replace('_', '-')}", str(value)]
        words += ["--no-flash"] * arguments.no_flash
        words += ["--no-sequence-parallel"] * arguments.no_sequence_parallel
        words += ["--dtype", arguments.dtype] if arguments.dtype != "bf16" else []
        words += ["--exchange", arguments.exchange] if arguments.exchange != "plain" else []
        words += ["--context", arguments.context] if arguments.context != "ring" else []
        words += ["--overlap", ",".join(arguments.overlap)] if arguments.overlap else []
        words += ["--calibrate", arguments.calibrate] if arguments.calibrate else []
        hint(out, f"{called} {shlex.join([*words, '--save', profile])}", code=True)
    where = f"{shlex.quote(profile)}"
    if best.schedule != "optpipe":
        known = (
            Path(arguments.save).name and shlex.quote(arguments.save) if arguments.save else None
        )
        what = known or f"{best.schedule} -m {m}"
        hint(
            out,
            f"{called} simulate {where} --schedule {what} --memory-limit {limit} --gantt gantt.png",
            code=True,
        )
    if choice.pp > 1:
        hint(
            out,
            f"{called} solve {where} -m {m} --memory-limit {limit}{_allowed(arguments)} --save best.json",
            code=True,
        )


def _allowed(arguments: argparse.Namespace) -> str:
    """Return what restricts the treatments of activations, as options of `solve`."""
    words = ["--treatments", ",".join(arguments.treatments)] if arguments.treatments else []
    words += ["--per-stage"] * arguments.per_stage
    return "".join(f" {word}" for word in words)
