"""The commands that `advise` ends with: its best plan again, and a search on its costs."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from ....costs.work import Work
from ....option_fields import options_of
from ...options.fields import as_given, as_words

if TYPE_CHECKING:
    from ....costs.advise.rows import Row


_CHOSEN = ("microbatch", "seq", "recompute", "slices", "slice_by", "imbalance")
# how layers run, as `evaluate`, `advise` and `estimate` take it from one another
AS_RUN = tuple(name for name in options_of(Work) if name not in _CHOSEN)


def next_commands(arguments: argparse.Namespace, best: Row) -> list[str]:
    """Return commands that run as they are, one after the other: the profile of the plan unless it was saved, the
    replay of its schedule, and a search on these costs where there is a pipeline to order."""
    profile, m = arguments.save_profile or "plan.yaml", best.choice.microbatches
    limit = as_given(arguments, "memory_limit")  # else the profile has that of the machine
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
        allowed = as_given(arguments, "treatments", "per_stage", "family")
        # a framework's best may have other layers on its stages
        allowed += " --save-profile best.yaml" if arguments.family else ""
        found.append(f"solve {where} -m {m}{limit}{allowed} --save best.json")
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
    text = shlex.join(words) + as_given(arguments, "execution")
    if best.choice.ep > 1:  # one GPU has all experts
        text += "".join(
            f" {shlex.quote(word)}" for word in as_words(arguments, Work, ["imbalance"])
        )
        text += as_given(arguments, "capacity_factor", "pad_to_capacity")
    return text + as_given(arguments, "calibrate", "offload_to")
