"""Published tables in which several schedules were measured on one machine, as settings that a replay can rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from experiments.published import figure_15, published
from optpipe_sim.costs import estimate, issuing, load_machine, load_model
from optpipe_sim.costs.provenance import mfu
from optpipe_sim.frameworks.torch_csv import load_schedule
from optpipe_sim.profile import CostProfile
from optpipe_sim.profile_io import load_profile
from optpipe_sim.schedule.shape import Shape
from optpipe_sim.schedules import build

ORDERS = Path(__file__).parent / "orders"
A100 = "A100 SXM 80GB, nodes of 8, RoCE"
# units of throughput by which a time is known
PER_DEVICE, MFU = "samples per second and device", "MFU, percent"
_UNITS = (PER_DEVICE, MFU)
# of the activations of GPT without fused attention, per token and layer: 34 h + 5 a s bytes, of which W needs 32 h (arXiv 2401.10241)
PER_HIDDEN, PER_SCORE, FOR_W = 34, 5, 32


@dataclass(frozen=True, eq=False)  # one object each, by which replays are kept
class Run(issuing.Run):
    """One schedule of a setting; its `name` is the source's.

    Attributes:
        memory: as measured; None: not published. holds: what stages hold; None: not known.
    """

    memory: float | None = None
    holds: CostProfile | None = None


@dataclass(frozen=True, eq=False)
class Setting:
    """Runs that may be compared: one model, machine and date.

    Attributes:
        id, paper, trainer, machine, costs: see costs/data/published/schedules.yaml.
        compares: ``schedules``, ``slices``, ``divisions`` (of layers), ``optimizers`` or ``traces``.
        assumed: what the source does not state. model: a name.
        absolute: whether times are in ns and costs are not scaled to one of them. activations: whether memory is that of
            activations alone.
    """

    id: str
    paper: str
    trainer: str
    machine: str
    model: str
    costs: str
    compares: str
    assumed: tuple[str, ...]
    absolute: bool
    activations: bool
    rows: Mapping[str, Any]

    @property
    def estimated(self) -> bool:
        """Whether its costs come from the project's own model."""
        return self.rows.get("kind") == "figure_15"

    @property
    def kind_of_costs(self) -> str:
        """``published``, ``assumed`` (in part) or ``estimated``."""
        return "estimated" if self.estimated else "assumed" if self.assumed else "published"

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Its runs, schedules built."""
        make = {"figure_15": _of_figure_15, "slices": _of_slices}.get(self.rows.get("kind", ""))
        return tuple((make or _of_rows)(self.rows))


@cache
def settings() -> Mapping[str, Setting]:
    """Return every setting by its id."""
    found = [*_table_4(), *_blocks(), *_figure_15(), *_sliced()]
    return {one.id: one for one in found}


def _setting(block: Mapping[str, Any], row: Mapping[str, Any]) -> Setting:
    merged = {**block, **row, "instead": {**block.get("instead", {}), **row.get("instead", {})}}
    return Setting(
        merged["id"],
        merged["paper"],
        merged["trainer"],
        merged["machine"],
        merged.get("model", merged["id"]),
        merged["costs"],
        merged.get("compares", "schedules"),
        tuple(map(str, merged.get("assumed", ()))),
        "iteration_ms" in merged or merged.get("unit") in _UNITS,
        merged.get("memory_is") == "activations",
        merged,
    )


def _blocks() -> Iterator[Setting]:
    for block in published("schedules")["blocks"]:
        for row in block["rows"]:
            yield _setting({key: value for key, value in block.items() if key != "rows"}, row)


def _table_4() -> Iterator[Setting]:
    block = {
        "paper": "zero-bubble",
        "trainer": "zero-bubble",
        "machine": A100,
        "costs": "published, table 5",
        "unit": PER_DEVICE,
        "post_validated": True,
    }
    for row in published("zero_bubble")["rows"]:
        times = {op: row[f"t_{op}_ms"] for op in "fbw"}
        yield _setting(
            block,
            {
                "id": f"zb4-{row['model'].removeprefix('gpt-')}-m{row['microbatches']}",
                "model": row["model"],
                "devices": row["devices"],
                "microbatch": row["microbatch"],
                "microbatches": row["microbatches"],
                "layers": row["layers_per_stage"],
                "stage_ms": times,
                "comm_ms": row["t_comm_ms"],
                "throughput": row["samples"],
                "memory": row.get("gib", {}),
            },
        )


def _of_rows(row: Mapping[str, Any]) -> Iterator[Run]:
    for name in row.get("iteration_ms") or row["throughput"]:
        own = {**row, **row["instead"].get(name, {})}
        profile = _profile(own)
        text = own.get("schedule", name)
        if text == "1f1b-i":
            text = f"1f1b-i:chunks={own.get('chunks', own.get('layers', 1))}"
        if "order" in own:
            schedule = load_schedule(ORDERS / f"{own['order']}.csv")
        else:
            schedule = build(text, profile, own["microbatches"])
        yield Run(
            name,
            _time(own, name),
            own["post_validated"] and own.get("iteration") != "makespan",
            schedule,
            profile.for_shape(schedule.shape),
            row.get("memory", {}).get(name),
            _holds(own, profile, schedule.shape),
        )


def _time(row: Mapping[str, Any], name: str) -> float:
    if "iteration_ms" in row:
        return float(row["iteration_ms"][name]) * 1e6
    rate = float(row["throughput"][name])
    if row.get("unit") != PER_DEVICE:
        return 1 / rate
    return float(1e9 * row["microbatch"] * row["microbatches"] / row["devices"] / rate)


def _holds(row: Mapping[str, Any], profile: CostProfile, shape: Shape) -> CostProfile | None:
    """Return the costs that say what stages hold: estimated, with as many layers on each stage as the run had, or,
    of activations alone, the profile's own shares."""
    if row.get("memory_is") == "activations":
        return profile
    p, name = row["devices"], row.get("model", "")
    layers, left = divmod(row.get("layers", 1), shape.chunks)
    assert not left, f"{row['id']}: {shape.chunks} chunks do not divide its layers"
    each = [layers] * shape.stages
    options: dict[str, Any] = {
        "levels": False,
        "offload": False,
        "execution": "ideal",
        "chunks": shape.chunks,
        "placement": shape.placement,
    }
    if name.startswith("gpt-"):  # embedding and head count as a layer each
        options |= published("zero_bubble")["options"] | {"microbatch": row["microbatch"]}
        ends = [layers - 1, *each[1:-1], layers - 1]
        return estimate(name, load_machine("a100-80gb"), p, layers=ends, **options)
    if name == "llama2-7b":  # of which 16 layers ran
        model = replace(load_model("llama2-7b"), layers=sum(each))
        found = estimate(model, load_machine(row["memory_of"]), p, layers=each, **options)
        fitted = row["memory_fitted"]
        return _as_fitted(found, fitted["static"], fitted["activation"])
    return None


