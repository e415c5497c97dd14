"""Calls of TransformerEngine's manual offloading, played through by a controller of its rules."""

from __future__ import annotations

import re
from typing import Any

import pytest
from unit_profiles import unit_profile

from optpipe_sim import CostProfile, build, simulate
from optpipe_sim.errors import InvalidSchedule
from optpipe_sim.frameworks import transformer_engine as te
from optpipe_sim.frameworks.parts import parts_of
from optpipe_sim.ops import COMPUTE

STAGE = {"t_f_ms": 1, "t_b_ms": 1, "t_w_ms": 1, "act_bytes": 100, "w_bytes": 50, "layers": 2}
CALL = re.compile(r"(\w+)\(([\d, ]+)\)")
NEXT = {te.OFFLOAD: ("resident", "copying"), te.RELEASE: ("copying", "released"),
        te.RELOAD: ("released", "back")}  # fmt: skip


def profile_of(devices: int, **changes: Any) -> CostProfile:
    copies = {"t_offload_ms": 0.7, "t_reload_ms": 0.7}
    return unit_profile(devices, **{"stages": STAGE, "offload": copies, **changes})


class Controller:
    """The states of TransformerEngine's layers: any other order raises there."""

    def __init__(self, layers: int) -> None:
        self.states = ["not run"] * layers
        self.held = self.peak = 0

    def forward(self, layers: range) -> None:
        for layer in layers:
            assert self.states[layer] == "not run"
            self.states[layer] = "resident"
        self._hold(len(layers))

    def call(self, name: str, layers: list[int]) -> None:
        before, after = NEXT[name]
        for layer in layers:
            assert self.states[layer] == before, (name, layer, self.states[layer])
            self.states[layer] = after
        self._hold({te.RELEASE: -1, te.RELOAD: 1}.get(name, 0) * len(layers))

    def backward(self, layers: range) -> None:
        assert {self.states[layer] for layer in layers} <= {"resident", "back"}
        self._hold(-len(layers))

    def _hold(self, more: int) -> None:
        self.held += more
        self.peak = max(self.peak, self.held)


def play(program: list[str], layers: int, held: list[int]) -> Controller:
    """A rank's program through the controller; layers are numbered as their forwards run."""
    controller = Controller(layers)
    numbers: dict[str, range] = {}
    ran = 0
    for text in program:
        if found := CALL.fullmatch(text):
            controller.call(found[1], [int(one) for one in found[2].split(",")])
            continue
        kind, key = re.fullmatch(r"([A-Z]+)([\d.]+)", text).groups()  # type: ignore[union-attr]
        if kind == "F":
            numbers[key] = range(ran, ran + held[int(key.split(".")[0])])
            ran = numbers[key].stop
            controller.forward(numbers[key])
        elif kind in ("B", "BW"):
            controller.backward(numbers[key])
    assert ran == layers
    assert controller.held == 0
    return controller


@pytest.mark.parametrize("name", ["po-h", "megatron-offload", "gis-h", "adaoffload", "po-f"])
@pytest.mark.parametrize("limit", [None, 420])
def test_every_call_is_one_that_the_controller_takes(name: str, limit: int | None) -> None:
    changes = {} if limit is None else {"memory_limit_bytes": limit}
    profile = profile_of(4, **changes)
    schedule = build(name, profile, 8)
    answer = te.nearest(schedule, profile)
    made = te.to_plain(*te.programs(answer.schedule, profile))
    held = [part.layers for part in parts_of(profile.for_shape(schedule.shape))]
    for rank, one in enumerate(made["ranks"]):
        controller = play(one["program"], one["model_layers"], held)
        compute = [str(op) for op in schedule.programs[rank] if op.kind in COMPUTE]
        assert [text for text in one["program"] if "(" not in text] == compute
        # releases come in time: at 50 bytes a layer within the limit, or the replay's peak
        assert controller.peak * 50 <= (limit or answer.after.peak_bytes[rank])


def test_one_stream_is_what_is_lost() -> None:
    profile = profile_of(4)
    schedule = build("po-h", profile, 8)
    answer = te.nearest(schedule, profile)
    (engines,) = answer.lost
    shared = te.one_stream(profile)
    assert answer.after.makespan_ns == simulate(schedule, shared).makespan_ns
    assert engines.count == int(schedule.is_transfer.sum())
    assert te.nearest(schedule, shared).lost == ()
    with pytest.raises(InvalidSchedule, match="has no offload section"):
        te.nearest(build("1f1b", unit_profile(4), 8), unit_profile(4))
