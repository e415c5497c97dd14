"""Logs of Megatron-LM, read back: of several versions, launchers and options, whole and damaged. A number
that comes back is right; else the log is refused."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron_runs import log_of

from optpipe_sim import build, load_profile, simulate
from optpipe_sim.errors import OptPipeError
from optpipe_sim.frameworks.imports.megatron_log import LogProfile, read_log
from optpipe_sim.frameworks.megatron.family import NO_MODEL, plan_for
from optpipe_sim.profile.writing import profile_to_json, save_profile

ARGUMENTS = """
------------------------ arguments ------------------------
  data_parallel_size .............................. 2
  global_batch_size ............................... 16
  log_interval .................................... 1
  micro_batch_size ................................ 1
  num_layers ...................................... 16
  pipeline_model_parallel_size .................... 4
  recompute_granularity ........................... None
  virtual_pipeline_model_parallel_size ............ None
  world_size ...................................... 8
-------------------- end of arguments ---------------------
"""
ITERATION = (
    " [2026-01-01 00:00:00] iteration {0:8d}/      10 | consumed samples: 16 | elapsed time per"
    " iteration (ms): {1:.1f} | throughput per GPU (TFLOP/s/GPU): 180.2 | lm loss: 1.0E+01 |"
)
SLOWEST = """
(min, max) time across ranks (ms):
    forward-backward ...............................: (320.00, 321.00)
    forward-compute ................................: (70.00, {0:.2f})
    backward-compute ...............................: (150.00, {1:.2f})
    optimizer ......................................: (3.00, 3.10)
"""
SLOW = [SLOWEST.format(at, 160) for at in (78, 79, 80)]
EACH = """times across ranks (ms):
  forward-compute:
     rank  0: 80.00
     rank  2: 88.00
     rank  4: 96.00
     rank  6: 104.00
  backward-compute:
     rank  0: 160.00
     rank  2: 168.00
     rank  4: 176.00
     rank  6: 184.00
