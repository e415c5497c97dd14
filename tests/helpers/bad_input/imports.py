"""Logs, spans and folders of trainers that do not say what is read from them, and wrong calls of what reads them."""

from __future__ import annotations

import json

import yaml

from .cases import CONFIG, EXPERIMENT, MACHINE, MODEL, PROFILE, SCHEDULE, Row

_BARS = ("-" * 24 + " arguments " + "-" * 24, "-" * 20 + " end of arguments " + "-" * 21)
RUN = {
    "world_size": 8, "pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 1, "data_parallel_size": 4,
    "micro_batch_size": 1, "global_batch_size": 32, "seq_length": 64, "num_layers": 8, "hidden_size": 64,
    "num_attention_heads": 4, "ffn_hidden_size": 128, "vocab_size": 1000, "swiglu": True, "log_interval": 1,
    "transformer_impl": "transformer_engine", "position_embedding_type": "rope",
}  # fmt: skip


def log(iterations: int = 4, unit: str = "ms", **changes: object) -> str:
    """A log of Megatron-LM."""
    said = {**RUN, **changes}
    arguments = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in said.items()]
    lines = [
        f" iteration {at:8}/     100 | consumed samples: {32 * at} | elapsed time per iteration ({unit}): 100.0 | global"
        " batch size:    32 | lm loss: 1.0 |"
        for at in range(1, iterations + 1)
    ]
    return "\n".join([_BARS[0], *arguments, _BARS[1], *lines, ""])


TASK = {
    "task_type": "forward",
    "pp_rank": 0,
    "microbatch_id": 0,
    "model_chunk_id": 0,
    "duration": 5.0,
}
EVALUATE = "evaluate --log r.log --machine h100"


