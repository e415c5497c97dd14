"""Three hundred kinds of bad input, each with a part of the one line that refuses it."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml


class Row(NamedTuple):
    """A command line, what its complaint must contain, the files it needs, and its exit status.

    A file is its text, or ``@link:TARGET``, ``@sparse:BYTES``, ``@folder:``, ``@hex:BYTES``.
    """

    line: str
    says: str
    files: Mapping[str, str] = MappingProxyType({})
    code: int = 2

    @property
    def argv(self) -> list[str]:
        return shlex.split(self.line)


STAGE = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_mib": 100, "w_mib": 50}
PROFILE: dict[str, Any] = {"name": "unit", "devices": 4, "stages": STAGE}
OFFLOADING = {**PROFILE, "offload": {"t_offload_ms": 1, "t_reload_ms": 1}}
MODEL = {"layers": 8, "hidden": 64, "heads": 4, "vocab": 1000, "ffn": 128}
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 8,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 1000,
}
MACHINE = {
    "title": "Box",
    "peak_tflops": {"bf16": 100},
    "units": 100,
    "memory_gib": 40,
    "memory_gb_per_s": 1000,
    "devices_per_node": 8,
    "link": "wire",
    "link_gb_per_s": 100,
    "network_gb_per_s": 10,
    "achieved": {"gemm": 0.7, "attention": 0.5, "bandwidth": 0.8},
}
EXPERIMENT = {
    "name": "e",
    "question": "How?",
    "run": "simulate",
    "minutes": 0.1,
    "base": {"profile": "p.yaml", "microbatches": 4, "schedule": "1f1b"},
}
MEASURED = {"rows": [{"model": "llama2-7b", "devices": 8, "t_f_ms": 10}]}
SCHEDULE: dict[str, Any] = {
    "format": "optpipe-schedule",
    "version": 1,
    "shape": {"devices": 4, "chunks": 1, "microbatches": 1, "placement": "loop"},
    "programs": [[f"F{s}.0", f"B{s}.0", f"W{s}.0"] for s in range(4)],
    "link_order": {},
    "meta": {},
}
ALWAYS = {
    "p.yaml": yaml.safe_dump(PROFILE),
    "o.yaml": yaml.safe_dump(OFFLOADING),
    "m.yaml": yaml.safe_dump(MODEL),
    "h.yaml": yaml.safe_dump(MACHINE),
    "s.json": json.dumps(SCHEDULE),
}
GOOD = [  # so that imports and compilation are not counted
    "simulate p.yaml --schedule 1f1b -m 4 --json",
    "check s.json p.yaml --json",
    "estimate --model m.yaml --machine h.yaml --devices 4 --json",
    "compare o.yaml -m 4 --schedules 1f1b,adaoffload --json",
    "simulate p.yaml --schedule s.json --gantt g.png --json",
    "export s.json --format torch-csv -o g.csv --json",
]
DELETED = object()


def changed(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of `data` with another value under ``a.b.0.c``; `DELETED` takes the key away."""
    data = copy.deepcopy(data)
    *parents, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    inner: Any = data
    for key in parents:
        inner = inner[key]
    if value is DELETED:
        del inner[last]
    else:
        inner[last] = value
    return data


def text(data: dict[str, Any], name: str) -> str:
    """As JSON or YAML, by the name."""
    return json.dumps(data) if name.endswith(".json") else yaml.safe_dump(data)


INF, NAN, HUGE = float("inf"), float("nan"), 10**30

