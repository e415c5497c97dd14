"""The schedules that Megatron-LM can run, by name; the nearest of them to a schedule, and the best
one.

1F1B, or 1F1B interleaved in groups; nothing recomputed, or every stage at one level, or the first
layers of every chunk, or all but some of the microbatches in flight; nothing offloaded, or activations by the rule of
`megatron_offload`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ...costs.work import OVERLAPS
from ...errors import InvalidSchedule, OptPipeError
from ...ops import COMPUTE, F
from ...profile import CostProfile
from ...profile.iteration import extent
from ...schedule import Schedule
from ...schedules import (
    INTERLEAVED,
    MEGATRON_DEFER,
    MEGATRON_OFFLOAD,
    MEGATRON_PARTIAL,
    PAIRED,
    PLAIN,
    build,
    parse_name,
    those,
)
from ...schedules.megatron_defer import head_alone
from ...schedules.recompute import first_layers
from ...schedules.trials import SHARES
from ...solvers.microbatch_order import order_in, relabelled, reordered
from ...units import counted
from ..nearest import Nearest, compare, replay_unlimited
from ..parts import UNKNOWN_LENGTHS, Part, parts_of, said
from .model import model_in, model_options, sequence_in, unsaid
from .options import OVERLAP, RECOMPUTED, Offloading, Plan, Recompute

NAMES = those(lambda entry: entry.megatron)
FRACTIONS = tuple(map(Fraction, reversed(SHARES)))  # the most first
DENSE = (
    "attn_norm",
    "qkv_linear",
    "core_attn",
    "attn_proj",
    "mlp_norm",
)  # all that can be offloaded
EXPERTS = (*DENSE, "expert_fc1", "moe_act")
FORMATS = {
    "grad_reduce_in_bf16": "grad-reduce-in-bf16",
    "accumulate_grads_in_fp32": "accumulate-allreduce-grads-in-fp32",
}
OLD_LINKS = (  # machines of Hopper and before, by their names
    "a100",
    "h100",
    "h200",
    "gh200",
    "rtx",
)
NO_MODEL = "the options of the model are not in the profile; one that estimate, evaluate or advise wrote has them"


@dataclass(frozen=True)
class Choice:
    """One schedule of the family.

    Attributes:
        chunks: v. `group`: the microbatch group size; None: p, or no groups with one chunk.
        level: the level of recomputation of every stage; None: none. `layers`: with full, the
            number of first layers of every chunk that are recomputed.
        fraction: the share of activations that is offloaded; None: none. `delta`: rank r keeps r
            times this many bytes.
        pairs: forwards run with backwards as one op, after one more in the warm-up, as Megatron-LM does
            where the exchange of experts' tokens overlaps. With offloading that order is not modelled:
            the replay has that without pairs.
        deferred: of how many microbatches the gradients of the head's weights run at the end, 0: of all; None: of none.
        kept: how many of the microbatches in flight on a rank keep their activations where the others recompute; None: what
            is recomputed does not depend on the microbatch.
    """

    chunks: int
    group: int | None = None
    level: str | None = None
    layers: int | None = None
    fraction: Fraction | None = None
    delta: int = 0
    pairs: bool = False
    deferred: int | None = None
    kept: int | None = None

    @property
    def plain(self) -> bool:
        """Whether it is 1F1B, or interleaved in its usual groups, and recomputes nothing or all."""
        level = "full" if self.level == "full" else None
        return self == Choice(self.chunks, level=level, pairs=self.pairs)

    @property
    def name(self) -> str:
        """Its name in the registry of schedules."""
        plain = self.chunks == 1 and not self.pairs
        base = PLAIN if plain else INTERLEAVED
        options: dict[str, Any] = {} if plain else {"chunks": self.chunks}
        if self.fraction is not None:
            base = MEGATRON_OFFLOAD
            options = {"chunks": self.chunks, "fraction": self.fraction}
        if self.deferred is not None:
            base = MEGATRON_DEFER
            options = {"chunks": self.chunks, "deferred": self.deferred}
        given: dict[str, Any] = {"delta": self.delta or None, "group": self.group}
        if self.kept is not None:
            base = MEGATRON_PARTIAL
            options = {"chunks": self.chunks, "keep": self.kept}
            given["level"] = self.level
        else:
            given |= {"recompute": self.level, "layers": self.layers}
        given |= {"pairs": "yes" if self.pairs else None}
        options |= {key: value for key, value in given.items() if value is not None}
        return (
            base + ("" if not options else ":") + ",".join(f"{k}={v}" for k, v in options.items())
        )

    def build(self, profile: CostProfile, microbatches: int) -> Schedule:
        """Its schedule.

        Raises:
            InvalidSchedule: if it does not exist for this profile.
        """
        return build(self.name, profile, microbatches)


def choice_of(name: str) -> Choice | None:
    """Return the choice that a schedule name stands for; None if it is not in the family."""
    try:
        base, options = parse_name(name)
    except OptPipeError:
        return None
    if base not in NAMES or options.pop("apart", False):
        return None
    chunks = options.pop("chunks", 1 if base == PLAIN else 0)
    if base == MEGATRON_PARTIAL:
        if not {"keep", "level"} <= set(options):  # chosen by the profile: see `_guesses`
            return None
        return Choice(chunks, options.get("group"), options["level"], kept=options["keep"])
    options["level"] = options.pop("recompute", None)
    if base == MEGATRON_OFFLOAD:
        options.setdefault("fraction", Fraction(1))
    if base == MEGATRON_DEFER:
        options.setdefault("deferred", 0)
    return Choice(chunks, **options)


def plan_for(schedule: Schedule, profile: CostProfile) -> tuple[Plan, tuple[str, ...]]:
    """Return `plan_of` for a schedule of the family.

    Raises:
        InvalidSchedule: for a schedule that Megatron-LM cannot run exactly.
    """
    choice, instead = nearest(schedule, profile)
    if instead.lost:
        raise InvalidSchedule(f"Megatron-LM cannot express {instead.in_words()}")
    return plan_of(choice, profile, schedule.shape.microbatches)


def modules_of(level: str, experts: bool) -> tuple[tuple[str, ...], str | None] | None:
    """Return the modules of selective recomputation for a level, with notes on what the replay does
    not model; None if there are none. Levels may also be Megatron-LM's own module names, joined
    by a plus.

    Without experts there are none for ``norms``: the norms of such layers are fused into the next GEMM
    (gpt_layer_specs.py, with TransformerEngine), and no module drops the outputs of activation functions.
    """
    if level in ("selective", "attention"):
        return ("core_attn",), None
    if level == "norms" and experts:
        modules = ("layernorm", "moe_act")
        return modules, (
            "the level norms drops the outputs of dense activation functions, and of norms that"
            " TransformerEngine fuses into the next GEMM, as well; Megatron-LM keeps them when it recomputes"
            f" {', '.join(modules)}: its peak is higher"
        )
    names = tuple(level.split("+"))
    return (names, None) if set(names) <= set(RECOMPUTED) else None


def has_experts(profile: CostProfile) -> bool:
    """Whether the profile says that its model has experts."""
    return bool(said(profile, "model").get("kind") == "experts")


def orders_of(profile: CostProfile) -> tuple[bool, ...]:
    """Return whether forwards run with backwards as one op, for each order that Megatron-LM can run at these costs. Where an
    estimate hides the exchange of tokens in every op alike, they do; where it hides it in pairs, with or without
    the option for that, as ops apart then pay the whole exchange; else they do not.
    """
    work = said(profile, "work")
    if str(work.get("exchange", "")).endswith("overlapped"):
        return (True,)
    return (True, False) if "pairs" in work else (False,)


def fuses_sums(profile: CostProfile) -> bool:
    """Whether gradients of an estimated profile's weights are summed up in the GEMMs that make them."""
    return "gradient_sums" not in said(profile, "work")


