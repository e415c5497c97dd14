"""A log of Megatron-LM as the options of `evaluate`, with the measurements that it has."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from megatron_runs import log_of

from optpipe_sim.costs import load_model
from optpipe_sim.costs.calibrate import load_measurements
from optpipe_sim.costs.machine_files import load_machine
from optpipe_sim.errors import OptPipeError
from optpipe_sim.frameworks.imports import megatron_run
from optpipe_sim.frameworks.imports.megatron_run import differs, read_run
from optpipe_sim.frameworks.megatron.layout import layers_in, layout_string
from optpipe_sim.frameworks.parts import parts_with

EXPERTS = {
    "num_experts": 128, "moe_router_topk": 8, "moe_ffn_hidden_size": 1536, "moe_layer_freq": 1,
    "moe_token_dispatcher_type": "flex", "expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1,
}  # fmt: skip


def log_at(folder: Path, text: str) -> Path:
    path = folder / "run.log"
    path.write_text(text)
    return path


def test_what_a_log_says(tmp_path: Path) -> None:
    found = read_run(log_at(tmp_path, log_of({})))
    assert found.iteration_ns == 11_000_000_000
    assert found.iterations == 3
    assert found.peak_bytes == 49 * 2**30
    assert found.notes == ()
    words = " ".join(filter(None, (word for pair in found.options.items() for word in pair)))
    assert words == (
        "--gpus 64 --pp 4 --tp 8 --zero 1 --microbatch 1 --global-batch 64 --seq 8192 --layers 20,20,20,20 --dtype bf16"
        " --overlap grad-reduce"
    )


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"virtual_pipeline_model_parallel_size": 5}, {"--chunks": "5", "--layers": ",".join(["4"] * 20)}),
        ({"virtual_pipeline_model_parallel_size": 2, "microbatch_group_size_per_vp_stage": 8},
         {"--schedule": "1f1b-i:chunks=2,group=8"}),
        ({"pipeline_model_parallel_layout": "Et*18|(t*21|)*2t*20L"}, {"--layers": "18,21,21,20"}),
        ({"decoder_first_pipeline_num_layers": 17}, {"--layers": "17,21,21,21"}),
        ({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
         {"--recompute": "full"}),
        ({"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 5},
         {"--schedule": "1f1b:recompute=full,layers=5", "--recompute": None}),
        ({"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 20},
         {"--schedule": None, "--recompute": "full"}),
        ({"recompute_granularity": "selective", "recompute_modules": "['core_attn', 'mlp']"},
         {"--recompute": "core_attn,mlp"}),
        ({"recompute_granularity": "selective"}, {"--recompute": "core_attn"}),
        ({"use_distributed_optimizer": False}, {"--zero": "0"}),
        ({"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads"}, {"--zero": "2"}),
        ({"use_torch_fsdp2": True}, {"--zero": "3"}),
        ({"bf16": False}, {"--dtype": "fp32"}),
        ({"fp8": "hybrid", "fp8_recipe": "tensorwise"}, {"--dtype": "fp8", "--fp8-weights": None}),
        ({"fp8": "hybrid", "fp8_param_gather": False}, {"--dtype": "fp8", "--fp8-weights": "cached"}),
        ({"fp8": "hybrid", "fp8_param_gather": True}, {"--fp8-weights": None}),
        ({"bf16": False, "fp16": True, "accumulate_allreduce_grads_in_fp32": True},
         {"--dtype": "fp16", "--accumulate-grads-in-fp32": ""}),
        ({"grad_reduce_in_bf16": True}, {"--grad-reduce-in-bf16": "", "--step-copy": ""}),
        ({"grad_reduce_in_bf16": True, "use_precision_aware_optimizer": True}, {"--step-copy": None}),
        ({"bf16": False, "fp16": True}, {"--step-copy": ""}),
        ({"gradient_accumulation_fusion": False}, {"--gradient-sums": "apart"}),
        ({"gradient_accumulation_fusion": True}, {"--gradient-sums": None}),
        ({"sequence_parallel": False}, {"--no-sequence-parallel": ""}),
        ({"attention_backend": "AttnBackend.unfused"}, {"--no-flash": ""}),
        ({"transformer_impl": "local", "use_flash_attn": False}, {"--no-flash": ""}),
        ({"transformer_impl": "local", "use_flash_attn": True}, {"--no-flash": None}),
        ({"overlap_param_gather": True, "tp_comm_overlap": True}, {"--overlap": "grad-reduce,param-gather,tp-comm", "--userbuffers": ""}),
        ({"context_parallel_size": 2, "data_parallel_size": 1, "cp_comm_type": "['a2a']"},
         {"--cp": "2", "--context": "heads"}),
        (EXPERTS, {"--ep": "8", "--etp": "1", "--exchange": "per-node"}),
        ({**EXPERTS, "virtual_pipeline_model_parallel_size": 2, "overlap_moe_expert_parallel_comm": True},
         {"--pairs": "combined"}),
        ({**EXPERTS, "overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True}, {"--pairs": "delayed-w"}),
        ({"cuda_graph_impl": "full_iteration"}, {"--cuda-graphs": ""}),
        ({**EXPERTS, "cuda_graph_impl": "transformer_engine",
          "cuda_graph_modules": "[<CudaGraphModule.attn: 1>, <CudaGraphModule.moe_router: 4>]"},
         {"--cuda-graph-modules": "attn,moe_router"}),
        ({**EXPERTS, "cuda_graph_impl": "transformer_engine", "cuda_graph_scope": "['moe_router', 'moe_preprocess']"},
         {"--cuda-graph-modules": "moe_router,moe_preprocess"}),
        ({**EXPERTS, "moe_expert_capacity_factor": 1.25, "moe_pad_expert_input_to_capacity": True},
         {"--capacity-factor": "1.25", "--pad-to-capacity": ""}),
        ({**EXPERTS, "moe_expert_capacity_factor": -1.0}, {"--capacity-factor": None}),
        ({"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}, {"--loss-fusion": "te"}),
    ],
)  # fmt: skip
def test_arguments_as_options(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any]
) -> None:
    said = read_run(log_at(tmp_path, log_of(changes))).options
    assert {key: said.get(key) for key in options} == options


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"num_layers": 81}, "layers: the arguments do not say"),
        ({"fine_grained_activation_offloading": True}, "activations are taken as kept"),
        ({"cuda_graph_impl": "transformer_engine"}, "graphs of layers are left out"),
        ({"optimizer_cpu_offload": True}, "taken as on the GPUs"),
        ({**EXPERTS, "moe_router_force_load_balancing": False}, "--imbalance says how uneven"),
        (
            {
                "recompute_granularity": "full",
                "recompute_method": "uniform",
                "recompute_num_layers": 4,
            },
            "recomputation in groups of 4 layers",
        ),
    ],
)
def test_what_options_do_not_say_is_noted(
    tmp_path: Path, changes: dict[str, Any], note: str
) -> None:
    assert note in " ".join(read_run(log_at(tmp_path, log_of(changes))).notes)


def test_iterations_of_the_last_batch_size_count(tmp_path: Path) -> None:
    ramp = log_of(
        {"rampup_batch_size": "['16', '16', '1000']"}, (30000.0, 4000.0, 4100.0), batch=16
    )
    later = [
        line
        for line in log_of({}, (11900.0, 11000.0, 11100.0, 11200.0)).splitlines()
        if "iteration  " in line
    ]
    text = ramp + "".join(
        line.replace(f"iteration {at:8}", f"iteration {at + 3:8}") + "\n"
        for at, line in enumerate(later, 1)
    )
    found = read_run(log_at(tmp_path, text))
    assert found.options["--global-batch"] == "64"
    assert (found.iterations, found.iteration_ns) == (3, 11_100_000_000)
    assert found.notes == ("3 iterations with other global batch sizes",)


def arguments_of(text: str) -> str:
    return text[: text.index("end of arguments")] + "end of arguments ---------------------\n"


FORKS = (
    # as in logs that are public: Primus, a fork of Megatron-DeepSpeed, one without an end, FlagScale
    "[20251202 09:12:08][rank-7/8][INFO ] [---trainer.py:2560] : iteration {at}/ 5000 | consumed samples: {samples} |"
    " elapsed time per iteration (ms): {ms}/15000.0 | hip mem usage/free/total/usage_ratio: 153.81GB/102.17GB/255.98GB/60.09% |"
    " global batch size: 64 | lm loss: 6.5 |",
    "[2024-06-21 10:50:42][INFO][training:1609] -  iteration=       {at}/  317892 | consumed_samples=      {samples} |"
    " consumed_tokens=     3145728 | elapsed_time_per_iteration_ms={ms} | learning_rate=1.9e-08 | global_batch_size=   64 |"
    " lm loss=11.133188 | loss_scale=1.0",
    " iteration        {at}/infinity | consumed samples: {samples} | elapsed time per iteration (ms): {ms} |"
    " learning rate: 1.0E-04 | global batch size:    64 |",
    "[default7]: [2026-09-08 20:31:37.112485] iteration        {at}/ 7629408 | consumed samples: {samples} |"
    " elapsed time per iteration (ms): {ms} | throughput per GPU (TFLOP/s/GPU): 26.8 | global batch size:    64 |",
)  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("form", FORKS)
def test_lines_of_forks_are_read(tmp_path: Path, form: str, encoding: str) -> None:
    times = (31000.0, 11020.0, 10980.0, 11000.0)
    lines = [form.format(at=at, samples=64 * at, ms=ms) for at, ms in enumerate(times, 1)]
    path = tmp_path / "run.log"
    path.write_text(arguments_of(log_of({})) + "\n".join(lines) + "\n", encoding=encoding)
    found = read_run(path)
    assert (found.iterations, found.iteration_ns) == (3, 11_000_000_000)
    assert found.options["--global-batch"] == "64"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no argument world_size"),
        (log_of({"seq_length": None}), "no argument seq_length"),
        (log_of({}, (31000.0,)), "no two iterations with their time"),
        (log_of({}).replace("(ms)", "(h)"), r"elapsed time per iteration \(h\)"),
        (log_of({"pipeline_model_parallel_layout": "Et*40|t*40L"}), "is not a layout of 4 stages"),
    ],
)  # fmt: skip
def test_logs_that_do_not_say_a_run(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(OptPipeError, match=problem):
        read_run(log_at(tmp_path, text))


def test_without_memory_there_is_no_peak(tmp_path: Path) -> None:
    found = read_run(log_at(tmp_path, log_of({}, max_gib=None)))
    assert found.peak_bytes is None
    assert "peak memory: the log has no lines of memory" in found.notes


def test_a_model_of_another_shape(tmp_path: Path) -> None:
    path = log_at(tmp_path, log_of({}))
    model = load_model("llama3-70b")
    assert differs(model, path) is None
    assert differs(replace(model, layers=40), path) == "num_layers 40, but the log has 80"
    assert differs(load_model("qwen3-30b-a3b"), path) == "num_layers 48, but the log has 80"
    lines = [line for line in log_of({}).splitlines() if "hidden_size" not in line]
    assert differs(replace(model, layers=40), log_at(tmp_path, "\n".join(lines))) is None


@given(st.lists(st.integers(0, 12), min_size=1, max_size=24))
def test_layouts_are_read_as_they_are_written(counts: list[int]) -> None:
    assert layers_in(layout_string(parts_with(counts))) == counts
    assert layers_in("Et*2|(tt|)*5t|tmL") == [2, 2, 2, 2, 2, 2, 1, 1]
    assert layers_in("Ett|tt|tm|L") == [2, 2, "1m", 0]


def test_a_log_is_read_once(command_line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For its options, its measurements, and to compare its model with the one given."""
    read = []
    monkeypatch.setattr(
        megatron_run, "read_log_text", lambda path: read.append(path) or Path(path).read_text()
    )
    path = log_at(tmp_path, log_of({}))
    words = f"evaluate --log {path} --model llama3-70b --machine h100 --quiet"
    assert command_line(words).code == 0
    assert read == [str(path)]
    path.write_text(log_of({"num_layers": 40}))  # another log of that name is another log
    assert "num_layers 80, but the log has 40" in command_line(words).err