SIMULATE = "simulate bad.yaml --schedule 1f1b -m 4"
_PROFILES: list[tuple[str, Any, str]] = [
    ("devices", DELETED, "bad.yaml: devices: missing"),
    ("devices", 0, "devices: must be a whole number from 1 to 4096, got 0"),
    ("devices", -4, "devices: must be a whole number from 1 to 4096, got -4"),
    ("devices", 10**9, "devices: must be a whole number from 1 to 4096, got 1000000000"),
    ("devices", HUGE, "devices: must be a whole number from 1 to 4096"),
    ("devices", 4.5, "devices: expected a whole number, got 4.5"),
    ("devices", "4", "devices: expected a whole number, got '4'"),
    ("devices", True, "devices: expected a whole number, got True"),
    ("devices", [4], "devices: expected a whole number, got [4]"),
    ("devices", None, "devices: missing"),
    ("chunks", 0, "chunks: must be a whole number from 1 to 4096, got 0"),
    ("chunks", 4097, "chunks: must be a whole number from 1 to 4096, got 4097"),
    ("chunks", 31.2, "chunks: expected a whole number, got 31.2"),
    ("name", 7, "name: expected a text, got 7"),
    ("name", ["a", 31.2], "name: expected a text, got ['a', 31.2]"),
    ("name", "x" * 5000, "name: must be of at most 255 characters"),
    ("name", "two\nlines", "name: must be of at most 255 characters, none of them a control"),
    ("name", "\x1b[31mred", "name: must be of at most 255 characters, none of them a control"),
    ("placement", "spiral", "placement: expected loop, vee or a list"),
    ("placement", [0, 1, 2], "placement: lists 3 stages"),
    ("placement", [0, 1, 2, 2], "placement: device 3 has no stage"),
    ("placement", [0, 1, 2, 9], "placement: stage 3 is on device 9; devices are 0 to 3"),
    ("placement", [0, 1, 2, 2.5], "placement: stage 3 is on device 2.5"),
    ("placement", {"a": 1}, "placement: expected loop, vee or a list"),
    ("placement", "vee", "placement: vee needs 2 chunks per device"),
    ("stages", DELETED, "stages: missing"),
    ("stages", [], "stages: lists 0 stages, expected devices x chunks = 4"),
    ("stages", 31.2, "stages: expected a mapping or a list of 4, got 31.2"),
    ("stages", [STAGE, STAGE, 5, STAGE], "stages[2]: expected a mapping, got 5"),
    ("stages.t_f_ms", -1, "stages.t_f_ms: must be above 0, got -1"),
    ("stages.t_f_ms", 0, "stages.t_f_ms: must be above 0, got 0"),
    ("stages.t_f_ms", -31.2, "stages.t_f_ms: must be above 0, got -31.2"),
    ("stages.t_f_ms", NAN, "stages.t_f_ms: expected a finite number"),
    ("stages.t_f_ms", INF, "stages.t_f_ms: expected a finite number"),
    ("stages.t_f_ms", "fast", "stages.t_f_ms: expected a number, got 'fast'"),
    ("stages.t_f_ms", [1, 31.2], "stages.t_f_ms: expected a number, got [1, 31.2]"),
    ("stages.t_f_ms", {"a": 31.2}, "stages.t_f_ms: expected a number, got {'a': 31.2}"),
    ("stages.t_f_ms", None, "stages.t_f_ms: expected a number, got None"),
    ("stages.t_f_ms", True, "stages.t_f_ms: expected a number, got True"),
    ("stages.t_f_ms", 1e-9, "stages.t_f_ms: 1.0E-9 rounds to 0 ns"),
    ("stages.t_f_ms", 10**14, "stages.t_f"),
    ("stages.t_f_ms", 10**30, "stages.t_f"),
    ("stages.t_f_us", 5, "given twice, also as t_f_ms"),
    ("stages.t_b_ms", DELETED, "stages.t_b_ms: missing"),
    ("stages.t_w_ms", DELETED, "stages.t_w_ms: missing (one of t_w_s, t_w_ms"),
    ("stages.t_bw_ms", 0, "stages.t_bw_ms: must be above 0"),
    ("stages.act_mib", DELETED, "stages.act_mib: missing"),
    ("stages.act_mib", -1, "stages.act_mib: must be at least 0, got -1"),
    ("stages.act_mib", 10**30, "act"),
    ("stages.act_mib", "1GB", "stages.act_mib: expected a number, got '1GB'"),
    ("stages.w_mib", 200, "w"),
    ("stages.offload_mib", 500, "offload"),
    ("stages.static_mib", -2, "stages.static_mib: must be at least 0"),
    ("stages.t_forward", 1, "stages.t_forward: unknown key; known are t_f_ms"),
    ("stages.layers", 0, "stages.layers: must be"),
    ("stages.layers", 2.5, "stages.layers: expected a whole number, got 2.5"),
    ("stages.recompute", 5, "stages.recompute: expected a list"),
    ("stages.recompute", [5], "stages.recompute[0]: expected a mapping, got 5"),
    ("stages.recompute", [{"name": "full"}], "stages.recompute[0].t_ms: missing"),
    ("stages.recompute", [{"name": "full", "t_ms": -1, "keep_mib": 1}], "t_ms: must be"),
    ("stages.recompute", [{"name": "full", "t_ms": 1, "keep_mib": 1e9}], "keep"),
    ("stages.recompute", [{"name": 3, "t_ms": 1, "keep_mib": 1}], "name"),
    (
        "stages.recompute",
        [{"name": "a", "t_ms": 1, "keep_mib": 1}, {"name": "a", "t_ms": 2, "keep_mib": 0}],
        "a",
    ),
    ("t_comm_ms", -0.5, "t_comm_ms: must be at least 0, got -0.5"),
    ("t_comm_ms", NAN, "t_comm_ms: expected a finite number"),
    ("t_comm_ms", 10**15, "t_comm"),
    ("t_comm_ms", [1], "t_comm_ms: expected a number, got [1]"),
    ("t_comm", 1, "t_comm: unknown key; write t_comm_ms"),
    ("t_comm", {"latency_us": 1, "message_mib": 32}, "t_comm.gb_per_s: missing"),
    ("t_comm", {"latency_us": 1, "message_mib": 32, "gb_per_s": 0}, "gb_per_s: must be above 0"),
    (
        "t_comm",
        {"latency_us": 1, "message_mib": 32, "gb_per_s": 1e-300},
        "t_comm: must be from 0 to 1e+06 s",
    ),
    ("t_comm", {"speed": 1}, "t_comm.speed: unknown key"),
    ("links", "parallel", "links: expected latency"),
    ("links", 3, "links: expected latency"),
    ("links", ["latency"], "links: expected latency"),
    ("memory_limit_gib", -1, "memory_limit_gib: must be at least 0, got -1"),
    ("memory_limit_gib", [1, 2], "memory_limit_gib: lists 2 devices, but there are 4"),
    ("memory_limit_gib", "80GiB", "memory_limit_gib: expected a number, got '80GiB'"),
    ("memory_limit_gib", INF, "memory_limit_gib: expected a finite number"),
    ("memory_limit", 80, "memory_limit: unknown key"),
    ("meta", 3, "meta: expected a mapping, got 3"),
    ("meta", [1], "meta: expected a mapping, got [1]"),
    ("device", 4, "device: unknown key"),
    ("offload", 5, "offload: expected a mapping, got 5"),
    ("offload", {}, "offload.t_offload_ms: give t_offload_ms or d2h_gb_per_s"),
    ("offload", {"t_offload_ms": -1, "t_reload_ms": 1}, "offload.t_offload_ms: must be at least 0"),
    ("offload", {"t_offload_ms": [1, 2], "t_reload_ms": 1}, "offload.t_offload_ms: lists 2 stages"),
    ("offload", {"d2h_gb_per_s": 0, "t_reload_ms": 1}, "offload.d2h_gb_per_s: must be above 0"),
    ("offload", {"d2h_gb_per_s": 1e-300, "t_reload_ms": 1}, "offload"),
    ("offload.copy_engines", "two", "offload.copy_engines: expected separate or shared, got 'two'"),
    ("offload.copy_engines", ["a"], "offload.copy_engines: expected separate or shared"),
    ("offload.host_link", 31.2, "offload.host_link: expected per_direction or single, got 31.2"),
    ("offload.host_link_groups", 3, "offload.host_link_groups: expected lists of devices"),
    ("offload.host_link_groups", [[0, 9]], "offload.host_link_groups: device 9 does not exist"),
    ("offload.host_link_groups", [[0, 1], [1]], "groups overlap: device 1"),
    ("offload.host_link_groups", [[0, 10**17]], "device 100000000000000000 does not exist"),
    ("offload.host_limit_gib", -1, "offload.host_limit_gib: must be at least 0"),
    ("offload.devices_per_node", 9, "offload.devices_per_node: must be from 1 to 4, got 9"),
    ("offload.devices_per_node", 0, "offload.devices_per_node: must be from 1 to 4, got 0"),
    ("offload.engines", 2, "offload.engines: unknown key"),
]