def imports() -> list[Row]:
    good = {"r.log": log()}
    rows = [
        Row("evaluate --log none.log --machine h100", "none.log: no such file"),
        Row("evaluate --log --machine h100", "--log: expected one argument"),
        Row("evaluate --log . --machine h100", "."),
        Row("evaluate --log /dev/zero --machine h100", "/dev/zero"),
        Row("evaluate --log p.yaml --machine h100", "p.yaml: no argument world_size"),
        Row("evaluate --log r.log", "required: --machine", good),
        Row("solve r.log -m 4", "r.log: is not a profile (YAML or JSON); import --from megatron-log", good),
        Row("compare r.yaml -m 4", "r.yaml: is a file of measurements, not a profile", {"r.yaml": "rows: []\n"}),
        Row("solve t.json -m 4", "t.json: is a trace, not a profile", {"t.json": '{"traceEvents": []}'}),
        Row("simulate s.yaml --schedule 1f1b -m 4", "s.yaml: is a short config of a model", {"s.yaml": "layers: 4\nhidden: 8\n"}),
        Row("evaluate --log r.log --machine h1000", "h1000", good),
        Row(f"{EVALUATE} --model m.yaml --layers 1", "expected 2 numbers that add up to 8", good),
        Row(f"{EVALUATE} --model llama2-7b", "has num_layers 32, but the log has 8", good),
        Row(f"{EVALUATE} --pp 3", "--gpus: 64 are not a multiple of pp 3 x tp 1 x cp 1", {"r.log": log(world_size=64)}),
        Row(f"{EVALUATE} --log-level 3", "unknown option --log-level", good),
        Row(f"{EVALUATE} --measured-ms 0", "must be a number above 0", good),
        Row("evaluate --model r.log --machine h100 --gpus 8 --seq 64 -m 4 --tp 3", "8 are not a multiple", good),
    ]  # fmt: skip
    rows += [
        Row(EVALUATE, says, {"r.log": text})
        for says, text in (
            ("no argument world_size", ""),
            ("no argument world_size", "\x00\x01\x02" * 99),
            ("no argument seq_length", log(seq_length=None)),
            ("no argument micro_batch_size", log(micro_batch_size="one")),
            ("no argument pipeline_model_parallel_size", log(pipeline_model_parallel_size=0)),
            ("no two iterations with their time", log(1)),
            ("elapsed time per iteration (h)", log(unit="h")),
            ("num_attention_heads: the log does not say", log(num_attention_heads=None)),
            ("hidden_size: the log does not say", log(hidden_size=None)),
            ("vocab_size: the log does not say", log(vocab_size=None)),
            ("is not a layout of 2 stages", log(pipeline_model_parallel_layout="Et*8L")),
            ("moe_layer_freq", log(num_experts=4, moe_router_topk=2, moe_layer_freq="[1, 0, 0, 1, 1, 0, 1, 1]")),
            ("hybrid_layer_pattern", log(hybrid_layer_pattern="M*M*")),
            ("experts_per_token", log(num_experts=4, moe_router_topk=9)),
            ("is not a multiple of 500000000 replicas", log(world_size=10**9, data_parallel_size=1)),
        )
    ]  # fmt: skip
    rows += [
        Row("import p.yaml --from megatron", "invalid choice: 'megatron'"),
        Row("import none --from megatron-vpp", "none: has no finished_tasks.json"),
        Row("import v v --from megatron-vpp", "megatron-vpp takes one, got 2"),
        Row("import p.yaml --from megatron-spans", "p.yaml: line 1: resourceSpans: missing"),
        Row("import p.yaml --from torchtitan-activations", "p.yaml: no listing of activations"),
        Row("import p.yaml --from megatron-spans --save x.yaml", "--save: megatron-spans has no costs"),
        Row("import p.yaml --from torchtitan-activations --save x.yaml", "--save: torchtitan-activations"),
        Row("import p.yaml --from megatron-vpp --save-trace t.json", "--save-trace: megatron-vpp does not say when ops began"),
    ]  # fmt: skip
    rows += [
        Row("import v --from megatron-vpp", says, {"v/finished_tasks.json": json.dumps(tasks)})
        for says, tasks in (
            ("expected pipeline ranks from 0", {}),
            ("expected pipeline ranks from 0", {"1": [TASK]}),
            ("0: expected a list of tasks", {"0": {}}),
            ("0[0]: expected a task", {"0": [3]}),
            ("0[0]: duration: expected ms above 0", {"0": [{**TASK, "duration": None}]}),
            ("0[0]: expected task_type", {"0": [{**TASK, "task_type": "send"}]}),
            ("0[0]: expected task_type", {"0": [{**TASK, "microbatch_id": -1}]}),
            ("not the tasks of a whole global batch", {"0": [TASK]}),
        )
    ]
    rows += [
        Row("import s.jsonl --from megatron-spans", says, {"s.jsonl": text})
        for says, text in (
            ("no span megatron.train_step", '{"resourceSpans": []}\n'),
            ("line 1: resourceSpans: missing", '{"resourceSpans": 3}\n'),
            ("line 1: a span without name", '{"resourceSpans": [3]}\n'),
            ("line 1: a span without name", '{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}]}]}]}\n'),
            ("line 1: resourceSpans: missing", "[" * 5000),
        )
    ]  # fmt: skip
    titan = "step: {}  loss: 6.3  grad_norm: 1.6  memory: 65.45GiB(82.14%)  tps: 745  tflops: 358.77  mfu: 36.71%\n"
    steps = {"r.log": titan.format(1) + titan.format(2)}
    nemo = {"r.log": "global_batch_size: 8 | train_step_timing in s: 9.1\n" * 3}
    rows += [
        Row(EVALUATE, "a log of torchtitan does not say --model, --gpus, --pp, --tp, --microbatch, --global-batch, --seq; give it beside", steps),
        Row(f"{EVALUATE} --model m.yaml --gpus 8 --pp 4", "a log of NeMo does not say --tp, --microbatch, --seq; give it", nemo),
        Row(f"{EVALUATE} --model m.yaml --gpus eight --pp 4 --tp 1 --mbs 1 -m 4 --seq 64", "--gpus: must be a whole number", steps),
        Row(EVALUATE, "r.log: no two logged steps; the first, which warms up", {"r.log": titan.format(1)}),
        Row("import r.log --from megatron-log", "a log of torchtitan, whose steps evaluate --log reads", steps),
        Row(EVALUATE, "as Megatron-Bridge's) does not say --model, --gpus", {"r.log": log().partition("end of arguments")[2]}),
    ]  # fmt: skip
    rows += [
        Row("export 1f1b p.yaml -m 4 --format graph-trainer", "several stages per rank"),
        Row("export 1f1b-i p.yaml -m 4 --format graph-trainer", "has no level"),
        Row("export 1f1b p.yaml -m 4 --format megatron --script x.sh --layers 2,2,2,2", "a script needs the model and the machine"),
        Row("export 1f1b p.yaml -m 4 --format torchtitan --script x.sh", "--script: is nothing for --format torchtitan"),
        Row("advise --model m.yaml --machine h100 --gpus 8 --global-batch 8 --seq 64 --scripts d", "--scripts: start Megatron-LM"),
        Row("advise --model m.yaml --machine h100 --gpus 8 --global-batch 8 --seq 64 --family megatron --scripts p.yaml", "--scripts p.yaml: is not a directory"),
        Row("check x.yaml p.yaml", "is a plan for torchtitan without the order of its ops", {"x.yaml": "format: torchtitan\n"}),
        Row("check x.yaml p.yaml", "'nonsense' is not a schedule", {"x.yaml": "format: megatron\ntold: nonsense\nmicrobatches: 4\n"}),
        Row("check x.yaml p.yaml", "without the order of its ops", {"x.yaml": "format: megatron\ntold: 1f1b\nmicrobatches: many\n"}),
        Row("simulate p.yaml --schedule x.yaml -m 5", "-m 5: x.yaml is for 4 microbatches", {"x.yaml": "format: megatron\ntold: 1f1b\nmicrobatches: 4\n"}),
        Row("export x.yaml --format torch-csv", "needed to build '1f1b' of x.yaml", {"x.yaml": "format: megatron\ntold: 1f1b\nmicrobatches: 4\n"}),
    ]  # fmt: skip
    stage = "devices: 2\nstages: {t_f_ms: 1, t_b_ms: 1, t_w_ms: 1, act_mib: 1}\n"
    rows += [
        Row("simulate x.yaml --schedule 1f1b -m 4", says, {"x.yaml": text})
        for says, text in (
            ("stages.t_f: unknown key; write one of t_f_s, t_f_ms", stage.replace("t_f_ms", "t_f")),
            ("stages.act_gb: unknown key; write one of act_bytes", stage.replace("act_mib", "act_gb")),
            ("stages.t_w_sec: unknown key; write one of t_w_s,", stage.replace("t_w_ms", "t_w_sec")),
            ("x.yaml: is empty, expected a mapping of keys", ""),
            ("x.yaml: is a config of Hugging Face, not a profile", "model_type: llama\n"),
            ("x.yaml: is a plan that was exported, not a profile", "format: megatron\noptions: {}\n"),
        )
    ]  # fmt: skip
    return [*rows, *others()]


