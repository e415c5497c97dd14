"""Logs of torchtitan, NeMo and Megatron-Bridge as the options of `evaluate`, and what they do not say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from megatron_runs import log_of

from optpipe_sim.errors import OptPipeError
from optpipe_sim.frameworks.imports.logged_run import LoggedRun
from optpipe_sim.frameworks.imports.megatron_run import read_run

RANK = "[rank0]:[titan] 2026-02-11 01:21:06,100 - root - INFO - "
MESH = "Building device mesh with parallelism: pp={pp}, dp_replicate={replicate}, dp_shard={shard}, cp=1, tp=8, ep=1"
BATCH = (
    "Trainer is initialized with local batch size 32, global batch size 64, gradient accumulation steps {gas}, sequence"
    " length 8192, total steps 1000 (warmup 200)"
)
STEP = "step: {:2}  loss:  6.32855  grad_norm:  1.6023  memory: 65.45GiB(82.14%)  tps: {:,}  tflops: 358.77  mfu: 36.71%"
STEPS = tuple(STEP.format(at, rate) for at, rate in ((1, 125), (10, 745), (20, 7411), (30, 750)))
NEMO = (
    "Training epoch 0, iteration {}/249 | lr: 1.961e-06 | global_batch_size: 64 | global_step: 1 |"
    " reduced_train_loss: 1.3 | train_step_timing in s: {}"
)


def read(folder: Path, *lines: str) -> LoggedRun:
    path = folder / "run.log"
    path.write_text("".join(f"{RANK}{line}\n" for line in lines))
    return read_run(path)


def titan(
    pipeline: str = "", pp: int = 4, replicate: int = 1, shard: int = 2, gas: int = 1
) -> tuple[str, ...]:
    degrees = MESH.format(pp=pp, replicate=replicate, shard=shard)
    return (degrees, *filter(None, [pipeline]), BATCH.format(gas=gas), *STEPS)


def test_torchtitan_says_its_sizes_and_the_tokens_of_a_gpu(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "Model llama3 70B size: 70,553,706,496 total parameters",
        "Applied full activation checkpointing to the model",
        *titan("Using pipeline schedule Interleaved1F1B with 32 microbatches and 8 stages."),
    )
    assert found.options == {
        "--gpus": "64", "--pp": "4", "--tp": "8", "--zero": "1", "--global-batch": "64", "--seq": "8192",
        "--microbatch": "1", "--chunks": "2", "--recompute": "full", "--weights-in-fp32": "",
    }  # fmt: skip
    # the first step warms up; the median is no mean
    assert (found.iterations, found.tokens_per_s, found.iteration_ns) == (3, 750, None)
    assert found.parameters == 70_553_706_496
    # what the allocator reserved is no peak of tensors
    assert found.peak_bytes is None
    assert [note for note in found.notes if note.startswith("peak memory: 65.45 GiB were reserved")]
    assert found.needed == ("--model",)
    assert not found.complete


@pytest.mark.parametrize(
    ("lines", "options", "note"),
    [
        (titan("Using pipeline schedule ZBVZeroBubble with 16 microbatches and 8 stages"),
         {"--schedule": "zb-v", "--chunks": "2", "--microbatch": "2"}, ""),
        (titan("Using pipeline schedule 1F1B with 32 microbatches and 1 local stages"), {"--chunks": None, "--schedule": None}, ""),
        (titan("Using pipeline schedule LoopedBFS with 32 microbatches and 8 stages"), {"--schedule": None}, "schedule: LoopedBFS"),
        (titan("Using pipeline schedule 1F1B with 32 microbatches and 4 stages", gas=3), {}, "gradient accumulation: 3 pipelines"),
        (titan(pp=1), {"--zero": "3", "--microbatch": "32", "--gpus": "16"}, ""),
        (titan(pp=1, replicate=4, shard=1), {"--zero": "0", "--gpus": "32"}, ""),
        (titan(pp=1, replicate=2), {"--zero": "3", "--gpus": "32"}, "sharding: over 2 of 4 replicas"),
        (("Building 3-D device mesh with ['pp', 'dp_shard', 'tp'], [2, 4, 2]", *STEPS),
         {"--gpus": "16", "--pp": "2", "--tp": "2", "--seq": None}, ""),
        (("Applied selective activation checkpointing to the model", *STEPS), {"--recompute": None}, "recomputation: selective"),
        (("Applied FullAC activation checkpointing to the model", *STEPS), {"--recompute": "full"}, ""),
        ((re.sub("(memory|tps)", "\x1b[34m\\1", STEPS[1]), STEPS[2]), {}, ""),
    ],
)  # fmt: skip
def test_what_torchtitan_may_say(
    tmp_path: Path, lines: tuple[str, ...], options: dict[str, str | None], note: str
) -> None:
    found = read(tmp_path, *lines)
    assert {name: found.options.get(name) for name in options} == options
    assert any(one.startswith(note) for one in found.notes) or not note


def test_every_rank_may_log_and_the_last_run_counts(tmp_path: Path) -> None:
    eight = [line for line in STEPS for _ in range(8)]
    assert read(tmp_path, *eight).iterations == 3
    again = [STEP.format(at, 100 * at) for at in (1, 2)]
    found = read(tmp_path, *STEPS, *again)
    assert (found.iterations, found.tokens_per_s) == (1, 200)


def test_nemo_says_how_long_a_step_takes(tmp_path: Path) -> None:
    found = read(
        tmp_path, *(NEMO.format(at, time) for at, time in enumerate((90.2, 6.37, 6.35, 6.4)))
    )
    assert (found.iteration_ns, found.iterations) == (6_370_000_000, 3)
    assert found.options == {"--global-batch": "64"}
    assert found.needed == ("--model", "--gpus", "--pp", "--tp", "--microbatch", "--seq")
    bar = read(
        tmp_path,
        *(
            f"100/100 [10:48<00:00, global_step=9.00, train_step_timing in s={at}.1]"
            for at in (9, 3)
        ),
    )
    assert (bar.iteration_ns, bar.options) == (3_100_000_000, {})


def test_iterations_without_arguments(tmp_path: Path) -> None:
    """Megatron-Bridge logs Megatron-LM's lines, and its configuration in other words."""
    lines = log_of({}).partition("end of arguments")[2].splitlines()[1:]
    found = read(tmp_path, *lines)
    assert (found.iteration_ns, found.peak_bytes) == (11_000_000_000, 49 * 2**30)
    assert found.options == {"--global-batch": "64"}
    assert "--pp" in found.needed