def profiles() -> list[Row]:
    rows = []
    for at, (path, value, says) in enumerate(_PROFILES):
        base = OFFLOADING if path.startswith("offload.") else PROFILE
        name = "bad.json" if at % 5 == 0 else "bad.yaml"  # both kinds of file
        files = {name: text(changed(base, path, value), name)}
        line = SIMULATE.replace("bad.yaml", name)
        rows.append(Row(line, says.replace("bad.yaml", name), files))
    return rows


def _bomb(leaf: str, wrap: str, levels: int = 12) -> str:
    """Aliases that stand for ten times as much on every level."""
    lines = [f"l0: &l0 {leaf}"]
    for level in range(1, levels):
        inner = ",".join([f"*l{level - 1}"] * 10)
        lines.append(f"l{level}: &l{level} {wrap.format(inner)}")
    return "\n".join(lines) + "\n"


_HEAD = "name: x\ndevices: 4\nstages: {t_f_ms: 1, t_b_ms: 1, t_w_ms: 1, act_mib: 1}\n"
_TEXTS: list[tuple[str, str, str]] = [
    ("bad.yaml", "", "bad.yaml: holds NoneType, expected a mapping of keys"),
    ("bad.yaml", "- 1\n- 2\n", "bad.yaml: holds list, expected a mapping of keys"),
    ("bad.yaml", "31.2\n", "bad.yaml: holds"),
    ("bad.yaml", "devices: [1\n", "bad.yaml: not valid YAML"),
    ("bad.yaml", "devices: 2\ndevices: 3\n", "key 'devices' is given twice at line 2, column 1"),
    ("bad.yaml", "a: {<<: {x: 1}, <<: {y: 1}}\n", "key '<<' is given twice; write <<: [*ONE, *OTHER]"),
    ("bad.yaml", "a: {<<: 5}\n", "not valid YAML: expected a mapping"),
    ("bad.yaml", "a: {<<: [5]}\n", "not valid YAML: expected a mapping for merging"),
    ("bad.yaml", "? [1, 2]\n: 3\n", "not valid YAML"),
    ("bad.yaml", "1.5: 3\n", "key 1.5 is not a word"),
    ("bad.yaml", "devices: 1:30.5\n", "1:30.5 is no decimal number"),
    ("bad.yaml", "devices: 0x" + "F" * 5000 + "\n", "a number of more than 400 digits"),
    ("bad.yaml", "devices: " + "9" * 5000 + "\n", "bad.yaml: cannot be parsed: a number of too many digits"),
    ("bad.yaml", "devices: " + "9" * 4000 + "\n", "a number of more than 400 digits"),
    ("bad.json", '{"devices": ' + "9" * 4000 + "}", "devices: must be a whole number from 1 to 4096"),
    ("bad.json", '{"devices": 4, "stages": {"t_f_ms": ' + "9" * 4000 + ', "t_b_ms": 1, "t_w_ms": 1, "act_mib": 1}}', "stages.t_f_ms: expected a number of sensible size"),
    ("bad.yaml", _HEAD.replace("t_f_ms: 1,", "t_f_ms: 1e999999999,"), "stages.t_f_ms: expected a number of sensible size"),
    ("bad.yaml", _HEAD.replace("t_f_ms: 1,", "t_f_ms: 1e-999999999,"), "stages.t_f_ms: expected a number of sensible size"),
    ("bad.yaml", "a: &a [*a]\n", "not valid YAML: a value that contains itself"),
    ("bad.yaml", "a: &a {b: {c: *a}}\n", "not valid YAML: a value that contains itself"),
    ("bad.yaml", "a: *nothing\n", "undefined alias"),
    ("bad.yaml", "a: &a 1\nb: &a 2\n", "not valid YAML"),
    ("bad.yaml", "--- {a: 1}\n--- {b: 1}\n", "not valid YAML: but found another document"),
    ("bad.yaml", "a: !!python/object/apply:os.system [ls]\n", "os.system is no plain data"),
    ("bad.yaml", "a: !!binary aGVsbG8=\n", "binary is no plain data"),
    ("bad.yaml", "a: !!set {x}\n", "set is no plain data"),
    ("bad.yaml", "a: !mine 3\n", "!mine is no plain data"),
    ("bad.yaml", "a:\tb\n\tc: d\n", "not valid YAML"),
    ("bad.yaml", "a: \x07\n", "bad.yaml: not valid YAML: control characters are not allowed"),
    ("bad.yaml", "name: " + "[" * 100_000 + "\n", "bad.yaml: cannot be parsed: it is nested too deeply"),
    ("bad.yaml", "- " * 50_000 + "\n", "it is nested too deeply"),
    ("bad.yaml", "{a: " * 50_000 + "\n", "it is nested too deeply"),
    ("bad.yaml", _bomb("[x, x, x]", "[{}]"), "more than 500,000 values, its aliases written out"),
    ("bad.yaml", _HEAD + "meta:\n  " + _bomb("[x, x, x]", "[{}]").replace("\n", "\n  ").rstrip() + "\n", "more than 500,000 values"),
    ("bad.yaml", _bomb("{k: v}", "{{<<: [{}]}}"), "more than 500,000 values, its aliases written out"),
    ("bad.yaml", _bomb("x" * 1000, "[{}]", 6), "more than 16 MiB of text, its aliases written out"),
    ("bad.yaml", "name: &n [" + "x," * 1000 + "]\nmeta: [" + "*n," * 2000 + "]\n", "more than 500,000 values"),
    ("bad.json", "", "bad.json: not valid JSON"),
    ("bad.json", "{", "bad.json: not valid JSON: Expecting property name"),
    ("bad.json", '{"devices": 2', "(the file ends there: truncated?)"),
    ("bad.json", '{"devices": 2,, }', "not valid JSON"),
    ("bad.json", "[]", "bad.json: holds list, expected a mapping of keys"),
    ("bad.json", "null", "bad.json: holds NoneType, expected a mapping"),
    ("bad.json", '{"devices": 2, "devices": 3}', "key 'devices' is given twice"),
    ("bad.json", '{"devices": ' + "[" * 100_000, "bad.json: cannot be parsed: it is nested too deeply"),
    ("bad.json", '{"devices": ' + '{"a": ' * 100_000, "it is nested too deeply"),
    ("bad.json", '{"devices": ' + "9" * 5000 + "}", "a number of too many digits"),
    ("bad.json", '{"devices": 4, "stages": NaN}', "stages: expected a mapping or a list of 4, got NaN"),
    ("bad.json", "{'devices': 4}", "not valid JSON"),
    ("bad.yaml", "@hex:fffefa", "bad.yaml: cannot be read: not UTF-8 text"),
    ("bad.yaml", "@hex:00000000", "bad.yaml: not valid YAML: control characters"),
    ("bad.yaml", "@hex:504b0304140000000800", "bad.yaml: "),
    ("bad.yaml", "@link:/dev/zero", "bad.yaml: does not end: at most 16 MiB are read"),
    ("bad.json", "@link:/dev/zero", "bad.json: does not end: at most 64 MiB are read"),
    ("bad.yaml", "@link:/dev/urandom", "bad.yaml: does not end: at most 16 MiB are read"),
    ("bad.yaml", "@link:/dev/null", "bad.yaml: holds NoneType, expected a mapping of keys"),
    ("bad.yaml", "@link:nowhere", "bad.yaml: no such file"),
    ("bad.yaml", "@link:bad.yaml", "bad.yaml: cannot be read: Too many levels of symbolic links"),
    ("bad.yaml", "@sparse:50000000", "bad.yaml: is too large: 47.68 MiB, and at most 16 MiB are read"),
    ("bad.json", "@sparse:5000000000000", "bad.json: is too large: 4.547 TiB, and at most 512 MiB are read"),
    ("bad.yaml", "@folder:", "bad.yaml: cannot be read: Is a directory"),
]  # fmt: skip


