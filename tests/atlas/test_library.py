"""The library that ships: its checker accepts its schedules and rejects damaged ones, and code that shares nothing with the
solvers confirms bounds. All of it is checked by ``optpipe-sim atlas check``; here what is quick."""

from __future__ import annotations

import json
import lzma
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_pipelines import Pipeline, can_take

from optpipe_sim.atlas.instances import LIBRARY, PROFILE, Instance, read_library
from optpipe_sim.atlas.verify import problems

EVERY = read_library()
SMALL = [one for one in EVERY if one.model == "small"]


def size(one: Instance) -> int:
    return 3 * one.microbatches * one.devices * one.chunks


# of each profile the instance with the tightest limit that has a schedule, where that is quick to replay
SAMPLE = [
    one
    for one in {one.profile_name: one for one in EVERY if one.best is not None}.values()
    if size(one) < 1000
]


@pytest.mark.parametrize("one", SAMPLE, ids=lambda one: one.name)
def test_the_checker_accepts(one: Instance) -> None:
    assert problems(one) == []


def test_records_say_where_they_come_from() -> None:
    for one in EVERY:
        assert (one.best is not None) == one.schedule_path.exists(), one.name
        assert one.gap is None or one.gap >= 0, one.name
        assert one.bound is not None, one.name
        assert one.source, one.name
        for record in filter(None, (one.best, one.bound)):
            assert record.how, one.name
            assert record.by, one.name
            assert len(record.date) == 10, one.name


def test_the_library_is_wide_and_small() -> None:
    assert len({one.profile_name for one in EVERY}) >= 150
    assert {one.devices for one in EVERY} >= {4, 8, 16, 32, 64, 128}
    assert len({one.model for one in EVERY}) >= 25
    assert sum(path.stat().st_size for path in LIBRARY.rglob("*")) < 10 * 2**20


# -- damage ---------------------------------------------------------------------------------------


def programs_of(one: Instance) -> list[list[str]]:
    text = lzma.decompress(one.schedule_path.read_bytes()).decode()
    lines = [line.partition(": ") for line in text.splitlines()]
    return [ops.split() for device, _, ops in lines if device.isdigit()]


def write(one: Instance, programs: list[list[str]]) -> None:
    text = lzma.decompress(one.schedule_path.read_bytes()).decode()
    rest = [line for line in text.splitlines() if not line.partition(":")[0].isdigit()]
    lines = [f"{device}: {' '.join(ops)}" for device, ops in enumerate(programs)] + rest
    one.schedule_path.write_bytes(lzma.compress("\n".join(lines).encode()))


def _drop(programs: list[list[str]], device: int, at: int) -> None:
    del programs[device][at]


def _double(programs: list[list[str]], device: int, at: int) -> None:
    programs[device].insert(at, programs[device][at])


def _elsewhere(programs: list[list[str]], device: int, at: int) -> None:
    programs[(device + 1) % len(programs)].append(programs[device].pop(at))


def _backward_first(programs: list[list[str]], device: int, at: int) -> None:
    ops = programs[device]
    backwards = [op for op in ops if op.startswith("B")]
    back = backwards[at % len(backwards)]
    ops.remove(back)
    ops.insert(ops.index("F" + back.lstrip("BW")), back)


def _weights_first(programs: list[list[str]], device: int, at: int) -> None:
    ops = programs[device]
    weights = [op for op in ops if op.startswith("W")]
    if not weights:  # backwards are not split
        return _backward_first(programs, device, at)
    weight = weights[at % len(weights)]
    ops.remove(weight)
    return ops.insert(ops.index("B" + weight[1:]), weight)


def _crossed(programs: list[list[str]], device: int, at: int) -> None:
    """Forwards of two microbatches in opposite orders on two devices, a backward before either."""
    for stage in (0, 1):
        ops = next(ops for ops in programs if f"F{stage}.0" in ops)
        back = next(op for op in (f"B{stage}.0", f"BW{stage}.0") if op in ops)
        ops.remove(back)
        ops.insert(ops.index(f"F{stage}.0"), back)