def test_from_a_log_to_a_calibrated_run(command_line, tmp_path: Path) -> None:
    """Measured beside predicted, the row of a calibration file, and the same run with it."""
    log_at(Path(), log_of({}))
    line = "evaluate --log run.log --machine h100 --json"
    first = command_line(f"{line} --save-measurement m.yaml").json
    assert first["measured"] == pytest.approx(
        {**first["measured"], "iteration_ns": 11e9, "peak_bytes": 49 * 2**30}
    )
    assert first["log"]["options"]["--layers"] == "20,20,20,20"
    assert len(load_measurements("m.yaml", load_machine("h100"))) == 2
    again = command_line(f"{line} --calibrate m.yaml").json
    assert again["ratio"] == pytest.approx({"iteration": 1, "peak": 1}, rel=2e-3)
    other = command_line(
        "evaluate --log=run.log --machine h100 --tp 4 -m 16 --measured-ms 9000 --json"
    ).json
    assert other["measured"]["iteration_ns"] == 9e9
    assert other["tp"] == 4
    assert other["microbatches"] == 16


def test_what_evaluate_says_of_a_log(command_line) -> None:
    log_at(Path(), log_of({"num_layers": 78, "optimizer_cpu_offload": True}, max_gib=None))
    answer = command_line("evaluate --log run.log --machine h100")
    assert answer.out.startswith("1f1b ")
    assert "read from run.log: --gpus 64" in answer.out
    assert "optimizer states are taken as on the GPUs" in answer.out
    lines = [line.partition(": ")[2] for line in answer.err.splitlines() + answer.out.splitlines()
             if line.startswith("next: ")]  # fmt: skip
    calls = [shlex.split(line) for line in lines]
    assert calls[0][-2:] == ["--save-measurement", "measured.yaml"]
    assert calls[1][-4:] == ["--calibrate", "measured.yaml", "--family", "megatron"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("evaluate --log no.log --machine h100", "no.log: no such file"),
        ("evaluate --log run.log", "required: --machine"),
        ("evaluate --log run.log --machine h100 --model llama3-8b", "--model llama3-8b: has num_layers 32, but the log"),
        ("evaluate --log --machine h100", "--log: expected one argument"),
        ("evaluate --log run.log --machine h100 --pp 3", "64 are not a multiple of pp 3"),
    ],
)  # fmt: skip
def test_bad_calls_with_a_log(command_line, line: str, problem: str) -> None:
    log_at(Path(), log_of({}))
    assert problem in command_line(line).complaint


@pytest.mark.parametrize("more", ["--vpp 2", "--pp 8", "--pipeline-model-parallel-size 8"])
def test_layers_and_groups_of_the_log_are_those_of_its_stages(command_line, more: str) -> None:
    changes = {"virtual_pipeline_model_parallel_size": 5, "microbatch_group_size_per_vp_stage": 8}
    Path("run.log").write_text(log_of(changes))
    if more != "--vpp 2":
        more += " --chunks 1"
    answer = command_line(f"evaluate --log run.log --machine h100 {more}")
    assert answer.code == 0, answer.err
    assert "what was measured ran otherwise" in answer.out
    same = command_line("evaluate --log run.log --machine h100 --pp 4 --chunks 5 --tp 8")
    assert "otherwise" not in same.out
    refused = command_line(
        f"evaluate --log run.log --machine h100 {more} --save-measurement m.yaml"
    )
    assert "--save-measurement: the log measured another run" in refused.complaint
    assert not Path("m.yaml").exists()
    own = (
        f"evaluate --log run.log --machine h100 {more} --measured-ms 9000 --save-measurement m.yaml"
    )
    assert command_line(own).code == 0
