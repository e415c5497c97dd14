"""The commands that `advise` ends with: its best plan again, and a search on its costs."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from ....costs.work import Work
from ....option_fields import options_of
from ...options.fields import as_words

if TYPE_CHECKING:
    from ....costs.advise.rows import Row


_CHOSEN = ("microbatch", "seq", "recompute", "slices", "slice_by", "imbalance")
# how layers run, as `evaluate`, `advise` and `estimate` take it from one another
AS_RUN = tuple(name for name in options_of(Work) if name not in _CHOSEN)


def next_commands(arguments: argparse.Namespace, best: Row) -> list[str]:
    """Return commands that run as they are, one after the other: the profile of the plan unless it was saved, the
    replay of its schedule, and a search on these costs where there is a pipeline to order."""
    from ....units import size_text

    profile, m = arguments.save_profile or "plan.yaml", best.choice.microbatches
    given = arguments.memory_limit  # else the profile has that of the machine
    limit = "" if given is None else f" --memory-limit {size_text(given)}"
    where, found = shlex.quote(profile), []
    if not arguments.save_profile:
        found.append(f"{_estimate(arguments, best)} --save {where}")
    if arguments.save:
        found.append(f"simulate {where} --schedule {shlex.quote(arguments.save)}{limit}")
    elif best.schedule != "optpipe":
        found.append(f"simulate {where} --schedule {best.schedule} -m {m}{limit}")
    if found and found[-1].startswith("simulate"):
        found[-1] += " --gantt gantt.png"
    if best.choice.pp > 1:
        found.append(f"solve {where} -m {m}{limit}{_allowed(arguments)} --save best.json")
    return found


def _estimate(arguments: argparse.Namespace, best: Row) -> str:
    """Return the call of `estimate` that makes the profile of a plan."""
    words = ["estimate", "--model", arguments.model, "--machine", arguments.machine]
    words += ["--seq", str(arguments.seq)]
    for key, value in best.choice.options.items():
        words += [f"--{key.replace('_', '-')}", str(value)]
    words += ["--layers", ",".join(map(str, best.profile.meta["layers_per_stage"]))]
    words += [] if best.profile.has_levels or best.choice.recompute != "none" else ["--no-levels"]
    words += as_words(arguments, Work, AS_RUN)
    words += ["--execution", arguments.execution] if arguments.execution else []
    several = best.choice.ep > 1  # one GPU has all experts
    words += as_words(arguments, Work, ["imbalance"]) if several else []
    if several and arguments.capacity_factor is not None:
        words += ["--capacity-factor", f"{arguments.capacity_factor:g}"]
        words += ["--pad-to-capacity"] * arguments.pad_to_capacity
    words += ["--calibrate", arguments.calibrate] if arguments.calibrate else []
    words += ["--offload-to", arguments.offload_to] if arguments.offload_to else []
    return shlex.join(words)


def _allowed(arguments: argparse.Namespace) -> str:
    """Return what restricts the plans, as options of `solve`."""
    words = ["--treatments", ",".join(arguments.treatments)] if arguments.treatments else []
    words += ["--per-stage"] * arguments.per_stage
    # a framework's best may have other layers on its stages
    words += (
        ["--family", arguments.family, "--save-profile", "best.yaml"] if arguments.family else []
    )
    return "".join(f" {word}" for word in words)