def _as_fitted(profile: CostProfile, static: float, activation: float) -> CostProfile:
    """Return a profile of equal layers whose static bytes and layers' activations are these times as large."""
    more = round((activation - 1) * profile.stages[1].act_bytes)
    return profile.map_stages(
        lambda _, cost: replace(
            cost,
            static_bytes=round(static * cost.static_bytes),
            act_bytes=cost.act_bytes + more,
            w_bytes=cost.w_bytes + more,
        )
    )


def _profile(row: Mapping[str, Any]) -> CostProfile:
    """Return the costs of a setting or of one of its runs, layer by layer: chunks then divide between layers, and the
    head stays on the last one."""
    p, layers = row["devices"], row.get("layers", 1)
    act, w = _activation(row)
    if "f_us" in row:
        stages = [
            {"t_f_ns": 1000 * f, "t_b_ns": 1000 * bw, "t_w_ns": 0, "act_bytes": act}
            for f, bw in zip(row["f_us"], row["bw_us"], strict=True)
        ]
        layers = 1
    else:
        given = row.get("layer_ms") or row["stage_ms"]
        part = 1 if "layer_ms" in row else layers
        each = {f"t_{op}_ns": round(1e6 * ms / part) for op, ms in given.items()}
        stages = [{**each, "act_bytes": act, "w_bytes": w, "layers": 1} for _ in range(p * layers)]
        for at, beside in ((0, "first_ms"), (-1, "head_ms")):
            for op, ms in row.get(beside, {}).items():
                stages[at][f"t_{op}_ns"] += round(1e6 * ms)
    return load_profile(
        {
            "name": row["id"],
            "devices": p,
            "chunks": layers,
            "stages": stages,
            "t_comm_ns": round(1e6 * row["comm_ms"]),
        }
    )