def _unknown(programs: list[list[str]], device: int, at: int) -> None:
    programs[device][at] = "F99.0"


def _no_op(programs: list[list[str]], device: int, at: int) -> None:
    programs[device][at] = "X" + programs[device][at]


def _empty(programs: list[list[str]], device: int, at: int) -> None:
    programs[device].clear()


def _moved(programs: list[list[str]], device: int, at: int) -> None:
    """Copies without a profile that has any, or a second one."""
    programs[device].insert(at, "O" + programs[device][0].lstrip("FBWORC"))


DAMAGES = (
    _drop, _double, _elsewhere, _backward_first, _weights_first, _crossed, _unknown, _no_op, _empty, _moved,
)  # fmt: skip
TO_DAMAGE = [one for one in SAMPLE if one.microbatches > 1 and size(one) < 700]


@pytest.fixture
def copied(tmp_path: Path):
    """Copies an instance's folder, so that it can be damaged."""

    def copy(one: Instance) -> Instance:
        folder = tmp_path / one.folder.name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(one.folder, folder)
        return replace(one, folder=folder)

    return copy


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(TO_DAMAGE),
    st.sampled_from(DAMAGES),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)
def test_the_checker_rejects_damaged_schedules(copied, one, damage, device: int, at: int) -> None:
    one = copied(one)
    programs = programs_of(one)
    device %= len(programs)
    damage(programs, device, at % len(programs[device]))
    write(one, programs)
    assert problems(one) != []


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(TO_DAMAGE), st.data())
def test_the_checker_rejects_what_records_claim_too_much(copied, one, data) -> None:
    less = data.draw(st.integers(1, one.best.ns), "less")
    more = data.draw(st.integers(1, 99), "more")
    wrong = data.draw(
        st.sampled_from(
            [
                replace(one, best=replace(one.best, ns=one.best.ns - less)),
                replace(one, bound=replace(one.bound, ns=one.best.ns + less)),
                replace(one, devices=one.devices + more),
                replace(one, microbatches=one.microbatches + more),
                replace(one, limit_bytes=_too_little(one)),
            ]
        )
    )
    if wrong.limit_bytes != one.limit_bytes:  # its file has the name of the limit
        wrong = replace(copied(one), limit_bytes=wrong.limit_bytes)
    assert problems(wrong) != []


def _too_little(one: Instance) -> int:
    """A limit below what the static bytes and one activation of the fullest device take."""
    return max(one.load_profile().static_bytes) + 1


def test_the_checker_rejects_what_exceeds_the_limit(copied) -> None:
    """With all forwards first, every activation of a stage is held at once."""
    tried = 0
    for one in TO_DAMAGE:
        costs = one.load_profile()
        held = one.microbatches * costs.stages[0].act_bytes + costs.static_bytes[0]
        if costs.offload is not None or costs.has_levels or held <= one.limit_bytes:
            continue
        one = copied(one)
        write(one, [sorted(ops, key=lambda op: op[0] != "F") for ops in programs_of(one)])
        assert "are held" in problems(one)[0]
        tried += 1
    assert tried >= 10


@pytest.mark.parametrize("keep", [0, 1, 40, 100])
def test_the_checker_rejects_files_that_are_cut_off(copied, keep: int) -> None:
    one = copied(SMALL[0])
    one.schedule_path.write_bytes(one.schedule_path.read_bytes()[:keep])
    assert "is damaged" in problems(one)[0]
    one = copied(SMALL[0])
    (one.folder / PROFILE).write_text((one.folder / PROFILE).read_text()[:keep])
    assert problems(one) != []


# -- bounds ---------------------------------------------------------------------------------------


@cache
def _read(path: Path) -> dict:
    return yaml.safe_load(path.read_text())


def raw(one: Instance) -> dict:
    """The profile as it is written."""
    return _read(one.folder / PROFILE)