# files that are given for one another: what each is called
_FILES = {
    "config.json": ("a config of Hugging Face", json.dumps(CONFIG)),
    "short.yaml": ("a short config of a model", yaml.safe_dump(MODEL)),
    "box.yaml": ("a machine file", yaml.safe_dump(MACHINE)),
    "profile.yaml": ("a profile", yaml.safe_dump(PROFILE)),
    "schedule.json": ("a schedule", json.dumps(SCHEDULE)),
    "mine.yaml": (
        "a file of measurements",
        "rows: [{model: m.yaml, devices: 4, iteration_ms: 100}]\n",
    ),
    "e.yaml": ("an experiment", yaml.safe_dump(EXPERIMENT)),
    "trace.json": ("a trace", '{"traceEvents": []}'),
    "plan.yaml": ("a plan that was exported", "format: te\noptions: {}\n"),
}
# where a file goes: what is wanted there, and what is told beside its own kind
_DOORS = {
    "simulate @ --schedule 1f1b -m 4": ("a profile", {"profile.yaml"}),
    "check @ p.yaml": ("a schedule", {"schedule.json", "plan.yaml"}),
    "estimate --model @ --machine h.yaml --devices 4": ("a model", {"config.json", "short.yaml"}),
    "estimate --model m.yaml --machine @ --devices 4": ("a machine file", {"box.yaml"}),
    "estimate --model m.yaml --machine h.yaml --devices 4 --calibrate @": ("a file of measurements", {"mine.yaml"}),
    "estimate --model m.yaml --machine h.yaml --devices 4 --execution @": ("an execution", set()),
    "sweep @": ("an experiment", {"e.yaml"}),
}  # fmt: skip


def others() -> list[Row]:
    """Every kind of file wherever another kind is wanted."""
    return [
        Row(line.replace("@", name), f"{name}: is {called}, not {wanted}: ", {name: text})
        for line, (wanted, fine) in _DOORS.items()
        for name, (called, text) in _FILES.items()
        if name not in fine
    ]
