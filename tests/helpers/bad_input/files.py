"""Schedules, models, machines, experiments and tables of measurements with a wrong value."""

from __future__ import annotations

import json
from typing import Any

import yaml

from .cases import (
    CONFIG,
    DELETED,
    EXPERIMENT,
    HUGE,
    INF,
    MACHINE,
    MEASURED,
    MODEL,
    NAN,
    SCHEDULE,
    Row,
    changed,
)

_SCHEDULES: list[tuple[str, Any, str]] = [
    ("format", "other", "format: expected 'optpipe-schedule', got 'other'"),
    ("format", 31.2, "format: expected 'optpipe-schedule', got 31.2"),
    ("version", 99, "version: this program reads version"),
    ("version", DELETED, "version: this program reads version"),
    ("program", [], "program: unknown key; known are format"),
    ("shape", DELETED, "shape: expected a mapping of devices, chunks, microbatches, placement"),
    ("shape", [4], "shape: expected a mapping of devices"),
    ("shape.devices", DELETED, "shape.devices: missing"),
    ("shape.devices", "4", "devices: must be a whole number of at least 1, got '4'"),
    ("shape.devices", 10**9, "are too many"),
    ("shape.devices", -1, "devices: must be a whole number of at least 1, got -1"),
    ("shape.chunks", 10**9, "chunks: 1000000000 are too many for 4 devices: at most"),
    ("shape.chunks", 31.2, "chunks: must be a whole number of at least 1, got 31.2"),
    ("shape.microbatches", 10**17, "microbatches: 100000000000000000 are too many for 4 devices"),
    ("shape.microbatches", 10**8, "microbatches: 100000000 are too many for 4 devices x 1 chunks: at most 524288"),
    ("shape.microbatches", 0, "microbatches: must be a whole number of at least 1, got 0"),
    ("shape.microbatches", True, "microbatches: must be a whole number of at least 1, got True"),
    ("shape.placement", "spiral", "placement: expected loop, vee or a list"),
    ("shape.placement", [0, 0, 0, 0], "placement: device 1 has no stage"),
    ("shape.placement", [0, 1, 2, 10**20], "placement: stage 3 is on device 100000000000000000000"),
    ("shape.stages", 4, "shape.stages: unknown key"),
    ("programs", DELETED, "programs: expected a list with one list of ops per device"),
    ("programs", {"0": []}, "programs: expected a list with one list of ops per device"),
    ("programs", [[]], "programs: 1 programs for 4 devices"),
    ("programs.0", ["F0.0", "B0.0"], "W0.0 is missing"),
    ("programs.0", [], "F0.0 is missing"),
    ("programs.0", ["F0.100000000000000000", "B0.0", "W0.0"], "F0.100000000000000000 is outside the shape"),
    ("programs.0", ["F100000000000000000.0", "B0.0", "W0.0"], "F100000000000000000.0 is outside the shape"),
    ("programs.0", ["F0." + "1" * 30, "B0.0", "W0.0"], "is not an op: write KIND stage . microbatch"),
    ("programs.0", ["F0." + "1" * 5000, "B0.0", "W0.0"], "is not an op"),
    ("programs.0", ["F0.4294967296", "B0.0", "W0.0"], "F0.4294967296 is outside the shape"),
    ("programs.0", ["F-1.0", "B0.0", "W0.0"], "'F-1.0' is not an op"),
    ("programs.0", ["F0.1", "B0.0", "W0.0"], "F0.1 is outside the shape"),
    ("programs.0", ["X0.0"], "'X0.0' is not an op: write KIND stage . microbatch, as in F3.7"),
    ("programs.0", ["f0.0"], "'f0.0' is not an op"),
    ("programs.0", [31.2], "31.2 is not an op"),
    ("programs.0", [None], "None is not an op"),
    ("programs.0", ["F0.0", "F0.0", "B0.0", "W0.0"], "F0.0 is in the program more than once"),
    ("programs.0", ["F0.0", "B0.0", "W0.0", "BW0.0"], "is there as well as its BW"),
    ("programs.0", ["F1.0", "B0.0", "W0.0"], "F1.0 belongs on device 1"),
    ("programs.0", ["B0.0", "F0.0", "W0.0"], "device 0: B0.0 waits for"),
    ("programs.0", ["F0.0", "O0.0", "R0.0", "B0.0", "W0.0"], "has no offload section"),
    ("programs.0", ["F0.0", "O0.0", "B0.0", "W0.0"], "O0.0"),
    ("programs.0", ["F0.0", "R0.0", "B0.0", "W0.0"], "R0.0"),
    ("programs.0", ["F0.0", "C0.0", "B0.0", "W0.0"], "C0.0"),
    ("link_order", [], "bad.json: "),
    ("link_order", ["O0.0"], 'link_order: expected a mapping such as {"0/O": ["O0.0", ...]}'),
    ("link_order", {"0/O": "O0.0"}, "link_order: expected a mapping"),
    ("link_order", {"9/Z": []}, "link_order 9/Z: the profile has no such link"),
    ("link_order", {"0/O": ["F0.0"]}, "link_order 0/O: F0.0 is no transfer of this shape"),
    ("link_order", {"0/O": ["O0.0"]}, "link_order 0/O: O0.0 is no transfer of this link"),
    ("link_order", {"0/O": ["O0.100000000000000000"]}, "is no transfer of this shape"),
    ("meta", 3, "meta: expected a mapping"),
    ("recompute", [1], "recompute"),
    ("recompute", {"x": "full"}, "recompute: 'x' is no activation"),
    ("recompute", {"9": "full"}, "recompute 9: is outside the shape"),
    ("recompute", {"0": 31.2}, "recompute 0: expected the name of a level of recomputation, got 31.2"),
    ("recompute", {"0": "full"}, "full"),
]  # fmt: skip


