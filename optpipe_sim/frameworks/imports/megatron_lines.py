"""The lines of a Megatron-LM log: runs with their arguments, and what each logged at an iteration.

Values count only if they are written whole, with the decimals that Megatron-LM writes, and where they
cannot belong to another rank or timer: what several processes wrote into one another, or what a
killed run left unfinished, is left out. Prefixes of launchers (``3: ``, ``[default0]:``) may precede a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...costs.megatron_arguments import argument_of, begins, lines_of, vocabulary_of

MIB = 2**20  # what Megatron-LM calls MB
WANTED = ("forward-compute", "backward-compute")
SLOWEST, LAST = -1, -2  # in place of a rank: the slowest one; the last one

_OF = r"iteration:?\s+(\d+)/\s*(?:\d+|infinity) \|"
# another one may begin in the same line; some forks write seconds, Primus the mean so far behind a slash
_ITERATION = re.compile(
    _OF + r"((?:(?!iteration:?\s+\d+/).)*?)elapsed time per iteration"
    r" \(?(?:ms\)?: (\d+\.\d)(?:/\d+\.\d)?|s\): (\d+\.\d+)) \|(.*)"
)
_ELAPSED = re.compile(_OF + r".*(elapsed time per iteration[^|]*)")
_KEYED = re.compile(r"(\w+)=\s*")  # a fork of Megatron-DeepSpeed writes consumed_samples=64
_CONSUMED = re.compile(r"consumed samples:\s+(\d+) \|")
_BATCH = re.compile(r"global batch size:\s+(\d+) \|")
_BETWEEN = re.compile(r"([a-z][\w/-]+) \.*: \((\d+\.\d\d), (\d+\.\d\d)\)")
_MOST = re.compile(r"([a-z][\w/-]+) \.+: (\d+\.\d\d)(?![\d.])")
_HEAD = re.compile(r"times? across ranks \(ms\)")
_TIMER = re.compile(r"(?:^|\s)([a-z][\w/-]+):\s*$")
_OF_RANK = re.compile(r"(?:^|\s)rank\s+(\d+): (\d+\.\d\d)(?![\d.])")
_OLD = re.compile(r"time \(ms\) \| ")  # until 2022: the last rank's timers in one line
_IN_OLD = re.compile(r" ([a-z][\w/-]+): (\d+\.\d\d)(?![\d.])")
_MEMORY = re.compile(
    r"\[Rank (\d+)\][^\[]*?memory \(MB\) \| allocated: (\d+\.\d+) \| max allocated: (\d+\.\d+) \|"
)


@dataclass
class Block:
    """What was logged at one iteration; None where it has no such line.

    Attributes:
        iteration: its number. `elapsed_ms`: the mean time of an iteration since the block before.
        batch: the global batch size. `consumed`: samples since the run began.
        timers: ms by name and rank. `names`: of all timers, in the order of the lines.
    """

    iteration: int | None = None
    elapsed_ms: float | None = None
    batch: int | None = None
    consumed: int | None = None
    timers: dict[tuple[str, int], float] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)


@dataclass
class Log:
    """One run of a log.

    Attributes:
        arguments: by name, as written. `blocks`: by iteration.
        memory: by rank, the bytes allocated after an iteration, and the peak until then.
        unread: the time of an iteration as a line has it that cannot be read; empty: all can.
    """

    arguments: Mapping[str, str] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    memory: dict[int, tuple[int, int]] = field(default_factory=dict)
    unread: str = ""

    def number(self, name: str, usual: int) -> int:
        """Return an argument as a whole number."""
        text = self.arguments.get(name, "")
        return int(text) if text.isdecimal() else usual

    @property
    def timed(self) -> list[Block]:
        """The iterations whose time is logged."""
        return [block for block in self.blocks if block.elapsed_ms is not None]

    @property
    def peak_bytes(self) -> int | None:
        """The peak of the fullest rank; None: not logged."""
        return max((most for _, most in self.memory.values()), default=None)

    def has(self, timer: str) -> bool:
        """Whether any block has this timer, of any rank."""
        return any(name == timer for block in self.blocks for name, _ in block.timers)


class Reader:
    """Reads line by line; `runs` grows with each start of the trainer."""

    def __init__(self) -> None:
        self.runs = [Log()]
        self._timer, self._rank = "", -1
        self._heads = 0  # since the last iteration; what comes after a second one is of a checkpoint or evaluation

    def line(self, text: str) -> None:
        """Read one line, which may hold what several processes wrote."""
        if begins(text):
            self.runs.append(Log({}))
        elif argument := argument_of(text):
            run = self.runs[-1]
            run.arguments = {**run.arguments, argument[0]: argument[1]}
        elif vocabulary := vocabulary_of(text):
            run = self.runs[-1]
            run.arguments = {**run.arguments, "vocab_size": vocabulary}
        for one in _MEMORY.finditer(text):
            sizes = (round(float(size) * MIB) for size in (one[2], one[3]))
            self.runs[-1].memory[int(one[1])] = tuple(sizes)  # type: ignore[assignment]
        if _HEAD.search(text):
            self._heads += 1
        if "elapsed_time_per_iteration_ms=" in text:
            text = _KEYED.sub(lambda key: f"{key[1].replace('_', ' ')}: ", text)
        if found := _ITERATION.search(text):
            elapsed_ms = float(found[3]) if found[3] else 1000 * float(found[4])
            consumed = _CONSUMED.search(found[2])
            self._iteration(
                Block(
                    int(found[1]),
                    elapsed_ms,
                    int(batch[1]) if (batch := _BATCH.search(found[5])) else None,
                    int(consumed[1]) if consumed else None,
                )
            )
        elif found := _ELAPSED.search(text):
            self.runs[-1].unread = found[2].strip()
        elif _OLD.search(text):
            for name, time in _IN_OLD.findall(text):
                self._time(name, LAST, time)
        elif found := _BETWEEN.search(text):
            self._time(found[1], SLOWEST, found[3])
        elif found := _MOST.search(text):
            self._time(found[1], SLOWEST, found[2])
        elif found := _OF_RANK.search(text):
            if int(found[1]) <= self._rank:  # the next timer's name is missing
                self._timer = ""
            self._rank = int(found[1])
            self._time(self._timer, self._rank, found[2])
        elif found := _TIMER.search(text):
            self._timer, self._rank = found[1], -1
            self._name(found[1])

    def _iteration(self, block: Block) -> None:
        """Begin a block; a number below the last one is another run with the same arguments."""
        number = block.iteration or 0
        self._timer, self._heads = "", 0
        run = self.runs[-1]
        last = run.blocks[-1].iteration if run.blocks else None
        if last is not None and number == last:
            return  # the same line, written twice
        if last is not None and number < last:
            run = Log(run.arguments)
            self.runs.append(run)
        run.blocks.append(block)

    def _time(self, name: str, rank: int, text: str) -> None:
        blocks, time = self.runs[-1].blocks, float(text)
        if rank < 0:
            self._name(name)
        if name not in WANTED:
            return
        if not blocks or (
            blocks[-1].iteration is None and blocks[-1].timers.get((name, rank), time) != time
        ):
            blocks.append(Block())  # there are no lines of iterations
        blocks[-1].timers.setdefault((name, rank), time)

    def _name(self, timer: str) -> None:
        if self.runs[-1].blocks and self._heads < 2:
            self.runs[-1].blocks[-1].names.append(timer)


def read_lines(text: str) -> list[Log]:
    """Return the runs of a log that have timers or arguments, the last one last."""
    reader = Reader()
    for line in lines_of(text):
        reader.line(line)
    found = [run for run in reader.runs if run.arguments or run.blocks or run.memory]
    return found or [Log()]
