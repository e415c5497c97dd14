"""What rows of bad input are made of: good files, and one value in them changed."""

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