def schedules() -> list[Row]:
    rows = []
    for path, value, says in _SCHEDULES:
        if value == []:
            continue
        files = {"bad.json": json.dumps(changed(SCHEDULE, path, value))}
        rows.append(Row("simulate p.yaml --schedule bad.json", says, files))
    return rows


_MODELS: list[tuple[dict[str, Any], str, Any, str]] = [
    (MODEL, "layers", 10**9, "bad.json: model bad: layers: must be at most 10000, got 1000000000"),
    (MODEL, "layers", 0, "layers: must be at least 1, got 0"),
    (MODEL, "layers", -3, "layers: must be from 0 to 10^9, got -3"),
    (MODEL, "layers", 8.5, "layers: expected a whole number, got 8.5"),
    (MODEL, "layers", "eight", "layers"),
    (MODEL, "layers", True, "layers: expected a whole number, got True"),
    (MODEL, "layers", HUGE, "layers: must be"),
    (MODEL, "layers", DELETED, "layers: missing"),
    (MODEL, "hidden", 0, "hidden: must be at least 1, got 0"),
    (MODEL, "hidden", 10**12, "hidden: must be from 0 to 10^9"),
    (MODEL, "heads", 0, "heads"),
    (MODEL, "heads", "4", "heads"),
    (MODEL, "heads", [4], "heads"),
    (MODEL, "kv_heads", 3, "kv_heads: 3 does not divide the 4 heads"),
    (MODEL, "vocab", -1, "vocab: must be from 0 to 10^9, got -1"),
    (MODEL, "hiden", 64, "hiden: unknown key; did you mean hidden?"),
    (MODEL, "style", "rnn", "style: expected gpt or llama, got 'rnn'"),
    (MODEL, "style", 31.2, "style: expected gpt or llama, got 31.2"),
    (MODEL, "tied", 1, "tied: expected true or false, got 1"),
    (MODEL, "experts", 8, "experts_per_token: must be from 1 to 8"),
    (MODEL, "expert_ffn", 8, "experts: missing"),
    (MODEL, "dense_layers", 9, "dense_layers: 9 of 8 layers"),
    (MODEL, "kv_lora", 9, "kv_lora: latent attention needs"),
    (MODEL, "published_parameters", "many", "published_parameters"),
    (MODEL, "name", ["a"], "name"),
    (CONFIG, "model_type", "bert", "model_type: 'bert' is not supported"),
    (CONFIG, "model_type", ["llama"], "model_type: ['llama'] is not supported"),
    (CONFIG, "num_hidden_layers", 10**9, "layers: must be at most 10000, got 1000000000"),
    (CONFIG, "num_hidden_layers", DELETED, "num_hidden_layers: missing in the config.json"),
    (CONFIG, "num_hidden_layers", "8", "layers"),
    (CONFIG, "hidden_size", 31.2, "hidden"),
    (CONFIG, "num_attention_heads", 0, "heads"),
    (CONFIG, "vocab_size", {"a": 1}, "vocab"),
]