def stages_of(data: dict) -> list[dict]:
    found = data["stages"]
    return found if isinstance(found, list) else [found] * data["devices"] * data["chunks"]


def devices_of(data: dict) -> tuple[int, ...]:
    p, v = data["devices"], data["chunks"]
    if data["placement"] == "vee":
        return (*range(p), *reversed(range(p)))
    return tuple(stage % p for stage in range(p * v))


def pipeline(one: Instance) -> Pipeline:
    data = raw(one)
    stages = stages_of(data)
    static = [0] * data["devices"]
    for device, stage in zip(devices_of(data), stages, strict=True):
        static[device] += stage.get("static_bytes", 0)
    return Pipeline(
        times=tuple((s["t_f_ns"], s["t_b_ns"], s["t_w_ns"]) for s in stages),
        act=tuple(s["act_bytes"] for s in stages),
        kept=tuple(s["w_bytes"] for s in stages),
        device=devices_of(data),
        message=data["t_comm_ns"],
        microbatches=one.microbatches,
        room=tuple(one.limit_bytes - bytes_ for bytes_ in static),
    )


def test_there_are_twenty_small_ones() -> None:
    assert len(SMALL) >= 20
    assert {one.bound.how for one in SMALL} >= {"work", "fill and drain", "one device"}


@pytest.mark.parametrize("one", SMALL, ids=lambda one: one.name)
def test_an_exhaustive_search_confirms_bound_and_schedule(one: Instance) -> None:
    small = pipeline(one)
    assert not can_take(small, one.bound.ns - 1)
    assert one.best.ns == one.bound.ns
    assert can_take(small, one.best.ns)


def test_the_exhaustive_search_knows_published_makespans() -> None:
    # GPipe without a limit: (m + p - 1)(f + b) with w = 0; one device of one microbatch
    one = Pipeline(((2, 3, 0),) * 3, (1,) * 3, (0,) * 3, (0, 1, 2), 0, 4, (9,) * 3)
    assert can_take(one, (4 + 3 - 1) * 5)
    assert not can_take(one, (4 + 3 - 1) * 5 - 1)
    # in the room of one activation microbatches follow one another
    alone = replace(one, room=(1,) * 3)
    assert can_take(alone, 4 * 3 * 5)
    assert not can_take(alone, 4 * 3 * 5 - 1)


def _work_anew(data: dict, microbatches: int) -> int:
    """The most that a device has to do, after the forwards of the stages before its first."""
    stages, devices = stages_of(data), devices_of(data)
    message = data.get("t_comm_ns", 0) + data.get("t_comm", {}).get("latency_ns", 0)
    message += data.get("t_comm", {}).get("message_bytes", 0)  # at 1 GB/s, as profiles are written
    best = 0
    for device in range(data["devices"]):
        own = [at for at, owner in enumerate(devices) if owner == device]
        head = sum(
            stages[at]["t_f_ns"] + (message if devices[at] != devices[at + 1] else 0)
            for at in range(own[0])
        )
        each = sum(
            stages[at]["t_f_ns"]
            + min(stages[at]["t_b_ns"] + stages[at]["t_w_ns"], stages[at].get("t_bw_ns", 2**62))
            for at in own
        )
        best = max(best, head + microbatches * each)
    return best


def test_bounds_of_work_are_confirmed_from_the_files_alone() -> None:
    found = [
        one
        for one in EVERY
        if one.bound.how == "work" and "slices" not in raw(one) and raw(one)["links"] == "latency"
    ]
    assert len(found) >= 50
    for one in found:
        data = raw(one)
        assert "t_overhead_ns" not in data, one.name
        assert _work_anew(data, one.microbatches) == one.bound.ns, one.name


def test_records_are_plain_json() -> None:
    for path in LIBRARY.glob("*/records.json"):
        assert set(json.loads(path.read_text())) == {
            "format", "version", "model", "source", "devices", "chunks", "microbatches", "instances",
        }, path  # fmt: skip
