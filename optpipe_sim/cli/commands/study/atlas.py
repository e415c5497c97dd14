"""``atlas``: the open library of instances: list it, get from it, check it, submit what is better."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ....errors import OptPipeError
from ....units import counted, format_time, format_times, parse_size, parse_time
from ...options.fields import refuse_options
from ...options.kinds import by, count, share, size
from ...options.shared import add_flags, add_outputs
from ...status import DONE, NO

if TYPE_CHECKING:
    from pathlib import Path

    from ....atlas.instances import Instance, Record
    from ...outputs.show import Out

EXAMPLE = "optpipe-sim atlas list --model llama3 --gap 1%"
SUMMARY = (
    "instances with the best schedules and bounds known: list, get, check, or submit better ones"
)
ACTIONS = ("list", "get", "check", "submit")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `atlas`."""
    parser.add_argument(
        "action",
        choices=ACTIONS,
        help="list instances; get one's profile and schedule; check schedules and bounds; submit a better"
        " schedule or bound",
    )
    parser.add_argument(
        "item",
        metavar="NAME|FILE",
        nargs="?",
        help="list, check: only instances whose name has this; get: an instance; submit: a schedule file",
    )
    parser.add_argument("--model", metavar="TEXT", help="list: only models whose name has this")
    parser.add_argument(
        "--devices", metavar="P", type=count, help="list: only pipelines of so many devices"
    )
    parser.add_argument(
        "--memory-limit", metavar="SIZE", type=size, help="list: only limits up to this"
    )
    parser.add_argument(
        "--gap",
        metavar="SHARE",
        type=share,
        help="list: only those whose best schedule is further above its bound than this, as 1%%, or that have no"
        " schedule",
    )
    parser.add_argument(
        "--instance", metavar="NAME", help="submit: the instance that it is for, PROFILE@LIMIT"
    )
    parser.add_argument(
        "--bound",
        metavar="TIME",
        type=by()(parse_time),
        help="submit: a lower bound (1.5s, 20ms or plain ns) instead of a schedule",
    )
    parser.add_argument(
        "--proof",
        metavar="NAME",
        help="submit: the proof of --bound: work, one microbatch, fill and drain, residency or configuration LP",
    )
    parser.add_argument("--by", metavar="WHO", help="submit: who found it")
    parser.add_argument("--how", metavar="TEXT", default="", help="submit: how it was found")
    add_flags(parser, ("lp", "check: compute the configuration LP's bounds again, too (minutes)"))
    parser.add_argument("--library", metavar="DIR", help="another library than the one that ships")
    add_outputs(
        parser,
        ("save", "S.json", "get: write the schedule"),
        ("save-profile", "P.yaml", "get: write the profile"),
    )