def models() -> list[Row]:
    line = "estimate --model bad.json --machine h100 --devices 4"
    return [
        Row(line, says, {"bad.json": json.dumps(changed(base, path, value))})
        for base, path, value, says in _MODELS
    ]


_MACHINES: list[tuple[str, Any, str]] = [
    ("units", DELETED, "units: missing"),
    ("units", 0, "units: must be a number above 0, got 0"),
    ("units", "many", "units: must be a number above 0, got 'many'"),
    ("units", NAN, "units: must be a number above 0"),
    ("memory_gib", -5, "memory_gib: must be a number above 0, got -5"),
    ("memory_gib", [31.2], "memory_gib: must be a number above 0, got [31.2]"),
    ("memory_gb_per_s", INF, "memory_gb_per_s: must be a number above 0"),
    ("peak_tflops", 100, "peak_tflops: expected rates by dtype"),
    ("peak_tflops", {"bf16": 0}, "peak_tflops.bf16: must be a number above 0, got 0"),
    ("devices_per_node", 10**12, "devices_per_node: must be a number above 0"),
    ("link_gb_per_s", True, "link_gb_per_s: must be a number above 0, got True"),
    ("memory_gibs", 4, "memory_gibs: unknown key; did you mean memory_gib?"),
    ("achieved", DELETED, "achieved: missing"),
    ("achieved", 3, "achieved: expected a mapping, got 3"),
    ("achieved.gemm", DELETED, "achieved.gemm: missing"),
    ("achieved.gemm", 2, "gemm"),
    ("achieved.gemm", "fast", "achieved.gemm: expected a number, got 'fast'"),
    ("pcie", 3, "pcie: expected a mapping, got 3"),
    ("pcie", {"generation": 5}, "missing"),
    ("units", None, "units: must be a number above 0, got None"),
    ("units", 2.5, "units: must be a whole number, got 2.5"),
    ("host_memory_gib", [[]], "host_memory_gib: must be a number above 0, got [[]]"),
    ("link", 5, "link: expected a text on one line, got 5"),
    ("title", "a\nb", "title: expected a text on one line"),
    ("sources", [1], "sources: expected a mapping of texts, got [1]"),
    (
        "pcie",
        {"generation": 4, "lanes": 16, "d2h_gb_per_s": 1, "h2d_gb_per_s": 1, "copy_engines": 3},
        "pcie.copy_engines: expected a text",
    ),
    (
        "pcie",
        {"generation": 4, "lanes": 16, "d2h_gb_per_s": -1, "h2d_gb_per_s": 1},
        "pcie.d2h_gb_per_s: must be a number above 0, got -1",
    ),
    ("base", "z9", "base: no machine 'z9'"),
    ("base", [1], "base: no machine [1]"),
]


