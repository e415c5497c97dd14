"""The page and the picture of `claims`: what the cells say, whichever way it falls."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from ..files import write_text
from ..plot.claims import claims_chart
from ..plot.style import save
from .cells import Row, provenance, to_markdown
from .claims_cases import AMPLE, SCARCE

Setting = tuple[str, str, str]  # model, GB/s, share of 1F1B's activation memory
Cells = dict[Setting, dict[str, Row]]
OURS = ("AdaOffload", "auto", "AdaOffload, same v", "auto, same v")
BASELINES = ("no offload", "PO-H", "PO-F", "PO best")
ENGINES = ("AdaOffload", "search", "CP-SAT", "MILP", "auto")
RANGES: dict[str, tuple[str, ...]] = {"scarce": SCARCE, "half": ("0.5",), "ample": AMPLE}


def by_setting(rows: Sequence[Row]) -> Cells:
    """The rows of each setting by method."""
    cells: Cells = {}
    for row in rows:
        where = row["model"], row["gb_per_s"], row["share"]
        cells.setdefault(where, {})[row["method"]] = row
    return cells


def fits(row: Row | None) -> bool:
    return row is not None and row["fits"] == "yes"


def faster(ours: Row, other: Row) -> float:
    """How much more throughput: 0.2 for 20 % more."""
    return int(other["makespan_ns"]) / int(ours["makespan_ns"]) - 1


def less_idle(ours: Row, other: Row) -> float:
    """How much less idle time: 0.5 for half of it; negative for more."""
    return 1 - int(ours["idle_ns"]) / max(1, int(other["idle_ns"]))


def compared(
    cells: Cells, ours: str, baseline: str, shares: Sequence[str], how: Callable[[Row, Row], float]
) -> list[float]:
    """`how` in every setting of these limits where both fit."""
    return [
        how(methods[ours], methods[baseline])
        for (_, _, share), methods in cells.items()
        if share in shares and fits(methods.get(ours)) and fits(methods.get(baseline))
    ]


def page(rows: Sequence[Row], path: str | os.PathLike[str]) -> Path:
    """Write the page for people."""
    cells = by_setting(rows)
    lines = [
        "# OptPipe's claims, put to the test at equal memory",
        "",
        "Regenerate with `python -m optpipe_sim.study.claims --fresh`. Limits are what is static plus a"
        " share of the activation memory that 1F1B takes; all schedules are replayed under the limit,"
        " with the costs of the published profiles and one copy engine each way. *no offload* is the"
        " fastest published schedule without offloading that fits, of any number of chunks; *PO best* the"
        " fastest PipeOffload that fits, of 1 to 3 chunks, every number of them offloaded and five"
        " group sizes; *same v* is OptPipe with as many chunks as that (3 where no PipeOffload"
        " fits), otherwise it has one. AdaOffload is the greedy alone, auto all engines together for"
        " 4 s. Idle time is that of the busiest device within the makespan (flush).",
        "",
        provenance(rows),
        "",
        "![throughput over memory](optpipe_claims.png)",
        "",
        "## Finding",
        "",
        finding(cells),
    ]
    for title, how in (("More throughput than", faster), ("Less idle time than", less_idle)):
        lines += [
            "",
            f"## {title}",
            "",
            "Median (worst to best, number of settings where both fit).",
        ]
        lines += ["", *_gains(cells, how)]
    lines += ["", "## All settings: ms per iteration, `-` where it does not fit", ""]
    lines += _times(cells)
    lines += ["", "## Engines, one chunk: ms above the best bound, in % of it", ""]
    lines += _engines(cells)
    return write_text(path, "\n".join(lines) + "\n")


def finding(cells: Cells) -> str:
    """What the numbers say about each claim, in a paragraph."""
    sentences = [_idle_claim(cells)]
    for name, shares, claimed in (("scarce", SCARCE, 0.2), ("ample", AMPLE, 0.3)):
        sentences.append(_throughput_claim(cells, name, shares, claimed))
    alone = [
        methods
        for methods in cells.values()
        if not fits(methods.get("no offload"))
        and any(fits(methods.get(key)) for key in ("auto", "auto, same v"))
    ]
    sentences.append(
        "*Models become trainable that fit no schedule without offloading:* so in"
        f" {len(alone)} of {len(cells)} settings; in {sum(fits(m.get('PO best')) for m in alone)} of"
        " them some PipeOffload fits as well."
    )
    return " ".join(sentences)


def _idle_claim(cells: Cells) -> str:
    said = []
    rivals = {"no offload": "schedule without offloading", "PO best": "PipeOffload"}
    for ours, text in (("auto, same v", "the same chunks"), ("auto", "one chunk")):
        parts = []
        for base, rival in rivals.items():
            idle = compared(cells, ours, base, [*SCARCE, "0.5", *AMPLE], less_idle)
            if idle:
                parts.append(
                    f"{_signed(-median(idle))} idle time in the median against the best {rival}"
                    f" that fits ({_signed(-max(idle))} to {_signed(-min(idle))}; at least halved in"
                    f" {sum(cut >= 0.5 for cut in idle)} of {len(idle)}, more idle time in"
                    f" {sum(cut < 0 for cut in idle)})"
                )
        if parts:
            said.append(f"with {text} OptPipe has {' and '.join(parts)}")
    return (
        f"*Up to 50 % less idle time at equal memory:* {'; '.join(said) or 'nothing to compare'}."
    )


def _throughput_claim(cells: Cells, name: str, shares: Sequence[str], claimed: float) -> str:
    settings = [methods for (_, _, share), methods in cells.items() if share in shares]
    where, one, more = (
        sum(fits(methods.get(key)) for methods in settings)
        for key in ("PO best", "auto", "auto, same v")
    )
    parts = [
        f"*Over {claimed:.0%} more throughput than PipeOffload where memory is {name}*"
        f" ({' and '.join(shares)} of 1F1B's): some PipeOffload fits in {where} of {len(settings)}"
        f" settings, OptPipe with one chunk in {one} and with more in {more}"
    ]
    for key, text in (("auto", "one chunk"), ("auto, same v", "the same chunks")):
        gains = compared(cells, key, "PO best", shares, faster)
        if gains:
            parts.append(
                f"with {text} OptPipe has {_signed(median(gains))} throughput in the median"
                f" ({_signed(min(gains))} to {_signed(max(gains))}; over {claimed:.0%} more in"
                f" {sum(gain > claimed for gain in gains)} of {len(gains)})"
            )
    named = [
        gain
        for base in ("PO-H", "PO-F")
        for gain in compared(cells, "auto, same v", base, shares, faster)
    ]
    if named:
        parts.append(
            "against PO-H and PO-F as published (two chunks, group size 1) the latter has"
            f" {_signed(median(named))} in the median, at most {_signed(max(named))}"
        )
    return "; ".join(parts) + "."


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _gains(cells: Cells, how: Callable[[Row, Row], float]) -> list[str]:
    rows = []
    for base in BASELINES:
        for ours in OURS:
            row = {"base": base, "ours": ours}
            for name, shares in RANGES.items():
                gains = compared(cells, ours, base, shares, how)
                row[name] = (
                    f"{_signed(median(gains))} ({_signed(min(gains))} to"
                    f" {_signed(max(gains))}, {len(gains)})"
                    if gains
                    else "none"
                )
            rows.append(row)
    head = {"base": "than", "ours": "OptPipe by"}
    head |= {name: f"{name} ({', '.join(shares)})" for name, shares in RANGES.items()}
    return to_markdown(head, rows)


def _times(cells: Cells) -> list[str]:
    rows = []
    for (model, speed, share), methods in cells.items():
        row = {"model": model, "speed": speed, "share": share}
        for method in (*BASELINES, *OURS):
            found = methods.get(method)
            row[method] = f"{int(found['makespan_ns']) / 1e6:.1f}" if found and fits(found) else "-"
        for method in ("no offload", "PO best"):
            found = methods.get(method)
            if found and fits(found):
                row[method] += f" {found['schedule']}"
        same = methods.get("auto, same v")
        row["v"] = same["chunks"] if same else ""
        rows.append(row)
    head = {"model": "model", "speed": "GB/s", "share": "limit", **{key: key for key in BASELINES}}
    head |= {"AdaOffload": "AdaOffload", "auto": "auto", "v": "v"}
    head |= {key: key for key in OURS[2:]}
    return to_markdown(head, rows)


def _engines(cells: Cells) -> list[str]:
    rows = []
    for (model, speed, share), methods in cells.items():
        found = {key: methods[key] for key in ENGINES if fits(methods.get(key))}
        if not found:
            continue
        best = max(found.values(), key=lambda row: int(row["bound_ns"]))
        bound = int(best["bound_ns"])
        row = {"model": model, "speed": speed, "share": share, "by": best["by"]}
        row["bound"] = f"{bound / 1e6:.1f}"
        for key, one in found.items():
            row[key] = f"{100 * (int(one['makespan_ns']) / bound - 1):.2f}"
            row[key] += "=" if one["status"] == "optimal" else ""
        rows.append(row)
    head = {"model": "model", "speed": "GB/s", "share": "limit", "bound": "bound ms", "by": "by"}
    lines = to_markdown(head | {key: key for key in ENGINES}, rows)
    return [*lines, "", "`=`: proven optimal by that engine within its time."]


def draw(rows: Sequence[Row], path: str | os.PathLike[str]) -> Path:
    """Draw what share of the time devices compute, over the limit: a panel per model and
    bandwidth."""
    curves: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for (model, speed, share), methods in by_setting(rows).items():
        panel = curves.setdefault((model, speed), {})
        for name in ("no offload", "PO-F", "PO best", "AdaOffload", "auto", "auto, same v"):
            found = methods.get(name)
            if found and fits(found):
                makespan = int(found["makespan_ns"])
                panel.setdefault(name, []).append(
                    (float(share), 1 - int(found["idle_ns"]) / makespan)
                )
    titles = {key: f"{key[0]}, {key[1]} GB/s" for key in curves}
    return save(claims_chart({titles[key]: panel for key, panel in curves.items()}), path)
