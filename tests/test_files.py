"""Profiles, schedules and traces read back from files as they were written; other numbers of chunks."""

from __future__ import annotations

import codecs
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import cases, profiles
from unit_profiles import unit_profile

from optpipe_sim import (
    CostProfile,
    Schedule,
    Trace,
    load_profile,
    save_profile,
    simulate,
)
from optpipe_sim.errors import OptPipeError, ProfileError, hint_for
from optpipe_sim.files import read_mapping
from optpipe_sim.ops import Op, OpKind, parse_op
from optpipe_sim.profile_io import profile_to_json

# -- round trips --------------------------------------------------------------------------------------


@given(profile=profiles(), ending=st.sampled_from(["yaml", "json"]))
@settings(max_examples=40, deadline=None)
def test_profiles_come_back(profile: CostProfile, ending: str) -> None:
    profile = replace(profile, meta={"source": "drawn", "table": 5})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"profile.{ending}"
        save_profile(profile, path)
        back = load_profile(path)
        assert os.listdir(folder) == [path.name]
    assert back == profile
    assert back.meta == profile.meta
    assert load_profile(profile_to_json(profile)) == profile


@given(case=cases(levels=True))
@settings(max_examples=40, deadline=None)
def test_schedules_and_traces_come_back(case: tuple[CostProfile, Schedule]) -> None:
    profile, schedule = case
    schedule = schedule.replace(meta={"name": "drawn", "notes": {"gap": 0.5, "tried": [1e-3, 2]}})
    trace = simulate(schedule, profile, enforce=False, objective="span")
    with tempfile.TemporaryDirectory() as folder:
        schedule.save(Path(folder) / "schedule.json")
        schedule_text = (Path(folder) / "schedule.json").read_text()
        trace.save(Path(folder) / "trace.json")
        back = Schedule.load(Path(folder) / "schedule.json")
        back.save(Path(folder) / "again.json")
        assert (Path(folder) / "again.json").read_text() == schedule_text
        assert Trace.load(Path(folder) / "trace.json") == trace
    assert back == schedule
    assert back.meta == schedule.meta
    assert Schedule.from_text(schedule.shape, schedule.to_text()) == schedule
    assert (
        Schedule.from_table(
            schedule.shape,
            schedule.table,
            schedule.offsets,
            schedule.link_order,
            recompute=schedule.levels,
        )
        == schedule
    )


@given(st.sampled_from(OpKind), st.integers(0, 9999), st.integers(0, 9999))
def test_ops_come_back(kind: OpKind, stage: int, microbatch: int) -> None:
    assert parse_op(str(Op(kind, stage, microbatch))) == (kind, stage, microbatch)


def test_a_trace_under_a_limit_comes_back(tmp_path: Path) -> None:
    profile = unit_profile(2)
    schedule = Schedule(profile.shape(1), [["F0.0", "BW0.0"], ["F1.0", "BW1.0"]])
    trace = replace(simulate(schedule, profile, (100, 120)), fits=False)
    trace.save(tmp_path / "t.json")
    back = Trace.load(tmp_path / "t.json")
    assert back == trace
    assert back.memory_limit == (100, 120)
    assert back != replace(trace, fits=True)


# -- other numbers of chunks --------------------------------------------------------------------------

ADDED = (
    "t_f_ns",
    "t_b_ns",
    "t_w_ns",
    "fused_ns",
    "act_bytes",
    "w_bytes",
    "offloadable",
    "static_bytes",
)


@given(profile=profiles(max_chunks=3), chunks=st.integers(1, 6))
@settings(max_examples=80, deadline=None)
def test_rechunking_keeps_the_totals(profile: CostProfile, chunks: int) -> None:
    shortest = min(min(c.t_f_ns, c.t_b_ns, c.fused_ns) for c in profile.stages)
    if shortest < chunks:
        try:
            other = profile.rechunk(chunks)
        except ProfileError as error:
            assert "cannot be divided" in str(error)  # noqa: PT017
            return
    else:
        other = profile.rechunk(chunks)
    assert len(other.stages) == profile.devices * chunks
    assert other.placement == tuple(list(range(profile.devices)) * chunks)
    for key in ADDED:
        assert sum(getattr(c, key) for c in other.stages) == sum(
            getattr(c, key) for c in profile.stages
        )
    if profile.offload is not None:
        for key in ("t_offload_ns", "t_reload_ns"):
            assert sum(getattr(c, key) for c in other.stages) == sum(
                getattr(c, key) for c in profile.stages
            )
    if chunks % profile.chunks == 0 and other.chunks != profile.chunks:
        merged = other.rechunk(profile.chunks, list(profile.placement))
        assert [c.t_f_ns for c in merged.stages] == [c.t_f_ns for c in profile.stages]
        assert [c.act_bytes for c in merged.stages] == [c.act_bytes for c in profile.stages]


def test_rechunking_by_hand() -> None:
    profile = unit_profile(2, stages=[
        {"t_f_ns": 7, "t_b_ns": 8, "t_w_ns": 3, "act_bytes": 10, "w_bytes": 9, "static_bytes": 5},
        {"t_f_ns": 4, "t_b_ns": 4, "t_w_ns": 4, "act_bytes": 4},
    ])  # fmt: skip
    three = profile.rechunk(3)
    assert [c.t_f_ns for c in three.stages] == [3, 2, 2, 2, 1, 1]
    assert [c.t_w_ns for c in three.stages] == [1, 1, 1, 2, 1, 1]
    assert [c.static_bytes for c in three.stages] == [3, 1, 1, 0, 0, 0]
    assert three.placement == (0, 1, 0, 1, 0, 1)
    assert profile.rechunk(2, "vee").placement == (0, 1, 1, 0)
    assert profile.rechunk(1) is profile
    assert three.rechunk(1) == profile
    # from 3 to 2 chunks: cut to the finest common parts, then merged
    cut = unit_profile(1, 3, stages={"t_f_ns": 7, "t_b_ns": 4, "t_w_ns": 1, "act_bytes": 3})
    two = cut.rechunk(2)
    assert [c.t_f_ns for c in two.stages] == [4 + 3 + 4, 3 + 4 + 3]
    assert [c.t_w_ns for c in two.stages] == [1 + 0 + 1, 0 + 1 + 0]
    with pytest.raises(ProfileError, match="chunks: must be a whole number from 1 to 4096"):
        profile.rechunk(0)
    with pytest.raises(ProfileError, match="vee needs 2 chunks"):
        profile.rechunk(3, "vee")
    with pytest.raises(ProfileError, match="a stage of 4 ns cannot be divided into 5 chunks"):
        profile.rechunk(5)


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    """As editors on Windows write one."""
    for name, text in (("a.json", '{"a": 1}'), ("a.yaml", "a: 1\n")):
        path = tmp_path / name
        path.write_bytes(codecs.BOM_UTF8 + text.encode())
        assert read_mapping(path) == {"a": 1}
    (tmp_path / "cut.json").write_text('{"a": "b')
    with pytest.raises(OptPipeError, match=r"Unterminated string starting at line 1"):
        read_mapping(tmp_path / "cut.json")


def test_many_known_names_are_not_all_told() -> None:
    assert hint_for("x", ["one", "two"]) == "known are one, two"
    assert hint_for("x", [f"name-{at:04}" for at in range(500)]).endswith(", ... (500 in all)")
    assert len(hint_for("x", [f"name-{at:04}" for at in range(500)])) < 450
    assert hint_for("x", ["y" * 1000]) == f"known are {'y' * 1000}"