def has_cuda_graphs(profile: CostProfile) -> bool:
    """Whether an estimated profile's iterations run as CUDA graphs."""
    return bool(said(profile, "work").get("cuda_graphs"))


def plan_of(
    choice: Choice,
    profile: CostProfile,
    microbatches: int,
    layers: Sequence[int] | None = None,
    modules: Sequence[str] | None = None,
) -> tuple[Plan, tuple[str, ...]]:
    """Return the options of a choice, and notes on what the replay does not model.

    Args:
        profile: with any number of chunks. `layers`: see `parts.parts_of`.
        modules: those whose inputs are offloaded; None: all possible ones.

    Raises:
        OptPipeError: for options that Megatron-LM refuses, or a profile without numbers of layers.
    """
    schedule = choice.build(profile, microbatches)
    costs = profile.for_shape(schedule.shape)
    parts = parts_of(costs, layers)
    notes = []
    recompute = offloading = None
    if choice.level is None:
        choice = replace(choice, level=_baked_in(profile))
    if choice.level is not None:
        recompute, note = _recompute(choice, parts, has_experts(profile))
        notes += [note] if note else []
    if choice.fraction is not None:
        chosen = tuple(modules or (EXPERTS if has_experts(profile) else DENSE))
        offloading = Offloading(chosen, float(choice.fraction), choice.delta)
        notes.append(
            "the replay moves the profile's offload bytes; Megatron-LM moves the inputs of"
            f" {', '.join(chosen)}, in tensors of at least 1,048,576 elements"
        )
    if (zero := said(profile, "parallel").get("zero", 0)) > 1:
        notes.append(f"ZeRO {zero} is an option of its Megatron-FSDP, which is not among these")
    if orders_of(profile) == (True, False) and not choice.pairs:
        notes.append(
            f"no forward of this plan runs with a backward as one op: it is for a run without --{OVERLAP}, and its ops"
            " pay the whole exchange of tokens"
        )
    model, machine = model_in(profile), said(profile, "machine")
    plan = Plan(
        costs.devices,
        microbatches,
        parts,
        choice.group if schedule.shape.chunks > 1 else None,
        recompute,
        offloading,
        (*_sizes(profile, microbatches, choice.pairs), *_deferral(choice, profile)),
        tuple(model_options(model, sequence_in(profile))) if model else (),
        str(machine.get("name", "")).startswith(OLD_LINKS),
        choice.kept,
        extent(profile),
    )
    if not profile.alike and plan.lengths is None:
        notes.append(UNKNOWN_LENGTHS)
    return plan, (*notes, *plan.notes(), *(unsaid(model) if model else [NO_MODEL]))