def _activation(row: Mapping[str, Any]) -> tuple[int, int]:
    """Return what a layer holds of a microbatch, and what of it W needs; of models of unknown shape in any unit."""
    shape = row.get("shape")
    if row.get("model", "").startswith(
        "gpt-"
    ):  # of the zero-bubble paper, which has sequences of 1024
        model = load_model(row["model"])
        shape = {"hidden": model.hidden, "heads": model.heads, "seq": 1024}
    if shape is None:
        return PER_HIDDEN, FOR_W // 2
    tokens = row["microbatch"] * shape["seq"]
    scores = PER_SCORE * shape["heads"] * shape["seq"]
    return tokens * (PER_HIDDEN * shape["hidden"] + scores), tokens * FOR_W * shape["hidden"]


# -- tables that the project has in other shapes ---------------------------------------------------


def _figure_15() -> Iterator[Setting]:
    block = {
        "paper": "pipeoffload",
        "trainer": "pipeoffload",
        "machine": A100,
        "costs": "estimated at the rates of a100-80gb, which were fitted to this figure's 10.5B and to two models of the zero-bubble paper",
        "unit": MFU,
        "memory_is": "activations",
        "kind": "figure_15",
    }
    cells: dict[tuple[str, int], list[Any]] = {}
    for cell in figure_15():
        if cell.outcome == "ran":
            cells.setdefault((cell.model, cell.seq), []).append(cell)
    for (model, seq), ran in cells.items():
        if len(ran) > 1:
            name = f"po15-{model.removeprefix('gpt-')}-{seq}"
            yield _setting(block, {"id": name, "model": model, "cells": ran})


def _of_figure_15(row: Mapping[str, Any]) -> Iterator[Run]:
    rates = load_machine("a100-80gb").rates
    for cell in row["cells"]:
        cell.replays.trace(cell.replays.machine.rates)  # built as in pipeoffload_models
        trace = cell.replays.trace(rates)
        profile = replace(trace.profile, execution="ideal")
        # MFU is proportional to the inverse of the time: at 1 ns it is what the cell's would be then
        time = mfu(trace.profile, 1, cell.setup.microbatches) / (cell.percent / 100)
        yield Run(cell.schedule, time, False, trace.schedule, profile, cell.gib, profile)


def _sliced() -> Iterator[Setting]:
    block = {
        "paper": "seq1f1b",
        "trainer": "seq1f1b",
        "machine": "A100 80GB (Seq1F1B)",
        "costs": "equal stages, backward twice the forward, scaled so that 1F1B's replay takes the measured time; slices of equal work",
        "compares": "slices",
        "assumed": ["equal stages"],
        "kind": "slices",
    }
    cells: dict[tuple[str, int, int], dict[str, float]] = {}
    tables = {table["id"]: table for table in published("seq1f1b")["tables"]}
    for name, table in tables.items():
        chunks = table.get("chunks", 1)
        for sequence, m, slices, rate, *_ in table["cells"]:
            if rate != "oom" and rate is not None:
                run = f"seq1f1b-i:chunks={chunks}" if chunks > 1 else "seq1f1b"
                whole = f"1f1b-i:chunks={chunks}" if chunks > 1 else "1f1b"
                text = whole if slices == 1 else f"{run}{',' if chunks > 1 else ':'}slices={slices}"
                key = (name.removesuffix("_interleaved"), sequence, m)
                cells.setdefault(key, {})[text] = rate
    for (name, sequence, m), rates in cells.items():
        table = tables[name]
        if len(rates) > 1 and "1f1b" in rates:
            yield _setting(
                block,
                {
                    "id": f"{name}-{sequence // 1024}k-m{m}",
                    "model": f"seq1f1b-{table['model']}",
                    "devices": table["pp"],
                    "microbatches": m,
                    "seconds": m * table["dp"] * sequence / 1000 / rates["1f1b"],
                    "throughput": rates,
                },
            )


def _of_slices(row: Mapping[str, Any]) -> Iterator[Run]:
    p, m = row["devices"], row["microbatches"]
    turn = round(1e9 * row["seconds"] / (m + p - 1) / 12) * 4  # a forward, ns
    stage = {"t_f_ns": turn, "t_b_ns": turn, "t_w_ns": turn, "act_bytes": PER_HIDDEN, "w_bytes": 0}
    profile = load_profile({"name": row["id"], "devices": p, "stages": stage})
    for name, rate in row["throughput"].items():
        schedule = build(name, profile, m)
        yield Run(name, 1 / rate, False, schedule, profile.for_shape(schedule.shape))
