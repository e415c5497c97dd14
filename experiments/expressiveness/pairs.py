"""Public pairs of a model and a cluster: published runs with a pipeline, with the layouts that were run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from experiments.published import published
from optpipe_sim.costs import estimate, load_machine
from optpipe_sim.profile import CostProfile

# microbatches; further ones are left out, which makes differences larger than they are with all of them
MOST, MOST_PER_DEVICE = 64, 4
ROOM = 0.05  # of the memory that driver and libraries leave: what plans leave free
# what `estimate` takes of a run, beside the split
OPTIONS = (
    "dtype", "exchange", "context", "etp", "flash", "sequence_parallel", "cuda_graphs", "grad_reduce_in_bf16",
    "accumulate_grads_in_fp32", "loss_fusion", "overlap",
)  # fmt: skip


LATER = ("nemo", "readme")  # sources that came after the table


class Pair(NamedTuple):
    """A model on a cluster: `layout` is what `estimate` takes, `microbatches` per replica are those published, `source` who published them."""

    name: str
    model: Any
    machine: str
    gpus: int
    layout: Mapping[str, Any]
    microbatches: int
    source: str

    @property
    def compared(self) -> int:
        """Return how many microbatches are compared."""
        pp: int = self.layout["pp"]
        return min(self.microbatches, MOST, MOST_PER_DEVICE * pp)

    def profile(self, execution: str | None = "ideal", **options: Any) -> CostProfile:
        """Estimate the profile with levels of recomputation, under 95 % of the machine's memory.

        Args:
            execution: how work is issued; None: as the pair says, or as the runs were that the machine's rates are fitted to.
            options: of `estimate`, beside the layout: chunks and placement, if there is more than one chunk.
        """
        machine = load_machine(self.machine)
        layout = {key: value for key, value in self.layout.items() if key != "pp"} | options
        devices = self.layout["pp"] * self.layout.get("tp", 1) * self.layout.get("cp", 1)
        layout |= {} if execution is None else {"execution": execution}
        made = estimate(self.model, machine, devices, levels=True, **layout)
        limit = int(machine.limit_bytes() * (1 - ROOM))
        return replace(made, memory_limit=(limit,) * made.devices)


def pairs() -> dict[str, Pair]:
    """Return every pair by its name; one per model, cluster, layout and length."""
    found: dict[str, Pair] = {}
    for pair in (*_runs(), *_experts(), *_pipeoffload(), *_zero_bubble()):
        found.setdefault(pair.name, pair)
    return found


def _runs() -> Iterator[Pair]:
    data = published("runs")
    for each in data["rows"]:
        row = {**data["sources"][each["source"]]["options"], **each}
        model = row["model"]
        shape = data["models"].get(model)
        if (
            row["source"] in LATER or row.get("pp", 1) == 1 or (shape and shape["layers"] < 32)
        ):  # no pipeline, or a model cut short
            continue
        split = {key: row.get(key, 1) for key in ("pp", "tp", "cp", "ep")}
        dp = row["gpus"] // (split["pp"] * split["tp"] * split["cp"])
        size = row["microbatch"]
        layout = {
            **split, "dp": dp, "zero": row.get("zero", 1) if dp * split["cp"] > 1 else 0, "seq": row["seq"],
            "microbatch": size, **{key: row[key] for key in OPTIONS if key in row},
        }  # fmt: skip
        name = _name(model, row["machine"], row["gpus"], layout)
        known = model if shape is None else {**shape, "name": model}
        m = row["global_batch"] // dp // size
        yield Pair(name, known, row["machine"], row["gpus"], layout, m, data["sources"][row["source"]]["title"])  # fmt: skip


def _experts() -> Iterator[Pair]:
    data = published("experts")
    for row in data["balance"]:
        run = dict(row["run"])
        tp, cp = run.get("tp", 1), run.get("cp", 1)
        pp = run["devices"] // (tp * cp)
        kept = {
            key: run[key] for key in ("tp", "cp", "ep", "dp", "zero", "seq", *OPTIONS) if key in run
        }
        layout = {"pp": pp, **kept}
        gpus = run["devices"] * run["dp"]
        yield Pair(_name(run["model"], run["machine"], gpus, layout), run["model"], run["machine"], gpus, layout, run["microbatches"], row["source"])  # fmt: skip


def _pipeoffload() -> Iterator[Pair]:
    data = published("pipeoffload")
    for row in data["rows"]:
        layout = {"pp": row["devices"], "seq": row["seq"], "dtype": data["options"]["dtype"]}
        name = _name(row["model"], data["machine"], row["devices"], layout)
        yield Pair(name, row["model"], data["machine"], row["devices"], layout, row["microbatches"], "arXiv 2503.01328, figure 15")  # fmt: skip


def _zero_bubble() -> Iterator[Pair]:
    data = published("zero_bubble")
    for key, what in (("rows", "table 4"), ("vshape", "ZB-V")):
        for row in data[key]:
            layout = {"pp": row["devices"], "microbatch": row["microbatch"], **data["options"]}
            name = _name(row["model"], data["machine"], row["devices"], layout)
            yield Pair(name, row["model"], data["machine"], row["devices"], layout, row["microbatches"], f"arXiv 2401.10241, {what}")  # fmt: skip


def _name(model: str, machine: str, gpus: int, layout: Mapping[str, Any]) -> str:
    """Name a pair; degrees of 1 are left out."""
    keys = [key for key in ("pp", "tp", "cp", "ep") if layout.get(key, 1) > 1]
    split = "-".join(f"{key}{layout[key]}" for key in keys)
    return f"{model}-{gpus}x{machine.removesuffix('-sxm')}-{split}-{layout['seq'] // 1024}k"
