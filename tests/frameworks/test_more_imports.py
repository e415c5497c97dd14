"""Megatron-LM's spans and the folder of its VPP simulator, and torchtitan's listing of activations."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit_profiles import unit_profile

from optpipe_sim import build, load_profile, simulate
from optpipe_sim.errors import OptPipeError
from optpipe_sim.frameworks.imports.megatron_spans import read_spans
from optpipe_sim.frameworks.imports.megatron_vpp import read_folder
from optpipe_sim.frameworks.imports.torchtitan_activations import read_activations

# -- spans ----------------------------------------------------------------------------------------


def attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    """As OTLP writes them: whole numbers are texts."""
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]  # fmt: skip


def spans_of(steps: int, m: int = 4, chunks: int = 2, ms: int = 2000, rank: int = 7) -> str:
    """A run with spans of microbatches, one request a step."""
    resource = {
        "service.instance.id": f"job-rank{rank}", "dl.tensor_parallel.size": 2, "dl.pipeline_parallel.size": 2,
        "dl.data_parallel.size": 2, "dl.batch_size": 8, "dl.sequence_length": 4096, "megatron.micro_batch_size": 1,
        "megatron.precision": "bf16",
    }  # fmt: skip
    lines, now = [], 10**18
    for step in range(steps):
        long = (ms if step else 9 * ms) * 10**6
        spans = [("megatron.train_step", now, now + long - 5, {"megatron.iteration": step})]
        spans.append(
            ("megatron.forward_backward", now + 1, now + long - 9, {"megatron.num_microbatches": m})
        )
        for at in range(m * chunks):
            begin = now + 2 + 1000 * at
            spans.append(("megatron.microbatch.forward", begin, begin + 400, {}))
            spans.append(("megatron.microbatch.backward", begin + 500, begin + 900, {}))
        written = [
            {"traceId": "a" * 32, "spanId": "b" * 16, "name": name, "startTimeUnixNano": str(start),
             "endTimeUnixNano": str(end), "attributes": attributes(more)}
            for name, start, end, more in spans
        ]  # fmt: skip
        scope = {"scope": {"name": "nemo.lens"}, "spans": written}
        lines.append(
            json.dumps({"resourceSpans": [{"resource": {"attributes": attributes(resource)}, "scopeSpans": [scope]}]})
        )  # fmt: skip
        now += long
    return "\n".join(lines) + "\n"


def test_steps_say_the_iteration_and_resources_the_run(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text(spans_of(5) + spans_of(2, ms=77, rank=3))
    found = read_spans(path)
    assert (found.iteration_ns, found.iterations) == (2_000_000_000, 3)
    assert (found.microbatches, found.chunks) == (4, 2)
    assert found.options == {
        "--gpus": "8", "--pp": "2", "--tp": "2", "--microbatch": "1", "--global-batch": "8", "--seq": "4096",
        "--dtype": "bf16", "--chunks": "2",
    }  # fmt: skip
    assert any("host's time, not that of kernels" in note for note in found.unread)


def test_without_spans_of_microbatches_chunks_are_not_known(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text(spans_of(4).replace("megatron.microbatch", "other"))
    found = read_spans(path)
    assert (found.microbatches, found.chunks, "--chunks" in found.options) == (0, 0, False)
    assert any("no spans of microbatches" in note for note in found.unread)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: resourceSpans: missing|no span megatron.train_step"),
        ("{}\n", "line 1: resourceSpans: missing"),
        ('{"name": "megatron.train_step"}', "resourceSpans: missing"),
        (spans_of(3).replace("megatron.train_step", "x"), "no span megatron.train_step; a run emits it with"),
        (spans_of(2), "2 steps; expected three at least"),
        (spans_of(3).replace("startTimeUnixNano", "start"), "a span without name, startTimeUnixNano"),
        (spans_of(3).replace('"attributes": []', '"attributes": [3]'), "attributes that are not key and value"),
    ],
)  # fmt: skip
def test_files_that_are_no_spans(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text(text)
    with pytest.raises(OptPipeError, match=problem):
        read_spans(path)


# -- the VPP simulator ----------------------------------------------------------------------------


def folder_of(
    where: Path, p: int = 2, v: int = 2, m: int = 4, change: Callable[[Any], Any] = lambda _: None
) -> Path:
    """The folder of an interleaved run whose chunk s takes 10 + s ms forward and twice that backward."""
    schedule = build("1f1b-i", unit_profile(p, v), m, chunks=v)
    tasks = {
        str(rank): [
            {"task_type": "forward" if op.kind.name == "F" else "backward", "pp_rank": rank, "microbatch_id": op.microbatch,
             "model_chunk_id": op.stage // p, "task_id": "", "dependencies": [], "finished": True,
             "duration": (10 + op.stage) * (1 if op.kind.name == "F" else 2)}
            for op in program
        ]
        for rank, program in enumerate(schedule.programs)
    }  # fmt: skip
    change(tasks)
    where.mkdir(exist_ok=True)
    (where / "finished_tasks.json").write_text(json.dumps(tasks))
    static = {
        str(r): {"static": {"params_memory_gb": 1.5, "grads_memory_gb": 3.0}, "dynamic": {}}
        for r in range(p)
    }
    (where / "static_memory_info.json").write_text(json.dumps({"executor_0": static}))
    layer = ["decoder_layer", "attn_softmax", "mlp_moe"]
    layout = {
        str(r): {str(c): ["embedding"] * (r + c == 0) + [layer] * (2 + c) for c in range(v)} for r in range(p)
    }  # fmt: skip
    (where / "all_pp_vpp_layout.json").write_text(json.dumps(layout))
    return where


def test_tasks_are_a_profile_and_an_order(tmp_path: Path) -> None:
    found = read_folder(folder_of(tmp_path / "run"))
    profile = found.trace.profile
    assert [cost.t_f_ns for cost in profile.stages] == [(10 + s) * 10**6 for s in range(4)]
    assert [cost.fused_ns for cost in profile.stages] == [(20 + 2 * s) * 10**6 for s in range(4)]
    assert [cost.layers for cost in profile.stages] == [2, 2, 3, 3]
    assert profile.static_bytes == (round(4.5 * 2**30),) * 2
    assert profile.memory_unknown
    own = build("1f1b-i", profile, 4, chunks=2)
    assert found.trace.schedule.programs == own.programs
    assert found.trace.makespan_ns == simulate(own, profile).makespan_ns
    assert found.spread == 1
    bare = folder_of(tmp_path / "bare")
    for name in ("static_memory_info.json", "all_pp_vpp_layout.json"):
        (bare / name).unlink()
    profile = read_folder(bare).trace.profile
    assert {cost.layers for cost in profile.stages} == {None}
    assert profile.static_bytes == (0, 0)


def test_microbatches_that_differ_are_averaged_and_said(tmp_path: Path) -> None:
    def uneven(tasks: Any) -> None:
        for task in tasks["0"]:
            task["duration"] *= 1 + 0.1 * (task["microbatch_id"] % 2)

    found = read_folder(folder_of(tmp_path / "run", change=uneven))
    assert found.trace.profile.stages[0].t_f_ns == 10_500_000
    assert found.spread == pytest.approx(1.1 / 1.05)
    assert any("differ by up to 5%" in note for note in found.unread)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t["0"].pop(), "not the tasks of a whole global batch"),
        (lambda t: t["0"][0].update(duration=0), r"0\[0\]: duration: expected ms above 0, got 0"),
        (lambda t: t["0"][0].update(task_type="send"), r"0\[0\]: expected task_type forward or backward"),
        (lambda t: t["1"][3].update(pp_rank=0), r"1\[3\]: expected task_type"),
        (lambda t: t["0"].insert(0, 7), r"0\[0\]: expected a task"),
        (lambda t: t.pop("0"), "expected pipeline ranks from 0"),
        (lambda t: t.update({"1": {}}), "1: expected a list of tasks"),
    ],
)  # fmt: skip
def test_folders_that_are_not_whole(tmp_path: Path, change: Any, problem: str) -> None:
    with pytest.raises(OptPipeError, match=problem):
        read_folder(folder_of(tmp_path / "run", change=change))
    with pytest.raises(OptPipeError, match=r"has no finished_tasks.json"):
        read_folder(tmp_path)


# -- activations ----------------------------------------------------------------------------------


def row(at: int, size: str, policy: str, dtype: str = "bfloat16") -> str:
    return f"  {at:<3} {size:>10}  {dtype:<10} {policy:<12} {'[1, 4096, 8192]':<25} {'attention.wq':<30} aten.mm.default"


LISTING = "\n".join(
    [
        "[titan] 2026-08-01 10:00:00 - root - DEBUG - Activation listing (forward nodes with backward consumers):",
        "-" * 60,
        "  #       Memory  DType      Policy       Shape",
        "-" * 60,
        "[non-layer] (1 activations, 64.00 MiB)",
        row(0, "64.00 MiB", "SAVE*"),
        "",
        "[layers 0-3] (x4, same pattern) (4 activations, 176.00 MiB each, 704.00 MiB total)",
        row(0, "64.00 MiB", "SAVE"),
        row(1, "64.00 MiB", "RECOMPUTE!"),
        row(2, "32.00 MiB", "RECOMPUTE"),
        row(3, "16.00 MiB", "OFFLOAD"),
        "",
        "[layer 4] (2 activations, 1.50 GiB each, 1.50 GiB total)",
        row(0, "1.50 GiB", "SAVE"),
        row(1, "symbolic", "SAVE", "?"),
        "",
        "-" * 60,
        "Total: 19 activations, 2.25 GiB across 5 layer(s) + non-layer",
        "-" * 60,
        "SAVE* = untagged (kept in GPU memory by default)",
    ]
)  # fmt: skip


def test_bytes_of_layers_by_what_becomes_of_them(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(f"before\n{LISTING}\nstep: 1\n{LISTING}\n")
    listings = read_activations(path)
    assert listings[0] == listings[1]
    ends, layers, last = listings[0]
    assert (ends.first, ends.count, ends.bytes_by_way) == (None, 1, {"kept": 64 * 2**20})
    assert (layers.first, layers.count, layers.tensors) == (0, 4, 4)
    assert layers.bytes_by_way == {"kept": 64 * 2**20, "recomputed": 96 * 2**20, "offloaded": 16 * 2**20}  # fmt: skip
    assert (last.count, last.symbolic, last.bytes_by_way) == (1, 1, {"kept": 3 * 2**29})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("step: 1\n", "no listing of activations"),
        (LISTING.partition("Total")[0], "its last listing is cut off"),
        (LISTING.replace("OFFLOAD", "FORGET"), "policy 'FORGET' is not one of SAVE"),
        (LISTING.replace(row(2, "32.00 MiB", "RECOMPUTE") + "\n", ""), r"3 of 4 activations of \[layers 0-3\]"),
        (LISTING.replace("Total: 19", "Total: 20"), "20 activations in all, but"),
    ],
)  # fmt: skip
def test_listings_that_are_not_whole(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "train.log"
    path.write_text(text)
    with pytest.raises(OptPipeError, match=problem):
        read_activations(path)


# -- the command ----------------------------------------------------------------------------------


def test_the_command_reads_them(command_line) -> None:
    Path("spans.jsonl").write_text(spans_of(4))
    folder_of(Path("vpp"))
    Path("acts.log").write_text(LISTING)
    spans = command_line("import spans.jsonl --from megatron-spans --json").json
    assert (spans["iteration_ns"], spans["microbatches"]) == (2_000_000_000, 4)
    told = command_line("import spans.jsonl --from megatron-spans").out
    assert "--gpus 8 --pp 2 --tp 2" in told
    made = command_line("import vpp --from megatron-vpp --save V.yaml --json").json
    assert made["files"] == {"V.yaml": "the profile"}
    again = load_profile("V.yaml")
    assert [cost.t_f_ns for cost in again.stages] == made["t_f_ns"]
    assert again == replace(read_folder("vpp").trace.profile, meta=again.meta)
    assert "weights, gradients" in command_line("import vpp --from megatron-vpp").out
    listings = command_line("import acts.log --from torchtitan-activations --json").json["listings"]
    assert listings[0][1]["recomputed_bytes"] == 96 * 2**20
    assert "0-3" in command_line("import acts.log --from torchtitan-activations").out
    for line in (
        "import spans.jsonl --from megatron-spans",
        "import acts.log --from torchtitan-activations",
    ):
        assert "--save: " in command_line(f"{line} --save x.yaml").complaint
