"""What `confirm_schedules` found on one version of torch or several: kept in files, and as a page."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from optpipe_sim.files import read_text, write_text, write_together

ROOT = Path(__file__).parents[1]
LOSS_TOLERANCE = 1e-6
Key = tuple[str, int, str]  # model, p, schedule; or FAULT, p, which one
FAULT = "fault"


@dataclass(frozen=True)
class Run:
    """One schedule with one model on p devices.

    Attributes:
        bitwise, rounded: of the `parameters`, how many gradients are equal to plain autograd's, and how many
            others are as close to fp64; `relative`: the largest difference, of the largest entry.
        loss: over the loss of plain autograd.
        peak: the largest of a rank, of the predicted one, op by op; `above`: whether one is above it by more than
            the losses; `ranks_peak`: in a process per rank, with messages that their receiver has not taken yet.
        failed: the line that it ended with, if it did not run.
    """

    model: str
    p: int
    schedule: str
    parameters: int = 0
    bitwise: int = 0
    rounded: int = 0
    relative: float = 0.0
    loss: float = 1.0
    peak: float = 0.0
    above: bool = False
    ranks_peak: float = 0.0
    failed: str | None = None

    @property
    def key(self) -> Key:
        return self.model, self.p, self.schedule

    @property
    def equal(self) -> bool:
        """Every gradient bit by bit."""
        return self.failed is None and self.bitwise == self.parameters

    @property
    def good(self) -> bool:
        """As predicted."""
        same = self.bitwise + self.rounded == self.parameters
        return self.failed is None and same and not self.above and self.loss_is_equal

    @property
    def loss_is_equal(self) -> bool:
        return math.isclose(self.loss, 1.0, rel_tol=LOSS_TOLERANCE)

    @property
    def text(self) -> str:
        if self.failed is not None:
            return f"FAILED: {self.failed}"
        if self.equal:
            how = "="
        elif self.bitwise + self.rounded == self.parameters:
            how = f"≈ ({self.relative:.0e})"
        else:
            how = f"OFF by {self.relative:.0e}"
        off = "" if self.loss_is_equal else f" LOSS x {self.loss:.6f}"
        return f"{how}{off} {self.peak:.1%}{' ABOVE' * self.above} ({self.ranks_peak:.0%})"


@dataclass(frozen=True)
class Fault:
    """What was said of a fault (None: nothing, the schedule ran), and how many processes were left."""

    p: int
    fault: str
    said: str | None
    left: int

    @property
    def text(self) -> str:
        said = "NOTHING: it ran" if self.said is None else f"`{self.said}`"
        return f"{said}; {self.left} processes left"

    @property
    def good(self) -> bool:
        return self.said is not None and "\n" not in self.said and not self.left


@dataclass(frozen=True)
class Found:
    """All that was found with one version of torch; `facts`: versions and processor, as the page names them."""

    torch: str
    facts: str
    date: str
    seconds: float
    runs: tuple[Run, ...]
    faults: tuple[Fault, ...]

    @classmethod
    def read(cls, data: dict[str, Any]) -> Found:
        runs, faults = (
            tuple(kind(**one) for one in data[key])
            for kind, key in ((Run, "runs"), (Fault, "faults"))
        )
        return cls(**{**data, "runs": runs, "faults": faults})

    @property
    def good(self) -> bool:
        return all(one.good for one in (*self.runs, *self.faults))


class Kept:
    """A folder with a file per run and per fault: several processes may fill it.

    Args:
        facts: what was found with others, or by other code, does not count.
    """

    def __init__(self, root: Path, facts: str) -> None:
        digest = hashlib.sha256(facts.encode())
        files = [*(ROOT / "optpipe_sim").rglob("*.py"), *ROOT.glob("benchmarks/*schedule*.py")]
        for path in sorted(files):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
        self.folder = root / digest.hexdigest()[:16]

    def get(self, key: Key) -> tuple[Any, float] | None:
        """Return what was found and the seconds that it took; None if it is not known, or failed."""
        path = self._path(key)
        if not path.exists():
            return None
        data = json.loads(read_text(path))
        found = (Fault if key[0] == FAULT else Run)(**data["found"])
        return None if getattr(found, "failed", None) else (found, data["seconds"])

    def put(self, key: Key, found: Run | Fault, seconds: float) -> None:
        write_text(self._path(key), json.dumps({"found": asdict(found), "seconds": seconds}))

    def found(self, torch: str, facts: str, date: str, wanted: Sequence[Key]) -> Found:
        """Return all of these, as they were found."""
        have = [json.loads(read_text(self._path(key))) for key in wanted]
        runs = tuple(
            Run(**one["found"]) for key, one in zip(wanted, have, strict=True) if key[0] != FAULT
        )
        faults = tuple(
            Fault(**one["found"]) for key, one in zip(wanted, have, strict=True) if key[0] == FAULT
        )
        return Found(torch, facts, date, sum(one["seconds"] for one in have), runs, faults)

    def _path(self, key: Key) -> Path:
        return self.folder / f"{'-'.join(map(str, key)).replace(' ', '-')}.json"


def publish(stem: str, found: Found) -> str:
    """Write STEM.json, where other versions of torch keep what they found, and STEM.md; return the page."""
    path = Path(f"{stem}.json")
    every = [Found.read(one) for one in json.loads(read_text(path))] if path.exists() else []
    every = [found, *(one for one in every if one.torch != found.torch)]
    every.sort(key=lambda one: one.torch, reverse=True)
    text = page(every)
    data = json.dumps([asdict(one) for one in every], indent=1) + "\n"
    write_together({path: data.encode(), f"{stem}.md": text.encode()})
    return text


def page(every: Sequence[Found]) -> str:
    """A section per version of torch: a row per schedule, and what faults led to."""
    lines = [
        "# Every schedule on CPU ranks",
        "",
        "**No GPU took part.** A process per device over gloo, real stages, fp32, 2p microbatches; `optimised` was found under"
        " 60 % of 1F1B's activations. Each cell: gradients equal to plain"
        " autograd's bit by bit (`=`), or as close to fp64 as those are (`≈`, and the largest difference, of the largest"
        " entry); the largest peak of a rank, of the predicted one, with one op after the other (none may be above it by more"
        " than the losses); and in parentheses the same in a process per rank, where messages that a rank has sent are held"
        " until the other takes them.",
    ]
    for found in every:
        lines += ["", f"## torch {found.torch}", "", *section(found)]
    return "\n".join(lines) + "\n"


def section(found: Found) -> list[str]:
    """The lines of one version of torch."""
    runs = {run.key: run for run in found.runs}
    models = list(dict.fromkeys(run.model for run in found.runs))
    columns = sorted(
        dict.fromkeys(run.key[:2] for run in found.runs), key=lambda key: models.index(key[0])
    )
    minutes = f"{found.seconds / 60:.1f} minutes"
    lines = [
        f"{found.facts}; {found.date}, {minutes}.",
        "",
        "| schedule | " + " | ".join(f"{model}, p = {p}" for model, p in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for name in dict.fromkeys(run.schedule for run in found.runs):
        row = [runs.get((*column, name)) for column in columns]
        lines.append(f"| {name} | {' | '.join(one.text if one else '' for one in row)} |")
    good, equal = (sum(getattr(run, what) for run in found.runs) for what in ("good", "equal"))
    lines += [
        "",
        f"{good} of {len(found.runs)} runs are as predicted; {equal} of them bit by bit.",
        "",
        "| p | fault | the one line | processes left |",
        "|--:|---|---|--:|",
    ]
    for one in found.faults:
        said = "NOTHING: it ran" if one.said is None else f"`{one.said}`"
        lines.append(f"| {one.p} | {one.fault} | {said} | {one.left} |")
    return lines