def _baked_in(profile: CostProfile) -> str | None:
    """Return what every stage of an estimated profile already recomputes (`estimate` with recompute)."""
    level = said(profile, "work").get("recompute")
    return None if level == "none" else level


def _recompute(
    choice: Choice, parts: Sequence[Part], experts: bool
) -> tuple[Recompute, str | None]:
    assert choice.level is not None
    if choice.level == "full":
        most = max(part.layers for part in parts)
        if choice.layers is not None and choice.layers < most:
            return Recompute("full", "block", choice.layers), None
        return Recompute("full", "uniform", 1), None
    found = modules_of(choice.level, experts)
    if found is None:
        raise InvalidSchedule(f"recompute={choice.level}: Megatron-LM has no option for this level")
    return Recompute("selective", modules=found[0]), found[1]


def _sizes(profile: CostProfile, microbatches: int, pairs: bool) -> Iterator[tuple[str, Any]]:
    """Yield what an estimated profile assumes: parallel and batch sizes, number format, exchange of tokens, which
    overlaps in plans with `pairs`."""
    parallel, work = said(profile, "parallel"), said(profile, "work")
    if not parallel or not work:
        return
    names = {"tp": "tensor", "cp": "context", "ep": "expert"}
    for key, name in names.items():
        if parallel.get(key, 1) > 1:
            option = "context-parallel-size" if key == "cp" else f"{name}-model-parallel-size"
            yield option, parallel[key]
    tp, cp, ep, dp = (parallel.get(key, 1) for key in ("tp", "cp", "ep", "dp"))
    shared = parallel.get("etp") or (1 if (cp * dp) % ep else tp)
    if shared != tp and (ep > 1 or "etp" in parallel):  # its default is tp
        yield "expert-tensor-parallel-size", shared
    if tp > 1 and work.get("sequence_parallel", True):
        yield "sequence-parallel", True
    if parallel.get("zero", 0) == 1:
        yield "use-distributed-optimizer", True
    yield from _overlaps(parallel, work)
    apart = {} if pairs else {"pairs": "none"}
    yield from _kernels({**work, **apart}, ep, parallel.get("zero", 0))
    yield from _capacity(said(profile, "imbalance"))
    if "microbatch" in work:  # those that differ are packed, each in one sequence
        size = 1 if extent(profile) else work["microbatch"]
        yield "micro-batch-size", size
        yield "global-batch-size", size * microbatches * dp
    if "seq" in work:
        yield "seq-length", sequence_in(profile)