"""
MEMORY = "[Rank {0}] (after 1 iterations) memory (MB) | allocated: {1:.1f} | max allocated: {2:.1f} | reserved: 1.0 | max reserved: 1.0\n"


def log_file(folder: Path, *parts: str) -> Path:
    path = folder / "train.log"
    path.write_text("".join(parts))
    return path


def test_a_log_with_the_slowest_rank(tmp_path: Path) -> None:
    # the first iteration warms up
    rounds = [
        ITERATION.format(at, ms) for at, ms in ((1, 900.0), (2, 330.0), (3, 332.0), (4, 331.0))
    ]
    timers = [SLOWEST.format(800, 1000), *(SLOWEST.format(80, 160),) * 3]
    found = read_log(log_file(tmp_path, ARGUMENTS, *map("".join, zip(rounds, timers, strict=True))))
    profile = found.profile
    assert (profile.devices, profile.chunks, found.microbatches) == (4, 1, 8)
    assert found.iteration_ns == 331_000_000
    for cost in profile.stages:
        assert (cost.t_f_ns, cost.fused_ns, cost.splits) == (10_000_000, 20_000_000, False)
    assert simulate(build("1f1b", profile, 8), profile).makespan_ns == (8 + 3) * 30_000_000
    text = " ".join(found.unread)
    assert "t_comm: not in a log" in text
    assert "those of the slowest rank are used for all" in text
    assert "memory: the log has no lines of memory" in text


def test_a_log_with_times_and_memory_of_each_rank(tmp_path: Path) -> None:
    memory = [MEMORY.format(rank, 1000, 1000 + 400 - 50 * rank) for rank in (0, 2, 4, 6)]
    each = [ITERATION.format(at, 330.0) + "\n" + EACH for at in (1, 2, 3)]
    found = read_log(log_file(tmp_path, ARGUMENTS, *each, *memory))
    stages = found.profile.stages
    assert [cost.t_f_ns for cost in stages] == [10_000_000, 11_000_000, 12_000_000, 13_000_000]
    assert [cost.static_bytes for cost in stages] == [1000 * 2**20] * 4
    # rank r holds 4 - r activations at its peak
    assert [cost.act_bytes for cost in stages] == [100 * 2**20] * 4
    trace = simulate(build("1f1b", found.profile, 8), found.profile)
    assert trace.peak_bytes == tuple((1400 - 100 * rank) * 2**20 for rank in range(4))
    assert not any("slowest" in sentence for sentence in found.unread)


def test_chunks_of_a_log(tmp_path: Path) -> None:
    arguments = ARGUMENTS.replace("parallel_size ............ None", "parallel_size ............ 2")
    found = read_log(log_file(tmp_path, arguments, *SLOW))
    assert (found.profile.chunks, found.iteration_ns) == (2, None)
    assert {cost.t_f_ns for cost in found.profile.stages} == {5_000_000}
    recomputing = arguments.replace("granularity ........................... None",
                                    "granularity ........................... full")  # fmt: skip
    found = read_log(log_file(tmp_path, recomputing, *SLOW))
    assert any(sentence.startswith("recomputation: ") for sentence in found.unread)


def test_a_profile_of_a_log_keeps_the_model_and_the_sizes(tmp_path: Path) -> None:
    text = log_of({"recompute_granularity": "selective", "overlap_param_gather": True})
    lines = [line + SLOW[0] if "elapsed" in line else line + "\n" for line in text.splitlines()]
    profile = read_log(log_file(tmp_path, *lines)).profile
    sizes = {"devices": 32, "tp": 8, "cp": 1, "ep": 1, "dp": 2, "zero": 1}
    assert profile.meta["parallel"] == sizes
    plan, notes = plan_for(build("1f1b", profile, 32), profile)
    words = plan.options()
    assert NO_MODEL not in notes
    expected = {
        "hidden-size": 8192, "num-layers": 80, "tensor-model-parallel-size": 8, "bf16": True, "global-batch-size": 64,
        "overlap-param-gather": True, "recompute-granularity": "selective", "recompute-modules": ["core_attn"],
    }  # fmt: skip
    assert {key: dict(words)[key] for key in expected} == expected


def test_logs_that_say_too_little(tmp_path: Path) -> None:
    with pytest.raises(OptPipeError, match="no timer forward-compute; a run logs it with --timing"):
        read_log(log_file(tmp_path, ARGUMENTS, ITERATION.format(1, 330.0)))
    with pytest.raises(OptPipeError, match="no argument pipeline_model_parallel_size"):
        read_log(log_file(tmp_path, SLOWEST.format(80, 160)))
    few = ARGUMENTS.replace("global_batch_size ............................... 16", "")
    with pytest.raises(OptPipeError, match="no argument global_batch_size; expected"):
        read_log(log_file(tmp_path, few, SLOWEST.format(80, 160)))
    odd = ARGUMENTS.replace(
        "............................... 16", "............................... 15"
    )
    with pytest.raises(OptPipeError, match="15 is not a multiple of 2"):
        read_log(log_file(tmp_path, odd, *SLOW))


# -- as the trainer writes them -------------------------------------------------------------------


@dataclass(frozen=True)
class Trainer:
    """Writes what Megatron-LM does: its timers add up over microbatches and iterations, and are divided by
    the interval between two logged iterations, even where fewer are in them.

    Attributes:
        first_too: versions since 0.16 also log the first iteration, and go on adding.
        option: of the timers. `strides`: from the rank of a stage to that of the next one.
        warming: how much longer the first iteration takes.
    """

    p: int = 4
    v: int = 1
    m: int = 8
    world: int = 8
    interval: int = 10
    start: int = 1
    first_too: bool = True
    option: str = "all"
    stride: int = 2
    prefix: str = ""
    warming: float = 6.0
    extra: tuple[tuple[str, str], ...] = ()

    def times_ms(self, rank: int) -> tuple[float, float]:
        """Of F and B of one microbatch of one chunk."""
        stage = min(rank // self.stride % self.p, self.p - 1)
        return 10.0 + stage, 20.0 + 2 * stage

    @property
    def iteration_ms(self) -> float:
        f, b = self.times_ms((self.p - 1) * self.stride)
        return (self.m * self.v + self.p) * (f + b) + 7.0

    def arguments(self) -> Iterator[str]:
        facts = {
            "data_parallel_size": self.world // self.p, "global_batch_size": self.m * self.world // self.p,
            "log_interval": self.interval, "micro_batch_size": 1, "num_layers": 16,
            "pipeline_model_parallel_size": self.p, "recompute_granularity": None,
            "virtual_pipeline_model_parallel_size": None if self.v == 1 else self.v,
            "world_size": self.world, **dict(self.extra),
        }  # fmt: skip
        yield "------------------------ arguments ------------------------"
        for name, value in sorted(facts.items()):
            yield f"  {name} {'.' * (48 - len(name))} {value}"
        yield "-------------------- end of arguments ---------------------"
        yield "(min, max) time across ranks (ms):"
        yield "    model-and-optimizer-setup ......................: (1345.37, 1359.59)"

    def lines(self, iterations: int) -> list[str]:
        found = [*self.arguments(), "training ..."]
        seen: list[float] = []  # of each iteration since the timers began: how much longer
        for at in range(self.start, self.start + iterations):
            first = at == self.start
            seen.append(self.warming if first else 1.0)
            if at % self.interval == 0 or (first and self.first_too):
                found += self.block(at, seen)
                if not (first and self.first_too):
                    seen = []
            if at % (2 * self.interval) == 0 and self.option != "old":
                found.append("(min, max) time across ranks (ms):")
                found.append(
                    "    evaluate .......................................: (3099.51, 3100.04)"
                )
                found.append(
                    f" validation loss at iteration {at} | lm loss value: 1.0E+01 | lm loss PPL: 2.0E+04 |"
                )
        return [self.prefix + line for line in found]

    def block(self, at: int, seen: list[float]) -> Iterator[str]:
        batch = self.m * self.world // self.p
        yield (
            f" [2026-03-01 10:00:00.000000] iteration {at:8d}/     500 | consumed samples: {at * batch:12d} |"
            f" elapsed time per iteration (ms): {self.iteration_ms * sum(seen) / len(seen):.1f} |"
            f" learning rate: 1.000000E-05 | global batch size: {batch:5d} | lm loss: 1.1E+01 | loss"
            " scale: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
        for stage in range(self.p):
            yield (
                f"[Rank {stage * self.stride}] (after {at} iterations) memory (MB) | allocated: 1000.00"
                f" | max allocated: {1000 + 100 * (self.p - stage)}.00 | reserved: 1.00 | max reserved: 1.00"
            )
        share = sum(seen) / self.interval
        times = [self.times_ms(rank) for rank in range(self.world)]
        named = zip(("forward-compute", "backward-compute"), zip(*times, strict=True), strict=True)
        sums = {name: [share * self.m * self.v * ms for ms in each] for name, each in named}
        sums = {"batch-generator": [share] * self.world, **sums, "forward-recv": [9.0] * self.world}
        if self.option == "old":
            yield "time (ms) | " + " | ".join(f"{name}: {ms[-1]:.2f}" for name, ms in sums.items())
            return
        yield {
            "all": "times across ranks (ms):", "max": "max time across ranks (ms):",
            "minmax": "(min, max) time across ranks (ms):",
        }[self.option]  # fmt: skip
        for name, ms in sums.items():
            dotted = f"    {(name + ' ').ljust(48, '.')}: "
            if self.option == "minmax":
                yield f"{dotted}({min(ms):.2f}, {max(ms):.2f})"
            elif self.option == "max":
                yield f"{dotted}{max(ms):.2f}"
            else:
                yield f"  {name}:"
                for rank, time in enumerate(ms):
                    yield f"     rank {rank:2d}: {time:.2f}"

    def right(self, found: LogProfile) -> bool:
        """Whether all that was read is what the run did."""
        whose = [stage * self.stride for stage in range(self.p)]
        if self.option != "all":
            whose = [self.world - 1] * self.p
        wanted = [self.times_ms(whose[stage % self.p]) for stage in range(self.p * self.v)]
        return (found.profile.devices, found.profile.chunks, found.microbatches) == (
            self.p, self.v, self.m,
        ) and all(
            abs(ms / was - 1) < 1e-3
            for cost, times in zip(found.profile.stages, wanted, strict=True)
            for ms, was in zip((cost.t_f_ns / 1e6, cost.fused_ns / 1e6), times, strict=True)
        )  # fmt: skip


def reads(folder: Path, lines: list[str]) -> LogProfile:
    return read_log(log_file(folder, "\n".join(lines)))


def after_the_arguments(lines: list[str]) -> list[str]:
    return lines[lines.index("training ...") :]


TRAINERS = {
    "each rank": (Trainer(), 40),
    "the slowest": (Trainer(option="minmax"), 40),
    "the slowest alone": (Trainer(option="max"), 40),
    "of 2021": (Trainer(option="old", first_too=False), 40),
    "before 0.16": (Trainer(first_too=False), 40),
    "every iteration": (Trainer(interval=1), 4),
    "every iteration, before 0.16": (Trainer(interval=1, first_too=False), 4),
    # the timers of the second block include the first one's
    "three blocks": (Trainer(), 20),
    "started in between": (Trainer(start=505, first_too=False), 30),
    "started in between, three blocks": (Trainer(start=505), 16),
    "chunks": (Trainer(v=2), 40),
    "srun -l": (Trainer(prefix="7: "), 40),
    "torchrun": (Trainer(prefix="[default7]:"), 40),
    "ranks of a pipeline together": (
        Trainer(world=16, stride=2, extra=(("use_tp_pp_dp_mapping", "True"),
                ("tensor_model_parallel_size", "2"), ("context_parallel_size", "1"))), 40,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINERS)
def test_times_are_those_of_the_run(tmp_path: Path, name: str) -> None:
    trainer, iterations = TRAINERS[name]
    found = reads(tmp_path, trainer.lines(iterations))
    assert trainer.right(found)
    assert found.iteration_ns is not None
    assert found.iteration_ns / 1e6 == pytest.approx(trainer.iteration_ms, rel=2e-3)
    assert [cost.static_bytes for cost in found.profile.stages][: trainer.p] == [1000 * 2**20] * 4
    told = {"max": "slowest", "minmax": "slowest", "old": "last"}.get(trainer.option)
    said = [text for text in found.unread if text.startswith("times of each rank")]
    assert said == [] if told is None else f"those of the {told} rank" in said[0]


@pytest.mark.parametrize(
    ("trainer", "iterations", "said"),
    [
        (Trainer(), 10, "2 logged iterations have all lines of forward-compute and backward-compute"),
        (Trainer(start=511, first_too=False), 12, "1 logged iterations have"),
        (Trainer(extra=(("overlap_moe_expert_parallel_comm", "True"),)), 40, "includes the backward"),
        (Trainer(extra=(("encoder_pipeline_model_parallel_size", "1"),)), 40, "an encoder are not read"),
        (Trainer(stride=3), 40, "forward-compute of rank 0"),
    ],
)  # fmt: skip
def test_what_a_log_cannot_say_is_refused(
    tmp_path: Path, trainer: Trainer, iterations: int, said: str
) -> None:
    lines = trainer.lines(iterations)
    if trainer.stride == 3:
        lines = [line for line in lines if "rank  0:" not in line]
    with pytest.raises(OptPipeError, match=said):
        reads(tmp_path, lines)


def test_the_last_of_several_runs(tmp_path: Path) -> None:
    """Started again with other sizes, and killed once more before it had timers."""
    other, last = Trainer(p=2, stride=4, m=4), Trainer(start=31)
    lines = [*other.lines(30), "Traceback (most recent call last):", *last.lines(30)]
    found = reads(tmp_path, [*lines, *Trainer(p=8, stride=1).arguments()])
    assert last.right(found)
    assert any(text.startswith("3 runs are in this log") for text in found.unread)
    # without arguments in between, as a restart within the process
    again = after_the_arguments(Trainer().lines(40))
    assert Trainer().right(reads(tmp_path, [*Trainer(warming=9.0).lines(40), *again]))


def test_a_batch_that_grows(tmp_path: Path) -> None:
    small, large = Trainer(m=4, first_too=False), Trainer(m=8, start=41, first_too=False)
    grown = after_the_arguments(large.lines(40))
    found = reads(tmp_path, [*small.lines(40), *grown])
    assert large.right(found)
    assert "3 iterations with other global batch sizes" in found.unread


def in_seconds(lines: list[str]) -> list[str]:
    """Return a log as forks of 2021 write it."""
    found = []
    for line in lines:
        before, _, after = line.partition("(ms): ")
        if "elapsed time" in before:
            ms, _, rest = after.partition(" ")
            line = f"{before}(s): {float(ms) / 1000:.4f} {rest}"
        found.append(line)
    return found


def without(lines: list[str], part: str) -> list[str]:
    """Return lines without a part that ends at a bar."""
    return [re.sub(rf" {part}:[^|]*\|", "", line) for line in lines]


def test_iterations_in_seconds(tmp_path: Path) -> None:
    """The batch of an iteration is that of its line, not of the arguments: 16 of 2048 here."""
    trainer = Trainer(p=12, m=1, world=192, stride=16, interval=1, option="old", first_too=False,
                      extra=(("global_batch_size", "2048"), ("rampup_batch_size", "['16', '16', '1']")))  # fmt: skip
    lines = in_seconds(trainer.lines(6))
    for each in (lines, without(lines, "global batch size")):  # then as samples are consumed
        found = reads(tmp_path, each)
        assert trainer.right(found)
        assert (found.microbatches, found.batch) == (1, 16)
        assert found.iteration_ns == pytest.approx(trainer.iteration_ms * 1e6, rel=1e-3)
        times = trainer.times_ms(trainer.world - 1)
        assert found.replay_ns == pytest.approx(12 * sum(times) * 1e6, rel=1e-3)
    neither = without(without(lines, "global batch size"), "consumed samples")
    with pytest.raises(OptPipeError, match="rampup_batch_size: the global batch size grows, and"):
        reads(tmp_path, neither)
    other = [line.replace("iteration (s):", "iteration (min):") for line in lines]
    with pytest.raises(OptPipeError, match=r"elapsed time per iteration \(min\): .*: not the time"):
        reads(tmp_path, other)


def test_a_batch_that_grew_at_the_very_end(tmp_path: Path) -> None:
    """The steady part counts: one iteration of the next size is no measure of it."""
    small, large = Trainer(m=4, first_too=False), Trainer(m=8, start=41, first_too=False)
    found = reads(tmp_path, [*small.lines(40), *after_the_arguments(large.lines(10))])
    assert small.right(found)
    assert found.unread[-1] == "1 iterations with other global batch sizes"


def test_layers_are_those_of_the_arguments(tmp_path: Path) -> None:
    def layers(*extra: tuple[str, str], **sizes: int) -> list[int | None]:
        found = reads(tmp_path, Trainer(extra=extra, **sizes).lines(40))  # type: ignore[arg-type]
        assert any(text.startswith("layers: ") for text in found.unread) == (
            found.profile.stages[0].layers is None
        )
        return [cost.layers for cost in found.profile.stages]

    assert layers() == [4] * 4
    assert layers(v=2) == [2] * 8
    first, last = "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"
    assert layers((first, "3"), (last, "5")) == [3, 4, 4, 5]
    ends = [(f"account_for_{end}_in_pipeline_split", "True") for end in ("embedding", "loss")]
    assert layers(*ends, ("num_layers", "18")) == [4, 5, 5, 4]
    assert layers(("num_layers", "18")) == [None] * 4
    assert layers(("pipeline_model_parallel_layout", "Et*3|(t*4|)*2t*5L")) == [3, 4, 4, 5]
    with pytest.raises(OptPipeError, match=r"'Et\*8\|t\*8L' is not a layout of 4 stages"):
        layers(("pipeline_model_parallel_layout", "Et*8|t*8L"))


def test_a_peak_that_is_not_of_activations(tmp_path: Path) -> None:
    """Weights' copies of the optimizer's step: the same on ranks that hold 8 to 1 activations."""
    lines = Trainer(p=8, stride=1).lines(40)
    flat = [
        re.sub(r"Rank (\d).*max allocated: \d+", lambda found: re.sub(
            r"max allocated: \d+", f"max allocated: {8675 + 500 * (found[1] == '0')}", found[0]), line)
        for line in lines
    ]  # fmt: skip
    found = reads(tmp_path, flat)
    assert "the peak is 7.495 GiB above what is allocated" in found.profile.memory_unknown
    assert "such as the optimizer's step" in found.profile.memory_unknown
    assert [cost.static_bytes for cost in found.profile.stages] == [1000 * 2**20] * 8
    assert "act_bytes" not in profile_to_json(found.profile)["stages"]
    # the trainer's own lines grow with the activations: they are believed
    assert reads(tmp_path, lines).profile.memory_unknown == ""
    some = [line for line in lines if not re.search(r"Rank [567]\]", line)]
    assert (
        "no line of the memory of pipeline ranks 5, 6, 7"
        in reads(tmp_path, some).profile.memory_unknown
    )


def test_memory_that_is_not_known_is_said_and_what_needs_it_refused(tmp_path: Path) -> None:
    found = reads(tmp_path, [line for line in Trainer().lines(40) if "memory (MB)" not in line])
    profile = found.profile
    why = "the log has no lines of memory"
    assert profile.memory_unknown.startswith(why)
    assert found.to_json()["act_bytes"] is None
    save_profile(profile, tmp_path / "p.yaml")
    again = load_profile(tmp_path / "p.yaml")
    assert again == profile
    assert "_bytes" not in (tmp_path / "p.yaml").read_text()
    trace = simulate(build("1f1b", again, 8), again)
    assert trace.measures()["peak_bytes"] is None
    assert "peak not known" in repr(trace)
    refused = f"it is not known what the stages of megatron-log hold \\({why}"
    with pytest.raises(OptPipeError, match=refused):
        simulate(trace.schedule, again, memory_limit="40GiB")
    with pytest.raises(OptPipeError, match=refused):
        build("zb-v:limit=40GiB", replace(again, stages=[
            replace(cost, t_w_ns=1, splits=True) for cost in again.stages]), 8)  # fmt: skip
    with pytest.raises(OptPipeError, match=refused):
        replace(again, memory_limit=2**30)


def test_timers_beyond_the_iteration_are_refused(tmp_path: Path) -> None:
    lines = [
        line.replace(" iteration (ms): 4", " iteration (ms): ") for line in Trainer().lines(40)
    ]
    with pytest.raises(OptPipeError, match="these timers cannot be means of it"):
        reads(tmp_path, lines)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from(("all", "minmax", "max")))
def test_a_damaged_log_gives_right_numbers_or_none(
    tmp_path_factory: pytest.TempPathFactory, seed: int, option: str
) -> None:
    """Lines lost, cut off, repeated, written into one another, begun and ended in the middle."""
    chance = random.Random(seed)
    trainer = Trainer(option=option, interval=chance.choice((1, 10)))
    text = "\n".join(trainer.lines(5 * trainer.interval))
    for _ in range(chance.randint(1, 12)):
        at = chance.randrange(len(text))
        there = chance.randrange(len(text))
        line = text[text.rfind("\n", 0, there) + 1 : there]
        damage = chance.randrange(6)
        if damage == 0:  # lost
            lines = text.split("\n")
            first = chance.randrange(len(lines))
            del lines[first : first + chance.randint(1, 9)]
            text = "\n".join(lines)
        elif damage == 1:  # a line of another process, with or without its end
            text = text[:at] + "[Rank 4] saved" + chance.choice(("", "\n")) + text[at:]
        elif damage == 2:  # ends
            text = text[: max(at, len(text) // 2)]
        elif damage == 3:  # begins
            text = text[min(at, len(text) // 3) :]
        elif damage == 4:  # a part of a line, once more
            text = text[:at] + line + "\n" + text[at:]
        else:  # its end is lost
            end = text.find("\n", at)
            text = text[:at] + text[at if end < 0 else end + 1 :]
    folder = tmp_path_factory.mktemp("log")
    try:
        found = read_log(log_file(folder, text))
    except OptPipeError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert trainer.right(found)