def test_one_step_is_not_enough(tmp_path: Path) -> None:
    for lines in (STEPS[:1], (NEMO.format(0, 90.2),)):
        with pytest.raises(OptPipeError, match=r"run\.log: no two logged steps"):
            read(tmp_path, *lines)


def test_from_a_log_of_torchtitan_to_the_next_command(command_line) -> None:
    pipeline = "Using pipeline schedule 1F1B with 32 microbatches and 4 stages"
    read(Path(), "Model x size: 70,553,706,496 total parameters", *titan(pipeline))
    line = "evaluate --log run.log --machine h100"
    assert (
        "a log of torchtitan does not say --model; give it beside --log" in command_line(line).err
    )
    found = command_line(f"{line} --model llama3-70b --json").json
    # 64 sequences of 8192 tokens at 750 tokens/s on each of 64 GPUs
    assert found["measured"]["iteration_ns"] == pytest.approx(64 * 8192 / (750 * 64) * 1e9)
    assert found["measured"]["peak_bytes"] is None
    answer = command_line(f"{line} --model llama3-70b").out
    assert "read from run.log: --gpus 64 --pp 4 --tp 8" in answer
    assert "--family torchtitan" in answer
    other = command_line(f"{line} --model llama3-8b --tp 4 --json").json
    assert (
        "parameters: 70.6B in the log, 8.03B of --model: is it the model of the run?"
        in other["log"]["notes"]
    )
    # what the log does not say may be given without a warning that it ran otherwise; what it says, not
    assert (
        "ran otherwise: --tp (8 in the log)" in command_line(f"{line} --model llama3-8b --tp 4").out
    )


def test_from_a_log_of_nemo_with_what_it_does_not_say(command_line) -> None:
    read(Path(), *(NEMO.format(at, time) for at, time in enumerate((90.2, 11, 11, 11))))
    line = "evaluate --log run.log --machine h100 --model llama3-70b"
    assert "does not say --gpus, --pp, --tp, --microbatch, --seq; give" in command_line(line).err
    whole = f"{line} --gpus 64 --pp 4 --tp 8 --mbs 1 --seq 8192"
    assert command_line(f"{whole} --json").json["measured"]["iteration_ns"] == 11e9
    answer = command_line(whole).out
    assert "--family megatron" in answer
    assert "ran otherwise" not in answer