def _overlaps(parallel: Mapping[str, Any], work: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the options for what an estimate hides behind compute, where there is something to hide."""
    replicas = parallel.get("dp", 1) * parallel.get("cp", 1) > 1
    shared = parallel.get("tp", 1) > 1 and work.get("sequence_parallel", True)
    has = {
        "grad-reduce": replicas,
        "param-gather": replicas and parallel.get("zero", 0) == 1,
        "tp-comm": shared,
    }
    yield from (
        (option, True)
        for name, option in OVERLAPS.items()
        if name in work.get("overlap", ()) and has[name]
    )


def _kernels(work: Mapping[str, Any], ep: int, zero: int) -> Iterator[tuple[str, Any]]:
    """Yield the options for what an estimate assumes of number formats, attention and exchanges."""
    dtype = work.get("dtype")
    if dtype in ("bf16", "fp16"):
        yield dtype, True
    elif dtype == "fp8":  # of GEMMs; all else stays in bf16
        yield "bf16", True
        yield "fp8-format", "hybrid"
        yield "fp8-recipe", "tensorwise"  # its default, delayed scaling, excludes recomputing norms
        if zero == 1 and "fp8_weights" not in work:  # it wants its distributed optimizer for that
            yield "fp8-param-gather", True
    if work.get("weights_in_fp32"):
        raise InvalidSchedule(
            "Megatron-LM keeps weights as GEMMs take them; estimate without --weights-in-fp32"
        )
    if work.get("gradient_sums") == "cast":
        raise InvalidSchedule(
            "Megatron-LM casts no gradients to add them up; estimate with --gradient-sums apart or fused"
        )
    for name, option in FORMATS.items():
        if work.get(name):
            yield option, True
    if work.get("gradient_sums") == "apart":
        yield "no-gradient-accumulation-fusion", True
    if work.get("loss_fusion") in ("native", "te"):
        yield "cross-entropy-loss-fusion", True
        yield "cross-entropy-fusion-impl", work["loss_fusion"]
    if work.get("flash") is False:
        yield "attention-backend", "unfused"
    if work.get("context") == "heads":
        yield "cp-comm-type", "a2a"
    if ep > 1:
        exchange = str(work.get("exchange", "plain"))
        flex = exchange.startswith("per-node")  # its default backend is DeepEP
        yield "moe-token-dispatcher-type", "flex" if flex else "alltoall"
        if exchange.endswith("overlapped") or work.get("pairs", "none") != "none":
            yield OVERLAP, True
        if work.get("pairs") == "delayed-w":
            yield "delay-wgrad-compute", True
    if work.get("expert_rank_capacity"):
        yield "moe-flex-dispatcher-backend", "hybridep"
        yield "use-transformer-engine-op-fuser", True
        yield "moe-expert-rank-capacity-factor", work["expert_rank_capacity"]
    if work.get("paged_stash"):
        yield "moe-paged-stash", True
        yield "moe-paged-stash-buffer-size-factor-cuda", work["paged_stash"]
    if work.get("cuda_graph_modules"):
        yield "cuda-graph-impl", "transformer_engine"
        yield "cuda-graph-modules", list(work["cuda_graph_modules"])
    if work.get("cuda_graphs"):
        yield "cuda-graph-impl", "full_iteration"
        yield "no-check-for-nan-in-loss-and-grad", True


def _deferral(choice: Choice, profile: CostProfile) -> Iterator[tuple[str, Any]]:
    """Yield the options for gradients of the head's weights that run at the end."""
    if choice.deferred is not None:
        if not fuses_sums(profile):
            raise InvalidSchedule(
                "Megatron-LM defers the head's gradients only where GEMMs sum them up; estimate with --gradient-sums fused"
            )
        yield "defer-embedding-wgrad-compute", True
        if choice.deferred:
            yield "wgrad-deferral-limit", choice.deferred


def _capacity(uneven: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the options for the most tokens that an estimate lets an expert have."""
    if uneven.get("capacity"):
        yield "moe-expert-capacity-factor", uneven["capacity"]
        if uneven["padded"]:
            yield "moe-pad-expert-input-to-capacity", True


def group_sizes(devices: int, microbatches: int) -> list[int | None]:
    """Return the group sizes to try: p (None), twice that, and all microbatches at once."""
    some = [size for size in (2 * devices, microbatches) if devices < size <= microbatches]
    fitting = [size for size in some if not 0 < microbatches % size < devices]
    return [*([None] if microbatches % devices == 0 else []), *dict.fromkeys(fitting)]


def levels_of(costs: CostProfile) -> Iterator[tuple[str | None, int | None]]:
    """Yield all levels and numbers of layers that Megatron-LM can express; `costs` is already
    divided into chunks."""
    yield None, None
    experts = has_experts(costs)
    names = costs.level_names
    for name in names:
        if name == "full" or modules_of(name, experts) is not None:
            yield name, None
    if "full" not in names:
        return
    counts = {level.layers for cost in costs.stages for level in cost.recompute if level.layers}
    for count in sorted(counts):
        try:
            first_layers(costs, "full", count)
        except InvalidSchedule:
            continue
        if any((cost.layers or 0) > count for cost in costs.stages):
            yield "full", count


def choices(profile: CostProfile, microbatches: int, chunks: int) -> Iterator[Choice]:
    """Yield the family on `chunks` chunks per device."""
    orders = orders_of(profile)
    if chunks == 1 and profile.devices > 1:
        orders = tuple(pairs for pairs in orders if not pairs)  # see Plan
    if not orders:
        return
    costs = profile.rechunk(chunks)
    groups = group_sizes(profile.devices, microbatches) if chunks > 1 else [None]
    for group in groups:
        for level, layers in levels_of(costs):
            excluded = level is not None and {"full", "moe"} & set(level.split("+"))
            fitting = [pairs for pairs in orders if not (pairs and excluded)]
            if not fitting:
                continue
            for pairs in fitting:
                yield Choice(chunks, group, level, layers, pairs=pairs)
            deferring = profile.devices > 1 and fuses_sums(profile) and head_alone(costs)
            if level is None and False in orders and deferring:
                yield Choice(chunks, group, deferred=0)
            if costs.offload is None or level == "full" or has_cuda_graphs(profile):
                continue  # see Plan
            moved = max(cost.offloadable for cost in costs.stages)
            for fraction in FRACTIONS:
                for delta in (0, moved):
                    yield Choice(chunks, group, level, layers, fraction, delta)


def partial_choices(profile: CostProfile, microbatches: int, chunks: int) -> Iterator[Choice]:
    """Yield, per group size, the choice that keeps as many of the microbatches in flight as fit the profile's limit, if
    that is some of them and not all."""
    if False not in orders_of(profile) or profile.memory_limit is None:
        return
    for group in group_sizes(profile.devices, microbatches) if chunks > 1 else [None]:
        asked = f"{MEGATRON_PARTIAL}:chunks={chunks},level=full"
        with suppress(OptPipeError):
            schedule = build(asked + (f",group={group}" if group else ""), profile, microbatches)
            kept = _kept_in(schedule)
            if kept and schedule.recompute:
                yield Choice(chunks, group, "full", kept=kept)


def _kept_in(schedule: Schedule) -> int:
    """Return how many forwards of the first rank keep their activations before one that does not."""
    forwards = (op for op in schedule.flat_programs[0] if op.kind is F)
    kept = (not schedule.levels.table[op.stage, op.microbatch] for op in forwards)
    return next((at for at, one in enumerate(kept) if not one), schedule.shape.microbatches)


def nearest(schedule: Schedule, profile: CostProfile) -> tuple[Choice, Nearest]:
    """Find the schedule that Megatron-LM runs instead of a schedule: the schedule itself if it is
    in the family; else the fastest of the family with as many chunks that fits, or the one with
    the least peak if none fits. Microbatches that differ are numbered as the first stage takes them up.

    Raises:
        InvalidSchedule: if the family is empty for this profile and number of microbatches.
    """
    shape = schedule.shape
    if not profile.alike:  # their order is that of the data
        order = order_in(schedule)
        schedule, profile = relabelled(schedule, order), reordered(profile, order)
    known = member(schedule, profile)
    if known is not None:
        built = known.build(profile, shape.microbatches)
        return known, compare(schedule, built, known.name, profile)
    found: list[tuple[tuple[int, int], int, Choice, Schedule]] = []
    for choice in choices(profile, shape.microbatches, shape.chunks):
        try:
            built = choice.build(profile, shape.microbatches)
        except OptPipeError:
            continue
        trace = replay_unlimited(built, profile)
        rank = (0, trace.makespan_ns) if trace.fits else (1, max(trace.peak_bytes))
        found.append((rank, len(found), choice, built))
    if not found:
        why = needs_chunks(profile, [shape.chunks]) or (
            "with several chunks these have to be a multiple of the ranks, or at least as many and grouped"
        )
        raise InvalidSchedule(
            f"Megatron-LM runs nothing on {shape.devices} ranks with {counted(shape.chunks, 'chunk')} each and"
            f" {shape.microbatches} microbatches: {why}"
        )
    _, _, choice, built = min(found)
    return choice, compare(schedule, built, choice.name, profile)


def needs_chunks(profile: CostProfile, chunks: Iterable[int]) -> str:
    """Say why none of these numbers of chunks per rank does for an overlapped exchange of tokens; empty where one does,
    or nothing overlaps."""
    if False in orders_of(profile) or profile.devices == 1 or any(one > 1 for one in chunks):
        return ""
    return (
        f"the profile has the exchange of experts' tokens overlapped, and --{OVERLAP} needs virtual stages on a pipeline, several"
        f" chunks per rank, so that plain 1F1B cannot have it; take {PAIRED}, or costs estimated with --pairs, at"
        " which plans with and without it can be compared"
    )


def member(schedule: Schedule, profile: CostProfile) -> Choice | None:
    """Return the choice whose schedule this is; None if it is not in the family."""
    shape = schedule.shape
    orders = orders_of(profile)
    for choice in (*_guesses(schedule), *choices(profile, shape.microbatches, shape.chunks)):
        if choice.fraction is None and choice.pairs not in orders:
            continue  # Megatron-LM runs another order
        with suppress(OptPipeError):
            if choice.build(profile, shape.microbatches) == schedule:
                return choice
    return None


def _guesses(schedule: Schedule) -> Iterator[Choice]:
    """Yield choices that this schedule may be: by its name, and by the group that it begins with."""
    named = choice_of(str(schedule.meta.get("name", "")))
    if named is not None:
        yield named if named.chunks else Choice(**{**vars(named), "chunks": schedule.shape.chunks})
    shape = schedule.shape
    group = None
    if shape.chunks > 1:
        first = [op for op in schedule.flat_programs[0] if op.kind in COMPUTE and op.kind is F]
        size = next((at for at, op in enumerate(first) if op.stage), shape.microbatches)
        group = None if size == shape.devices else size
    levels = set(schedule.recompute.values())
    level = levels.pop() if len(levels) == 1 else None
    yield Choice(shape.chunks, group, level, pairs=schedule.has_pairs)
    if level == "full" and not schedule.has_pairs:
        yield Choice(shape.chunks, group, level, kept=_kept_in(schedule))