def texts() -> list[Row]:
    return [
        Row(SIMULATE.replace("bad.yaml", name), says, {name: content})
        for name, content, says in _TEXTS
    ]


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
    ("programs.0", ["F0.0", "F0.0", "B0.0", "W0.0"], "F0.0 stands in the program more than once"),
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


_LINES: dict[str, str] = {
    "": "give a command",
    "slove p.yaml -m 4": "'slove' is not a command; did you mean solve?",
    "simulate": "required: PROFILE, --schedule",
    "simulate p.yaml": "required: --schedule",
    "simulate p.yaml --shedule 1f1b": "did you mean --schedule?",
    "simulate p.yaml more --schedule 1f1b -m 4": "'more' is one argument too many",
    "simulate none.yaml --schedule 1f1b -m 4": "none.yaml: no such file",
    "simulate '' --schedule 1f1b -m 4": "no such file",
    "simulate p.yaml --schedule '' -m 4": "'' is not a schedule",
    "simulate p.yaml --schedule 1F1B -m 4": "'1F1B' is not a schedule; did you mean 1f1b",
    "simulate p.yaml --schedule ZB-H1 -m 4": "'ZB-H1' is not a schedule; did you mean zb-h1",
    "simulate p.yaml --schedule gpip -m 4": "did you mean gpipe or mepipe?",
    "simulate p.yaml --schedule 1f1b": "-m: give the number of microbatches",
    "simulate p.yaml --schedule 1f1b -m 0": "at least 1, got '0'",
    "simulate p.yaml --schedule 1f1b -m -1": "at least 1, got '-1'",
    "simulate p.yaml --schedule 1f1b -m 2.5": "at least 1, got '2.5'",
    "simulate p.yaml --schedule 1f1b -m nan": "at least 1, got 'nan'",
    "simulate p.yaml --schedule 1f1b -m 30000000": "microbatches: 30000000 are too many for 4 devices x 1 chunks: at most 524288 can be handled",
    "simulate p.yaml --schedule 1f1b -m 100000000000000000000000": "are too many for 4 devices",
    "simulate p.yaml --schedule 1f1b -m " + "9" * 5000: "at least 1, got '999",
    "simulate p.yaml --schedule gis:group=x -m 4": "group=x",
    "simulate p.yaml --schedule gis:group=-1 -m 4": "group",
    "simulate p.yaml --schedule gis:group=0 -m 4": "group",
    "simulate p.yaml --schedule gis:group=99999999999999999999 -m 4": "group",
    "simulate p.yaml --schedule gis:group -m 4": "KEY=VALUE",
    "simulate p.yaml --schedule gis:chunks=1000000 -m 4": "chunks",
    "simulate p.yaml --schedule 1f1b-i:chunks=100000000000 -m 4": "chunks",
    "simulate p.yaml --schedule 1f1b-i:chunks=0 -m 4": "chunks",
    "simulate p.yaml --schedule 1f1b-i:chunks=nan -m 4": "chunks=nan is not a whole number",
    "simulate p.yaml --schedule 1f1b:chunks=2 -m 4": "unknown option 'chunks'",
    "simulate p.yaml --schedule zb-1p:limit=12XB -m 4": "'12XB' is not a size",
    "simulate p.yaml --schedule optpipe:time=nan -m 4": "time",
    "simulate p.yaml --schedule optpipe:time=-1 -m 4": "time",
    "simulate p.yaml --schedule optpipe:engine=magic -m 4": "magic",
    "simulate p.yaml --schedule optpipe:chunks=x -m 4": "chunks=x",
    "simulate p.yaml --schedule optpipe:workers=0 -m 4": "workers",
    "simulate p.yaml --schedule 1f1b:recompute=full -m 4": "full",
    "simulate p.yaml --schedule 1f1b-i -m 7": "multiple of the devices",
    "simulate p.yaml --schedule po-h -m 4": "offload",
    "simulate p.yaml --schedule p.yaml": "p.yaml: ",
    "simulate s.json --schedule 1f1b -m 4": "s.json: ",
    "simulate p.yaml --schedule s.json -m 5": "-m 5: s.json is for 1 microbatches",
    "simulate p.yaml --schedule 1f1b -m 4 --memory-limit 12XB": "'12XB' is not a size: write 40GiB",
    "simulate p.yaml --schedule 1f1b -m 4 --memory-limit=-1": "is not a size",
    "simulate p.yaml --schedule 1f1b -m 4 --memory-limit nan": "'nan' is not a size",
    "simulate p.yaml --schedule 1f1b -m 4 --memory-limit inf": "'inf' is not a size",
    "simulate p.yaml --schedule 1f1b -m 4 --memory-limit ''": "'' is not a size",
    "simulate p.yaml --schedule 1f1b -m 4 --memory-limit 1e3": "'1e3' is not a size",
    "simulate p.yaml --schedule 1f1b -m 4 --objective speed": "'flush', 'span'",
    "simulate p.yaml --schedule 1f1b -m 4 --gantt g.bmp": "--gantt g.bmp: the name must end in",
    "simulate p.yaml --schedule 1f1b -m 4 --gantt g": "--gantt g: the name must end in",
    "simulate p.yaml --schedule 1f1b -m 4 --gantt g.png --from soon": "'soon' is no instant",
    "simulate p.yaml --schedule 1f1b -m 4 --gantt g.png --from 101%": "must be at most 100%",
    "simulate p.yaml --schedule 1f1b -m 4 --gantt g.png --from 1h": "write 10%, 120ms, 1.5s or",
    "simulate p.yaml --schedule 1f1b -m 4 --gantt g.png --from=-5%": "'-5%' is no instant",
    "simulate p.yaml --schedule 1f1b -m 4 --gantt g.png --from 9s": "the iteration ends at 21 ms",
    "simulate p.yaml --schedule 1f1b -m 4 --gantt g.png --from 2ms --to 1ms": "must be later than",
    "simulate p.yaml --schedule 1f1b -m 4 --gantt g.png --from 99% --to 1ms": "1 ms is not later",
    "evaluate --model llama3-8b --machine h100 --seq 4096 --gpus 8": "one of the arguments -m/--microbatches --global-batch is required",
    "evaluate --model llama3-8b --machine h100 --seq 4096 --gpus 8 -m 4 --global-batch 4": "not allowed with argument",
    "evaluate --model llama3-8b --machine h100 --seq 4096 --gpus 8 -m 4 --pp 3": "gpus: 8 are not a multiple of pp 3 x tp 1 x cp 1",
    "evaluate --model llama3-8b --machine h100 --seq 4096 --gpus 8 --pp 4 --global-batch 3": "--global-batch 3: is not a multiple of 2 replicas",
    "evaluate --model llama3-8b --machine h100 --seq 4096 --gpus 8 -m 4 --schedule optpipe": "schedule: optpipe is searched for",
    "evaluate --model llama3-8b --machine h100 --seq 4096 --gpus 8 -m 4 --chunks 2 --schedule zb-h1": "zb-h1 runs one chunk per device, not 2",
    "evaluate --model llama3-8b --machine h100 --seq 4096 --gpus 8 -m 4 --measured-ms nan": "must be a number above 0, got 'nan'",
    "evaluate --model llama3-8b --machine h100 --seq 4096 --gpus 8 -m 4 --measured-gib=-1": "must be a number above 0, got '-1'",
    "evaluate --model llama3-8b --machine h100 --seq 4096 --gpus 8 -m 4 --save-measurement m.yaml": "nothing was measured",
    "evaluate --model llama3-8b --machine h100 --seq 4096 --gpus 8 -m 4 --layers 3,4": "expected 1 numbers that add up to 32",
    "evaluate --model llama3-8b --machine h100 --seq 4096 --gpus 1000000000 -m 4": "gpus: at most 65536",
    "simulate p.yaml --schedule 1f1b -m 4 --to 20%": "give --gantt F.png as well",
    "simulate p.yaml --schedule 1f1b -m 4 --save p.yaml": "--save p.yaml: is the profile that is read",
    "simulate p.yaml --schedule 1f1b -m 4 --save p.yaml/s.json": "is not a directory",
    "simulate p.yaml --schedule 1f1b -m 4 --save /proc/x/s.json": "cannot be written",
    "simulate p.yaml --schedule 1f1b -m 4 --save /dev/full": "/dev/full: cannot be written: No space left on device",
    "simulate p.yaml --schedule 1f1b -m 4 --trace .": "--trace .: is a directory; name a file in it",
    "simulate p.yaml --schedule 1f1b -m 4 --trace " + "x" * 300: "File name too long",
    "compare p.yaml": "required: -m",
    "compare p.yaml -m 3000000": "are too many for 4 devices",
    "compare p.yaml -m 4 --schedules ,": "at least one schedule",
    "compare p.yaml -m 4 --schedules 1f1b,2f2b": "'2f2b' is not a schedule",
    "compare p.yaml -m 4 --schedules 1f1b,none.json": "none.json: no such file",
    "compare p.yaml -m 4 --time-limit 0": "must be a number of seconds above 0, got '0'",
    "compare p.yaml -m 4 --time-limit nan": "must be a number of seconds above 0, got 'nan'",
    "compare p.yaml -m 4 --time-limit inf": "must be a number of seconds above 0, got 'inf'",
    "check none.json p.yaml": "none.json: no such file",
    "check s.json s.json": "s.json: ",
    "check s.json p.yaml -m 9": "-m 9: s.json is for 1 microbatches",
    "explain s.json p.yaml --op G1": "'G1' is not an op",
    "explain s.json p.yaml --op F9.0": "F9.0",
    "explain s.json p.yaml --op F0.100000000000000000": "F0.100000000000000000",
    "explain s.json p.yaml --chart c.gif": "--chart c.gif: the name must end in",
    "solve p.yaml -m 3000000": "microbatches: 3000000 are too many for 4 devices x 1 chunks: at most 524288 can be handled",
    "solve p.yaml -m 4 --chunks 100000000": "chunks",
    "solve p.yaml -m 4 --chunks 0": "at least 1, got '0'",
    "solve p.yaml -m 4 --chunks any --placement vee": "--placement",
    "solve p.yaml -m 4 --engine magic": "invalid choice: 'magic'",
    "solve p.yaml -m 4 --engine milp --solver nonesuch": "nonesuch",
    "solve p.yaml -m 4 --gap -1": "must be a share",
    "solve p.yaml -m 4 --gap nan": "must be a share",
    "solve p.yaml -m 4 --seed x": "must be a whole number",
    "solve p.yaml -m 4 --seed -1": "must be a whole number from 0",
    "solve p.yaml -m 4 --seed 99999999999999999999999999": "must be a whole number from 0 to 2^63",
    "solve p.yaml -m 4 --workers 0": "at least 1, got '0'",
    "solve p.yaml -m 4 --workers 1000000000": "must be at most 1024, got '1000000000'",
    "solve p.yaml -m 4 --warm-start none.json": "none.json: no such file",
    "solve p.yaml -m 4 --warm-start s.json": "--warm-start s.json: is for microbatches 1, the problem has microbatches 4",
    "solve p.yaml -m 4 --write-model f.txt": "f.txt: the model is written as .lp or .mps",
    "solve p.yaml -m 4 --noise 10% --samples 1000000000": "samples: 1000000000 are too many for 4 stages and 4 microbatches: at most",
    "solve p.yaml -m 4 --noise 10% --samples 0": "at least 1, got '0'",
    "solve p.yaml -m 4 --noise banana=1": "knows op, copy, device, comm, straggler, not 'banana'",
    "solve p.yaml -m 4 --noise nan": "must be a share",
    "solve p.yaml -m 4 --noise 5000%": "must be from 0 to 10",
    "solve p.yaml -m 4 --noise 10% --quantile 200%": "quantile: must be from 0 to 1",
    "solve p.yaml -m 4 --samples 5": "give --noise as well",
    "solve p.yaml -m 4 --noise 10% --log x.csv": "--log: not with --noise",
    "frontier p.yaml -m 4 --limits 10GiB:5GiB:1GiB": "must go up",
    "frontier p.yaml -m 4 --limits 1:1000000000:1": "makes more than 1000 limits",
    "frontier p.yaml -m 4 --limits 1GiB:2GiB": "write FROM:TO:STEP",
    "frontier p.yaml -m 4 --limits 1GiB:2GiB:0": "by a step above 0",
    "frontier p.yaml -m 4 --limits x": "'x' is not a size",
    "frontier p.yaml -m 9000000 --limits 1GiB": "are too many for 4 devices",
    "frontier p.yaml -m 4 --limits 1GiB --schedules 9f9b": "'9f9b' is not a schedule",
    "estimate --model nosuch --machine h100 --devices 8": "model 'nosuch': no such name, and no such file",
    "estimate --model LLAMA2-7 --machine h100 --devices 8": "did you mean llama2-7b",
    "estimate --model m.yaml --machine h1000 --devices 8": "machine 'h1000': no such name, and no such file; did you mean",
    "estimate --model m.yaml --machine h100 --devices 0": "devices: must be a whole number",
    "estimate --model m.yaml --machine h100 --devices 1000000000": "devices: must be",
    "estimate --model m.yaml --machine h100 --devices 1000000": "devices",
    "estimate --model m.yaml --machine h100 --devices x": "invalid int value: 'x'",
    "estimate --model m.yaml --machine h100 --devices 4 --tp 3": "devices: 4 are not a multiple of tp 3",
    "estimate --model m.yaml --machine h100 --devices 4 --tp 0": "tp: must be",
    "estimate --model m.yaml --machine h100 --devices 4 --seq 0": "seq",
    "estimate --model m.yaml --machine h100 --devices 4 --seq 1000000000000000000": "seq",
    "estimate --model m.yaml --machine h100 --devices 4 --microbatch -1": "microbatch",
    "estimate --model m.yaml --machine h100 --devices 4 --microbatch 1000000000000000": "microbatch",
    "estimate --model m.yaml --machine h100 --devices 4 --chunks 0": "chunks",
    "estimate --model m.yaml --machine h100 --devices 4 --chunks 1000000000": "chunks",
    "estimate --model m.yaml --machine h100 --devices 4 --layers 1,2": "layers: expected 4 numbers that add up to 8",
    "estimate --model m.yaml --machine h100 --devices 4 --layers a,b": "--layers a,b: expected whole numbers",
    "estimate --model m.yaml --machine h100 --devices 4 --dtype int3": "int3",
    "estimate --model m.yaml --machine h100 --devices 4 --zero 7": "invalid choice: 7",
    "estimate --model m.yaml --machine h100 --devices 4 --calibrate none.yaml": "none.yaml: no such file",
    "estimate --model /dev/zero --machine h100 --devices 4": "/dev/zero",
    "estimate --model m.yaml --machine /dev/zero --devices 4": "/dev/zero",
    "estimate --model . --machine h100 --devices 4": "model '.': this folder has no config.json",
    "advise --model m.yaml --machine h100 --gpus 0 --global-batch 8 --seq 64": "at least 1, got '0'",
    "advise --model m.yaml --machine h100 --gpus 1000000000000 --global-batch 8 --seq 64": "gpus",
    "advise --model m.yaml --machine h100 --gpus 8 --global-batch 1000000000000000 --seq 64 --time-limit 1": "global batch: at most 262144 sequences",
    "advise --model m.yaml --machine h100 --gpus 8 --global-batch 8 --seq 1000000000000000": "seq",
    "advise --model m.yaml --machine h100 --gpus 8 --global-batch 8 --seq 64 --pp 3": "pp",
    "advise --model m.yaml --machine h100 --gpus 8 --global-batch 8 --seq 64 --pp x": "at least 1, got 'x'",
    "advise --model m.yaml --machine h100 --gpus 8 --global-batch 8 --seq 64 --zero 9": "expected some of 0, 1, 2, 3",
    "advise --model m.yaml --machine h100 --gpus 8 --global-batch 8 --seq 64 --recompute all": "all",
    "advise --model m.yaml --machine h100 --gpus 8 --global-batch 8 --seq 64 --schedules 1F1B": "did you mean 1f1b",
    "advise --model m.yaml --machine h100 --gpus 8 --global-batch 8 --seq 64 --top 0": "at least 1, got '0'",
    "profile --model m.yaml --device tpu --stages 2": "invalid choice: 'tpu'",
    "profile --model m.yaml --device fake --stages 0": "at least 1, got '0'",
    "profile --model m.yaml --device fake --stages 1000000": "stages",
    "profile --model m.yaml --device cpu --stages 2 --samples 1000000000": "must be at most 100000, got '1000000000'",
    "profile --model m.yaml --device cpu --stages 2 --warmup -1": "must be a whole number",
    "profile --model m.yaml --device fake --stages 2 --optimizer-bytes -1": "must be a whole number",
    "profile --model m.yaml --device cpu --stages 2 --dtype int3": "int3",
    "confirm s.json p.yaml --mode dream": "invalid choice: 'dream'",
    "confirm s.json p.yaml --mode synthetic --iterations 1000000000": "must be at most 100000",
    "confirm s.json p.yaml --mode replay --stretch 4": "--stretch: only for --mode synthetic",
    "confirm s.json p.yaml --mode replay --memory-fraction": "--memory-fraction: only for",
    "confirm s.json p.yaml --mode replay --time-tolerance nan": "must be a share",
    "train --model m.yaml --stages 2 -m 4 --lr nan": "argument --lr: must be a number above 0, got 'nan'",
    "train --model m.yaml --stages 2 -m 4 --lr 0": "argument --lr: must be a number above 0, got '0'",
    "train --model m.yaml --stages 2 -m 4 --lr inf": "argument --lr: must be a number above 0, got 'inf'",
    "train --model m.yaml --stages 1000000 -m 4": "stages: 1000000",
    "train --model m.yaml --stages 2 -m 4 --slow 1:2": "must be STAGE:STEP:MS",
    "train --model m.yaml --stages 2 -m 4 --min-gain nan": "must be per cent",
    "train --model m.yaml --stages 2 -m 4 --text /dev/zero": "/dev/zero: does not end: at most 64 MiB are read",
    "train --model m.yaml --stages 2 -m 4 --text none.txt": "none.txt: no such file",
    "train --model m.yaml --stages 2 -m 4 --resume": "--resume: say from where with --checkpoint FOLDER",
    "sweep none.yaml": "none.yaml: no such file",
    "sweep p.yaml": "p.yaml: ",
    "sweep p.yaml --jobs 1000000": "must be at most 1024",
    "sweep p.yaml --cluster nonsense": "p.yaml: ",
    "figures no_such": "no_such: no such figure",
    "figures --format gif": "'gif' is none of pdf, svg, png",
    "figures --from nowhere": "nowhere",
    "export s.json --format csv": "invalid choice: 'csv'",
    "export s.json --format perfetto": "perfetto needs the profile",
    "export 1f1b -m 4 --format torch-csv": "PROFILE: needed to build '1f1b'",
    "export s.json --format torch-csv -o .": "is a directory",
    "export none.json --format torch-csv": "none.json: no such file",
    "cache --info --clear": "not allowed with argument",
    "versions more": "'more' is one argument too many",
    "--memory-limit 3GiB simulate p.yaml": "--memory-limit: options follow the command: optpipe-sim COMMAND --memory-limit",
}  # fmt: skip


def lines() -> list[Row]:
    return [Row(line, says) for line, says in _LINES.items()]


ROWS: list[Row] = [
    *lines(),
    *profiles(),
    *texts(),
    *schedules(),
    *models(),
    *machines(),
    *experiments(),
    *measurements(),
]