_ONLY = {  # options of one action
    "model": "list",
    "devices": "list",
    "memory_limit": "list",
    "gap": "list",
    "save": "get",
    "save_profile": "get",
    "instance": "submit",
    "bound": "submit",
    "proof": "submit",
    "by": "submit",
    "how": "submit",
    "lp": "check",
}


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Do the action; returns 1 where nothing matches, something is wrong, or what is submitted is not better."""
    for option, action in _ONLY.items():
        if arguments.action != action:
            refuse_options(
                arguments, option, why=f"only with {action}, not with {arguments.action}"
            )
    return {"list": _list, "get": _get, "check": _check, "submit": _submit}[arguments.action](
        arguments, out
    )


def _library(arguments: argparse.Namespace) -> Path:
    from pathlib import Path

    from ....atlas.instances import LIBRARY

    return Path(arguments.library) if arguments.library else LIBRARY


def _chosen(arguments: argparse.Namespace) -> list[Instance]:
    from ....atlas.instances import read_library

    every = read_library(_library(arguments))
    return [one for one in every if not arguments.item or arguments.item in one.name]


def _none(out: Out) -> int:
    out.print("no instance of the atlas is like this; all: optpipe-sim atlas list")
    return NO


def _list(arguments: argparse.Namespace, out: Out) -> int:
    most = None if arguments.memory_limit is None else parse_size(arguments.memory_limit)
    found = [
        one
        for one in _chosen(arguments)
        if (not arguments.model or arguments.model.lower() in one.model.lower())
        and arguments.devices in (None, one.devices)
        and (most is None or one.limit_bytes <= most)
        and (arguments.gap is None or one.gap is None or one.gap > arguments.gap)
    ]
    out.result({"instances": [one.to_json() for one in found]})
    if not found:
        return _none(out)
    rows = (
        {
            "instance": one.name,
            "p": one.devices,
            "v": one.chunks,
            "m": one.microbatches,
            "best": format_time(one.best.ns) if one.best else "none known",
            "bound": format_time(one.bound.ns) if one.bound else "",
            "gap": "" if one.gap is None else "proven" if one.gap == 0 else f"{one.gap:.2%}",
            "found by": one.best.how if one.best else "",
            "proof": one.bound.how if one.bound else "",
        }
        for one in found
    )
    out.table(rows, left=("instance", "found by", "proof"))
    proven = sum(one.gap == 0 for one in found)
    out.print(f"{len(found)} instances, {proven} of them proven optimal")
    out.hint("optpipe-sim atlas get NAME --save S.json --save-profile P.yaml")
    return DONE


def _get(arguments: argparse.Namespace, out: Out) -> int:
    from ....atlas.instances import read_instance
    from ....profile_io import profile_to_json, save_profile

    if not arguments.item:
        raise OptPipeError("get: give the name of an instance, as `optpipe-sim atlas list` has it")
    one = read_instance(arguments.item, _library(arguments))
    profile = one.load_profile()
    schedule = one.load_schedule(profile) if one.best else None
    if schedule is None and arguments.save:
        raise OptPipeError(f"--save {arguments.save}: no schedule is known of {one.name}")
    written = {}
    if schedule is not None and arguments.save:
        schedule.save(arguments.save)
        written["schedule"] = arguments.save
    if arguments.save_profile:
        save_profile(profile, arguments.save_profile)
        written["profile"] = arguments.save_profile
    answer = one.to_json()
    answer["costs"] = profile_to_json(profile)
    answer["schedule"] = schedule and schedule.to_json()
    out.result(answer)
    out.print(one.name)
    out.line("source", one.source)
    out.line(
        "pipeline",
        f"{counted(one.devices, 'device')}, {counted(one.chunks, 'chunk')} each, {one.microbatches} microbatches,"
        f" {one.limit} per device",
    )
    for what, record in (("best known", one.best), ("bound", one.bound)):
        if record is not None:
            out.line(what, f"{format_time(record.ns)}: {_origin(record)}")
    if one.gap is not None:
        out.line("gap", "none: proven optimal" if one.gap == 0 else f"{one.gap:.2%}")
    out.written(written)
    return DONE


def _origin(record: Record) -> str:
    parts = [record.how, record.by, record.date, record.commit and f"commit {record.commit}"]
    if record.seconds is not None:
        parts.append(f"{record.seconds:g} s")
    if record.seed is not None:
        parts.append(f"seed {record.seed}")
    return ", ".join(part for part in parts if part)


def _check(arguments: argparse.Namespace, out: Out) -> int:
    from ....atlas.proofs import CLOSED, LP, PROOFS, proven
    from ....atlas.verify import problems

    found = _chosen(arguments)
    if not found:
        out.result({"instances": 0})
        return _none(out)
    again = (*CLOSED, *([LP] if arguments.lp else []))
    wrong: dict[str, list[str]] = {}
    confirmed = 0
    with out.progress("checking") as progress:
        for at, one in enumerate(found):
            progress(one.name, at, len(found))
            said = problems(one)
            if not said and one.bound is not None and one.bound.how in again:
                try:
                    ns = proven(one, one.load_profile(), one.bound.how)
                except OptPipeError as error:
                    said = [str(error)]
                else:
                    confirmed += ns >= one.bound.ns
                    if ns < one.bound.ns:
                        old, new = format_times(one.bound.ns, ns)
                        said = [
                            f"the bound of {old} is not confirmed: {one.bound.how} proves {new}"
                        ]
            if said:
                wrong[one.name] = said
    answer: dict[str, Any] = {
        "instances": len(found),
        "schedules": sum(one.best is not None for one in found),
        "bounds": sum(one.bound is not None for one in found),
        "bounds_computed_again": confirmed,
        "problems": wrong,
    }
    out.result(answer)
    for name, said in wrong.items():
        for problem in said:
            out.text(f"✗ {name}: {problem}")
    checked = counted(answer["schedules"], "schedule")
    bounds = counted(answer["bounds"], "bound")
    good = f"{checked} checked, {confirmed} of {bounds} computed again"
    if wrong:
        out.text(f"{len(wrong)} of {len(found)} instances have problems")
        return NO
    out.text(f"✓ {counted(len(found), 'instance')}: {good}")
    if not arguments.lp and any(one.bound and one.bound.how == LP for one in found):
        out.hint("optpipe-sim atlas check --lp: the configuration LP's bounds, too")
    kinds = {one.bound.how for one in found if one.bound} - set(PROOFS)
    if kinds:
        out.hint(f"bounds that take a search are not computed again: {', '.join(sorted(kinds))}")
    return DONE


def _submit(arguments: argparse.Namespace, out: Out) -> int:
    from ....atlas.instances import Record, read_instance, write_instance
    from ....atlas.records import Refused, with_bound, with_schedule
    from ....frameworks.torch_csv import load_schedule

    if arguments.instance is None:
        raise OptPipeError("--instance: give the name of the instance that this is for")
    if (arguments.item is None) == (arguments.bound is None):
        raise OptPipeError("submit: give a schedule file, or --bound TIME with --proof NAME")
    if (arguments.bound is None) != (arguments.proof is None):
        raise OptPipeError("--bound and --proof: give both, or neither")
    if not arguments.by:
        raise OptPipeError("--by: say who found it")
    old = read_instance(arguments.instance, _library(arguments))
    from datetime import date

    record = Record(
        arguments.bound or 0,
        arguments.proof or arguments.how or "submitted",
        arguments.by,
        date=date.today().isoformat(),
    )
    schedule = None
    try:
        if arguments.bound is None:
            schedule = load_schedule(arguments.item)
            new = with_schedule(old, schedule, record)
        else:
            new = with_bound(old, record)
    except Refused as error:
        out.result({"accepted": False, "reason": str(error), "instance": old.to_json()})
        out.text(f"✗ {error}")
        return NO
    files = [str(path) for path in write_instance(new, schedule)]
    out.result({"accepted": True, "reason": None, "instance": new.to_json(), "files": files})
    what, before, after = (
        ("best known", old.best, new.best) if schedule else ("bound", old.bound, new.bound)
    )
    assert after is not None
    was = f" (was {format_time(before.ns)})" if before else ""
    out.print(f"✓ {new.name}: {what} is now {format_time(after.ns, 6)}{was}")
    for path in files:
        out.text(path)
    return DONE
