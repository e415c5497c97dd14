"""Write the executions that come out of the experiment's table into the package: `python -m experiments.ranking.ship`.

The file of a trainer on a machine has the fit to all settings of the two; that of Megatron-LM the fit to everything, as all of
these trainers are its forks. Errors are those on settings that were left out: other models of a trainer and machine, other
papers for Megatron-LM.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.ranking.summary import Row, by_way, group, half_width
from optpipe_sim.files import write_text
from optpipe_sim.study.tables import load_table

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "optpipe_sim" / "data" / "executions"
A100 = "A100 SXM 80GB, nodes of 8, RoCE"
HEADER = """\
# Written by experiments/ranking/ship.py from results/ranking.csv, in which every number is made again.
# fitted_to: settings of that table, never quoted as accuracy. error: half-widths that hold 80 % of the errors on settings that the fit
# had not seen; common: of times, what all schedules share (it cancels); between: of the ratio of two schedules' times.
"""


class Shipped(NamedTuple):
    """A file: what it says of itself; whose rows it takes; from which ways the fit and the errors come; whether its iterations
    chain; whether the trainer can run a forward and a backward as one op, on several chunks."""

    name: str
    source: str
    mine: Callable[[Row], bool]
    fit: tuple[str, str]
    left_out: tuple[str, str]
    chained: bool = False
    pairs: bool = False


def _ran(trainer: str, machine: str) -> Callable[[Row], bool]:
    return lambda row: (row["trainer"], row["machine"]) == (trainer, machine)


SHIPPED = (
    Shipped(
        "zero-bubble-a100",
        "the zero-bubble trainer (a fork of Megatron-LM) on A100s, nodes of 8 with RoCE: arXiv 2401.10241, tables 4, 6, 10 and 12;"
        " arXiv 2405.15362, figure 7. Its optimizer is post-validated, so that iterations chain",
        _ran("zero-bubble", A100),
        ("fitted", "others"),
        ("fitted", "model"),
        chained=True,
    ),
    Shipped(
        "adaptis-h800",
        "AdaPtis' LLaMA runs on H800s with tensor parallelism 1 to 4: github.com/Sullivan-24/PipelineSimulator, commit"
        " 5319eab0648cdfade06a2cfea062918cc44b61e7, graphs/e2e_data.py. Two models, four settings: little to go by;"
        " the time per op is the longest that was tried, and may stand for collectives of tensor parallelism that nothing hides",
        _ran("adaptis", "H800"),
        ("fitted", "others"),
        ("fitted", "model"),
    ),
    Shipped(
        "megatron-lm",
        "Megatron-LM and its forks, on A100s, H800s, MI300s and MI355s: all settings of results/ranking.csv with published or assumed"
        " op times. Plain 1F1B ends each exchange in a synchronisation of the host",
        lambda row: True,
        ("fitted", "nothing"),
        ("fitted", "paper"),
        pairs=True,
    ),
    Shipped(
        "megatron-lm-overlap",
        "as megatron-lm, where messages of interleaved schedules do not block their sender (overlap_p2p_comm): what the same settings"
        " then say of ops. Which of the two a run had, the sources do not say",
        lambda row: True,
        ("overlapped", "nothing"),
        ("overlapped", "paper"),
        pairs=True,
    ),
    Shipped(
        "pipeoffload-a100",
        "the PipeOffload trainer (a fork of the zero-bubble one) on A100s, nodes of 8 with RoCE: arXiv 2503.01328, figure 15. Its op times"
        " are not published: with those that are estimated no execution is better than the ideal",
        _ran("pipeoffload", A100),
        ("fitted", "others"),
        ("fitted", "model"),
    ),
)


def text(shipped: Shipped, rows: Sequence[Row]) -> str:
    """Return the file."""
    own = [row for row in rows if shipped.mine(row)]
    other = "figure 15" if group(own[0]) != "figure 15" else ""
    ways = by_way(row for row in own if group(row) not in ("slices", "traces", other))
    fitted = ways[shipped.fit]
    assert len(fitted) == fitted[0]["settings_seen"]
    one = fitted[0]
    left = [row for row in ways[shipped.left_out] if group(row) in ("schedules", "figure 15")]
    known = [row["error"] for row in left if row["error"] is not None]
    if not known:  # none of its own has a time to compare: those of other papers
        other_papers = by_way(rows)["fitted", "paper"]
        known = [
            row["error"]
            for row in other_papers
            if row["error"] is not None and group(row) == "schedules"
        ]
    span = "span" if shipped.chained else "makespan"
    op, split = one["op_us"], one["split"]
    several = ", pairs: yes" if shipped.pairs else ""
    lines = [
        f"name: {shipped.name}",
        f"source: {_quoted(shipped.source)}",
        f"fitted_to: [{', '.join(row['setting'] for row in fitted)}]",
        "families:",
        f"  plain: {{links: blocking, op_us: {op}}}",
        f"  interleaved: {{links: {one['interleaved_links']}, op_us: {op}{several}}}",
        *(
            f"  {family}: {{links: {one['split_links']}, op_us: {op}, split: {split}, iteration: {span}{more}}}"
            for family, more in (("split", ""), ("split-interleaved", several))
        ),
        "error:",
        f"  common: {half_width(known):.3f}",
        f"  between: {half_width(_differences(left)):.3f}",
    ]
    return HEADER + "\n".join(lines) + "\n"


def _differences(rows: Sequence[Row]) -> list[float]:
    return [error for row in rows for error in row["difference_errors"]]


def _quoted(sentence: str) -> str:
    return '"' + sentence.replace('"', "'") + '"'


def main() -> int:
    """Write every file."""
    rows: list[dict[str, Any]] = load_table(ROOT / "results", "ranking")
    for shipped in SHIPPED:
        path = FOLDER / f"{shipped.name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text(shipped, rows))
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
