"""Spans of Megatron-LM (OpenTelemetry): the time of its iterations, and the sizes of the run.

Read as the JSON that the file exporter of the OpenTelemetry Collector writes, an export request of OTLP
a line. Names of spans and attributes as of Megatron-LM d98e8a6, docs/user-guide/observability. A span of
a forward or a backward is the time that the host was in it, not that of its kernels, which run on when
it ends: no cost of an op is taken from it.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from statistics import median
from typing import Any

from ...errors import OptPipeError
from ...files import read_log_text

STEP, PASSES = "megatron.train_step", "megatron.forward_backward"
FORWARD = "megatron.microbatch.forward"
_SIZES = {
    "--pp": "dl.pipeline_parallel.size",
    "--tp": "dl.tensor_parallel.size",
    "--microbatch": "megatron.micro_batch_size",
    "--global-batch": "dl.batch_size",
    "--seq": "dl.sequence_length",
    "--dtype": "megatron.precision",
}
_RANK = re.compile(r"-rank(\d+)$")


@dataclass(frozen=True)
class Span:
    """One span: its rank (None: not said), when it began and ended in ns, and its attributes with those
    of its resource."""

    name: str
    rank: int | None
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]


@dataclass(frozen=True)
class SpanRun:
    """What spans say of a run.

    Attributes:
        iteration_ns: the median time from one step's begin to the next, of `iterations`.
        options: of `evaluate`, as far as spans have them.
        microbatches, chunks: of a rank, from its forwards; 0: the run did not emit them.
        unread: a sentence for each part that spans do not say.
    """

    iteration_ns: int
    iterations: int
    options: dict[str, str]
    microbatches: int
    chunks: int
    unread: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the answer of ``import --json``."""
        return {
            "iteration_ns": self.iteration_ns,
            "iterations": self.iterations,
            "options": self.options,
            "microbatches": self.microbatches or None,
            "chunks": self.chunks or None,
        }


def read_spans(path: str | os.PathLike[str]) -> SpanRun:
    """Read the steps of the rank that has most of them; the first one does not count.

    Raises:
        OptPipeError: names the file and what is missing in it.
    """
    spans = list(_spans(path))
    steps: dict[int | None, list[Span]] = defaultdict(list)
    for span in spans:
        if span.name == STEP:
            steps[span.rank].append(span)
    if not steps:
        raise OptPipeError(
            f"{path}: no span {STEP}; a run emits it with MEGATRON_OTEL_SPAN_GROUPS=per_step"
        )
    rank = max(steps, key=lambda one: len(steps[one]))
    own = sorted(steps[rank], key=lambda span: span.start_ns)
    between = [after.start_ns - before.start_ns for before, after in pairwise(own[1:])]
    if not between:
        raise OptPipeError(
            f"{path}: {len(own)} steps; expected three at least, as the first warms up and each ends where the next"
            " begins"
        )
    said = own[-1].attributes
    options = {option: str(said[key]) for option, key in _SIZES.items() if key in said}
    sizes: list[Any] = [
        said.get(f"dl.{way}_parallel.size") for way in ("data", "pipeline", "tensor")
    ]
    if all(isinstance(size, int) and size > 0 for size in sizes):
        options = {"--gpus": str(prod(sizes)), **options}
    m, v = _shape([span for span in spans if span.rank == rank], own[-1])
    if v > 1:
        options["--chunks"] = str(v)
    unread = [
        "F, B and W: spans are the host's time, not that of kernels; record a trace of torch.profiler (--from torch-trace)",
        "memory, recomputation, what overlaps, context and expert parallelism, layers of stages: spans do not have them",
    ]
    if not m:
        unread.append(
            "chunks: no spans of microbatches; MEGATRON_OTEL_SPAN_GROUPS=per_step,microbatch"
        )
    return SpanRun(round(median(between)), len(between), options, m, v, tuple(unread))


def _shape(spans: list[Span], step: Span) -> tuple[int, int]:
    """Return the microbatches and chunks of a rank, from the forwards within a step; 0 where there are none."""
    inside = [s for s in spans if step.start_ns <= s.start_ns and s.end_ns <= step.end_ns]
    passes = next((span for span in inside if span.name == PASSES), None)
    m = passes.attributes.get("megatron.num_microbatches") if passes is not None else None
    forwards = sum(span.name == FORWARD for span in inside)
    if not isinstance(m, int) or m < 1 or not forwards or forwards % m:
        return 0, 0
    return m, forwards // m


def _spans(path: str | os.PathLike[str]) -> Iterator[Span]:
    text = read_log_text(path).strip()
    lines = text.splitlines() if "\n" in text and text.splitlines()[0].endswith("}") else [text]
    for number, line in enumerate(filter(None, lines), 1):
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict) or not isinstance(request.get("resourceSpans"), list):
            raise OptPipeError(
                f"{path}: line {number}: resourceSpans: missing; expected the JSON of OTLP, one export request a line, as"
                " the file exporter of the OpenTelemetry Collector writes it"
            )
        for resource in request["resourceSpans"]:
            yield from _of_resource(resource, f"{path}: line {number}")


def _of_resource(resource: Any, where: str) -> Iterator[Span]:
    try:
        shared = _attributes(resource.get("resource", {}).get("attributes", []))
        found = _RANK.search(str(shared.get("service.instance.id", "")))
        rank = int(found[1]) if found else None
        for scope in resource.get("scopeSpans", []):
            for span in scope.get("spans", []):
                begin, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
                own = _attributes(span.get("attributes", []))
                yield Span(str(span["name"]), rank, begin, end, {**shared, **own})
    except (AttributeError, KeyError, TypeError, ValueError):
        raise OptPipeError(
            f"{where}: a span without name, startTimeUnixNano, endTimeUnixNano or with attributes that are not key and value"
        ) from None


def _attributes(pairs: Any) -> dict[str, Any]:
    """Return attributes as plain values; OTLP writes whole numbers as texts."""
    found: dict[str, Any] = {}
    for pair in pairs:
        (kind, value), *_ = pair["value"].items() or [("", None)]
        found[pair["key"]] = int(value) if kind == "intValue" else value
    return found