def machines() -> list[Row]:
    line = "estimate --model m.yaml --machine bad.yaml --devices 4"
    return [
        Row(line, says, {"bad.yaml": yaml.safe_dump(changed(MACHINE, path, value))})
        for path, value, says in _MACHINES
    ]


_EXPERIMENTS: list[tuple[str, Any, str]] = [
    ("name", "other", "name: 'other' is not the file's; write 'e'"),
    ("question", DELETED, "question: missing"),
    ("run", "simulat", "run: 'simulat' is no task; did you mean simulate?"),
    ("run", 31.2, "run"),
    ("run", ["simulate"], "run"),
    ("minutes", 0, "minutes: must be"),
    ("minutes", -1, "minutes: must be a number above 0"),
    ("minutes", [1], "minutes: must be"),
    ("minutes", "long", "minutes: must be a number above 0, got 'long'"),
    ("cores", 0, "cores: must be a whole number from 1 to 1024, got 0"),
    ("cores", 10**9, "cores: must be a whole number from 1 to 1024"),
    ("seeds", 10**9, "seeds: must be a whole number from 1 to 100000"),
    ("seeds", 2, "seeds: simulate takes no seed"),
    ("base", 5, "base: expected a mapping of parameters, got 5"),
    ("base.microbatches", 0, "microbatches"),
    ("base.microbatches", "four", "microbatches"),
    ("base.profile", "none.yaml", "none.yaml"),
    ("base.profile", 7, "profile"),
    ("base.schedule", "1F1B", "did you mean 1f1b"),
    ("base.speed", 3, "base.speed: unknown key"),
    ("grid", 5, "grid"),
    ("grid", [], "grid: is empty"),
    ("grid", {"microbatches": []}, "grid"),
    (
        "grid",
        {f"profile.k{at}": list(range(100)) for at in range(6)},
        "grid: makes 1000000000000 points",
    ),
    ("purpose", 1, "purpose: unknown key"),
]


def experiments() -> list[Row]:
    return [
        Row("sweep e.yaml", says, {"e.yaml": yaml.safe_dump(changed(EXPERIMENT, path, value))})
        for path, value, says in _EXPERIMENTS
    ]


_MEASURED: list[tuple[str, Any, str]] = [
    ("rows", DELETED, "bad.yaml: expected one key, rows"),
    ("rows", [], "bad.yaml: expected one key, rows"),
    ("rows", [3], "rows[0]: expected a mapping, got 3"),
    ("rows.0.model", DELETED, "rows[0]: model: missing"),
    ("rows.0.model", "lama2-7b", "rows[0]: model 'lama2-7b': no such name, and no such file; did you mean"),
    ("rows.0.model", 3, "rows[0]: "),
    ("rows.0.schedule", 3, "rows[0]: schedule: expected a text, got 3"),
    ("rows.0.profile", 0, "rows[0]: profile: expected a text, got 0"),
    ("rows.0.tp", 2.5, "rows[0]: tp: must be a whole number of at least 1, got 2.5"),
    ("rows.0.devices", "8", "rows[0]: devices: must be a whole number of at least 1, got '8'"),
    ("rows.0.devices", 0, "rows[0]: devices: must be a whole number"),
    ("rows.0.t_f_ms", -1, "rows[0]: t_f_ms: must be a number above 0, got -1"),
    ("rows.0.t_f_ms", "x", "rows[0]: t_f_ms: must be a number above 0, got 'x'"),
    ("rows.0.t_f_ms", DELETED, "rows[0]: nothing measured"),
    ("rows.0.speed", 1, "rows[0]: speed: unknown key"),
    ("rows.0.iteration_ms", 5, "rows[0]: iteration_ms: needs schedule and microbatches"),
]  # fmt: skip


def measurements() -> list[Row]:
    line = "estimate --model m.yaml --machine h100 --devices 4 --calibrate bad.yaml"
    return [
        Row(line, says, {"bad.yaml": yaml.safe_dump(changed(MEASURED, path, value))})
        for path, value, says in _MEASURED
    ]
