"""What would make a configuration faster: alternatives, each estimated and replayed as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ...names import parse_name
from ...reasons.hints import MANY_OPS, Alternative, Hint, best_hints
from ...schedules import USUAL
from ...solvers.starts.published import LOOP, VEE
from ...trace import Trace
from ...units import counted
from ..doubt import between_layouts
from ..provenance import iteration_ns
from ..work import Work
from .replay import peak_of, profile_of, replayed_freely
from .rows import Row
from .space import Choice, Question

SECONDS = 5.0  # for all of them
NOT_SEARCHED = ("experts", "overlap", "trainer")  # keys of what `advise` does not choose
OVERLAPS = (("grad-reduce",), ("grad-reduce", "param-gather"), ("tp-comm",))
EXCHANGES = ("per-node", "overlapped", "per-node-overlapped")


def hints_for(
    question: Question,
    row: Row,
    seconds: float = SECONDS,
    searched: bool = False,
    check: Callable[[Trace], None] = lambda _: None,
) -> list[Hint]:
    """Return the changes of a configuration that make an iteration faster and fit: the kinds of each key
    (recompute, microbatch, layers, schedule, experts, overlap, trainer, zero) are tried one by one, and the best
    is returned, the largest gain first; none for very long schedules, and for those that are searched for.

    Args:
        seconds: wall time for all of them; the rest is not tried then. searched: only changes that `advise` does
            not choose: of overlap, of the exchange of experts, and of what trainers can leave out. check: raises an
            `OptPipeError` for a replay of what must not be hinted at, as a framework has no options for it.
    """
    if len(row.trace.schedule) > MANY_OPS or parse_name(row.schedule)[0] == "optpipe":
        return []
    until = time.monotonic() + seconds
    tried = (
        one
        for one in _alternatives(question, row, check)
        if not searched or one.key.startswith(NOT_SEARCHED)
    )
    between = row.trace.profile.execution_notes["between"]

    def off(key: str) -> float:
        return (between or 0.0) if key == "schedule" else max(between or 0.0, between_layouts())

    return best_hints(row.iteration_ns, tried, lambda: time.monotonic() > until, off)


def _alternatives(
    question: Question, row: Row, check: Callable[[Trace], None]
) -> Iterator[Alternative]:
    choice, usual = row.choice, question.work
    counts = row.profile.meta["layers_per_stage"]
    balanced = profile_of(question, choice).meta["layers_per_stage"]
    given = None if counts == balanced else counts  # else they are balanced for each alternative

    def changed(
        what: str, key: str, name: str = row.schedule, asked: Question = question, **changes: Any
    ) -> Alternative:
        same = changes.get("chunks", choice.chunks) == choice.chunks
        layers = changes.pop("layers", given if same else None)
        other = replace(choice, **changes)
        return Alternative(what, key, lambda: _replayed(asked, other, name, layers, check))

    for recompute in ("none", "core_attn", "norms", "full"):
        if recompute != choice.recompute and "recompute=" not in row.schedule:
            yield changed(f"recompute {recompute}", "recompute", recompute=recompute)
    yield from (
        changed(text, f"trainer {text}", asked=replace(question, work=work))
        for text, work in _without(usual)
    )
    hiding = not usual.launch_blocking  # else nothing may run beside anything
    if question.model.experts:
        yield from _exchanges(question, choice, changed)
    for overlap in OVERLAPS if hiding else ():
        more = tuple(dict.fromkeys((*usual.overlap, *overlap)))
        if more != usual.overlap:
            asked = replace(question, work=replace(usual, overlap=more))
            yield changed(f"overlap {','.join(more)}", f"overlap {overlap[0]}", asked=asked)
    for stage in _fuller(counts):
        layers = list(counts)
        layers[stage] += 1
        layers[-1] -= 1
        yield changed(f"layers {','.join(map(str, layers))}", "layers", layers=layers)
    for factor in (2, 0.5):
        size, m = choice.microbatch * factor, choice.microbatches / factor
        if size == int(size) and m == int(m):
            text = f"microbatches of {counted(int(size), 'sequence')}"
            yield changed(text, "microbatch", microbatch=int(size), microbatches=int(m))
    for zero in (1, 2, 3) if choice.dp * choice.cp > 1 else ():
        if zero != choice.zero:
            yield changed(f"zero {zero}", "zero", zero=zero)
    for name in USUAL if choice.pp > 1 else ():
        shape = (
            ("vee", 2) if name in VEE else ("loop", max(2, choice.chunks) if name in LOOP else 1)
        )
        if name != row.schedule:
            text = f"schedule {name}" + (f" with {shape[1]} chunks" if name in LOOP else "")
            if given is not None and shape[1] != choice.chunks:
                text += " and its own layers per stage"
            yield changed(text, "schedule", name, placement=shape[0], chunks=shape[1])


def _without(work: Work) -> Iterator[tuple[str, Work]]:
    """Yield the work without what a trainer does that no schedule needs."""
    if work.launch_blocking:
        yield "launches that do not block", replace(work, launch_blocking=False)
    if work.gradient_sums != "fused":
        yield "gradient-sums fused", replace(work, gradient_sums="fused")


def _exchanges(
    question: Question, choice: Choice, changed: Callable[..., Alternative]
) -> Iterator[Alternative]:
    """Yield other layouts of the experts, and other ways of their tokens."""
    usual = question.work
    layouts: list[tuple[str, dict[str, Any]]] = [("", {})]
    if choice.tp > 1 and choice.etp != 1:
        layouts.append(("etp 1", {"etp": 1}))
    for text, change in layouts:
        for exchange in (usual.exchange, *EXCHANGES):
            overlapped = exchange.endswith("overlapped")
            if overlapped and (usual.pairs != "none" or usual.launch_blocking):
                continue  # pairs say what is hidden, and where launches block nothing is
            if usual.expert_rank_capacity and not exchange.startswith("per-node"):
                continue  # buffers of experts need that
            asked = replace(question, work=replace(usual, exchange=exchange), etp=None)
            words = [text, f"exchange {exchange}" if exchange != usual.exchange else ""]
            if any(words):
                yield changed(", ".join(filter(None, words)), "experts", asked=asked, **change)


def _fuller(counts: list[int]) -> list[int]:
    """Return the stages that may take a layer of the last one, which has the head: the emptiest in the middle
    and the first."""
    if len(counts) < 2 or not counts[-1]:
        return []
    middle = min(range(1, len(counts) - 1), key=lambda at: (counts[at], -at), default=0)
    return sorted({0, middle})


def _replayed(
    question: Question,
    choice: Choice,
    name: str,
    layers: list[int] | None,
    check: Callable[[Trace], None],
) -> tuple[float, int, bool]:
    levels = True if "recompute=" in name else None
    profile = profile_of(question, choice, levels, layers=layers)
    trace = replayed_freely(profile, choice.microbatches, name)
    check(trace)
    return iteration_ns(profile, trace.cost_ns), peak_of(trace), trace.fits
