"""Each setting ranked by its replays, ideal and under executions that were fitted without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import Literal

from experiments.ranking.fits import CHOICES, IDEAL, fit
from experiments.ranking.settings import Run, Setting, settings
from optpipe_sim.costs.issuing import Fit, predicted
from optpipe_sim.errors import OptPipeError
from optpipe_sim.execution import FAMILIES
from optpipe_sim.sim import simulate
from optpipe_sim.study.tasks import Row

VERSION = 7
MATTERS = 0.02  # of time: pairs that differ by more are counted apart


def run(
    execution: str,
    left_out: Literal["", "nothing", "others", "model", "paper", "machine", "family"] = "",
) -> list[Row]:
    """Return a row per setting, or per setting and family where families are left out.

    Args:
        execution: ``ideal``; ``known``, ideal but for what an iteration means, where the source says it; one of `CHOICES`,
            fitted to what is not left out.
        left_out: of the fit: ``nothing``; ``others``, what other trainers or machines ran (the setting itself is in); these
            and all settings of the same ``model``; all of the setting's ``paper``, or of its ``machine``; each ``family`` of
            schedules in turn, in all settings.

    Returns:
        What was fitted, and to how many settings. Counts of pairs of schedules and of those predicted the right way round, of
        all and of those that differ by more than 2 % (a tie counts as wrong unless it is predicted). The regret of running
        what is predicted fastest. How far apart the setting's errors are, as a share of time; the mean error, where times
        are known; the error of each difference, as a share of the slower schedule's time, and the families of the
        two. Memory over 1F1B's, predicted
        over measured less 1, by schedule.

    Raises:
        OptPipeError: for another execution.
    """
    if execution not in (known := ("ideal", "known", *CHOICES)):
        raise OptPipeError(f"execution: {execution!r} is none; known are {', '.join(known)}")
    rows = []
    for setting in settings().values():
        for family in FAMILIES if left_out == "family" else ("",):
            used: tuple[Setting, ...] = ()
            how = IDEAL if execution == "ideal" else Fit()
            if execution in CHOICES:
                used = tuple(_seen(left_out, setting))
                if not used:
                    continue
                kept = tuple(one for one in FAMILIES if one != family)
                how = fit(used, kept, execution)
            row = judged(setting, how, family)
            if row:
                rows.append({**_of(setting), "family": family, **_how(how, used), **row})
    return rows


def _seen(left_out: str, setting: Setting) -> Iterator[Setting]:
    """Yield the settings that a fit for one may see: never those over slices, whose costs are not published, nor traces; estimated
    ones, PipeOffload's, for that trainer alone."""
    for one in settings().values():
        if one.compares in ("slices", "traces") or (
            one.estimated and left_out not in ("others", "model")
        ):
            continue
        own = (one.trainer, one.machine) == (setting.trainer, setting.machine)
        match left_out:
            case "others":
                seen = own
            case "model":
                seen = own and one.model != setting.model
            case "paper" | "machine":
                seen = getattr(one, left_out) != getattr(setting, left_out)
            case _:
                seen = True
        if seen:
            yield one


def _of(setting: Setting) -> Row:
    return {
        "setting": setting.id,
        "paper": setting.paper,
        "trainer": setting.trainer,
        "machine": setting.machine,
        "model": setting.model,
        "compares": setting.compares,
        "costs": setting.kind_of_costs,
        "schedules": [run.name for run in setting.runs],
    }


def _how(execution: Fit, used: Sequence[Setting]) -> Row:
    return {
        "settings_seen": len(used),
        "papers_seen": len({one.paper for one in used}),
        "interleaved_links": execution.interleaved,
        "split_links": execution.split,
        "op_us": execution.op_us,
        "split": execution.split_factor,
    }


def judged(setting: Setting, execution: Fit, family: str = "") -> Row:
    """Compare predicted with measured times; with `family`, in pairs of which one is of it. Empty: no such pair."""
    runs = setting.runs
    times = {run.name: predicted(run, execution) for run in runs}
    pairs = [
        (a, b)
        for a, b in combinations(runs, 2)
        if not family or (a.family == family) != (b.family == family)
    ]
    if not pairs:
        return {}
    right = [_sign(a.time, b.time) == _sign(times[a.name], times[b.name]) for a, b in pairs]
    matter = [max(a.time, b.time) / min(a.time, b.time) > 1 + MATTERS for a, b in pairs]
    chosen = min(runs, key=lambda run: times[run.name])
    fastest = min(runs, key=lambda run: run.time)
    errors = [times[run.name] / run.time for run in runs]
    mean = sum(errors) / len(errors)
    return {
        "pairs": len(pairs),
        "pairs_right": sum(right),
        "pairs_over_2": sum(matter),
        "pairs_over_2_right": sum(ok for ok, much in zip(right, matter, strict=True) if much),
        "fastest": fastest.name,
        "chosen": chosen.name,
        "regret": chosen.time / fastest.time - 1,
        "spread": (max(errors) - min(errors)) / (1 if setting.absolute else mean),
        "error": mean - 1 if setting.absolute else None,
        "errors": [round(error / mean - 1, 5) for error in errors],
        "difference_errors": [
            round(times[b.name] / times[a.name] - b.time / a.time, 5)
            for a, b in map(_slower_first, pairs)
        ],
        "families": [
            " and ".join(sorted({a.family, b.family}, key=FAMILIES.index)) for a, b in pairs
        ],
        "memory_errors": list(memory_errors(setting)),
    }


@cache
def memory_errors(setting: Setting) -> Sequence[float | None]:
    """Return, by run, its peak over 1F1B's as replayed, over the same as measured, less 1; None where either is not known, or
    was fitted to."""
    peaks = {run.name: _peak(run, setting.activations) for run in setting.runs}
    base = next((run for run in setting.runs if run.name == "1f1b" and run.memory), None)
    fitted = setting.rows.get("memory_fitted", {}).get("to", ())
    found: list[float | None] = []
    for run in setting.runs:
        known = base and run is not base and run.memory and peaks[run.name] and peaks[base.name]
        if not known or run.name in fitted:
            found.append(None)
            continue
        assert base is not None
        assert run.memory is not None
        assert base.memory is not None
        measured = run.memory / base.memory
        found.append(round(peaks[run.name] / peaks[base.name] / measured - 1, 4))
    return found


def _peak(run: Run, activations: bool) -> float:
    """Return what the fullest device holds, in bytes; 0: not known."""
    if run.holds is None or run.memory is None:
        return 0
    trace = simulate(run.schedule, run.holds, enforce=False)
    static = trace.profile.meta.get("weights_bytes_per_device") if activations else None
    return float(
        max(trace.peak_bytes if static is None else map(int.__sub__, trace.peak_bytes, static))
    )


def _slower_first(pair: tuple[Run, Run]) -> tuple[Run, Run]:
    a, b = pair
    return (a, b) if a.time >= b.time else (b, a)


def _sign(a: float, b: float) -> int:
    return (a > b) - (a < b)
