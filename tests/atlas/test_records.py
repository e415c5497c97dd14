"""The atlas's files and its checker, on a library of two instances: what is read back, refused and accepted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from optpipe_sim import build, simulate
from optpipe_sim.atlas.instances import (
    Record,
    read_instance,
    read_library,
    write_instance,
)
from optpipe_sim.atlas.proofs import proven
from optpipe_sim.atlas.records import Refused, with_bound, with_schedule
from optpipe_sim.atlas.verify import problems
from optpipe_sim.errors import OptPipeError

M = 6  # microbatches of `make`'s instances


def test_an_instance_is_read_back(make, tmp_path: Path) -> None:
    one = make()
    one = replace(one, bound=Record(1000, "work", "a test", seconds=1.5))
    write_instance(one)
    other = make("zb-h1", "other")
    assert read_library(tmp_path / "lib") == [other, one]  # by name
    assert read_instance("toy@6GiB", tmp_path / "lib") == one
    profile = one.load_profile()
    trace = simulate(one.load_schedule(), profile)
    assert trace.makespan_ns == one.best.ns
    assert problems(one) == []
    assert one.gap == pytest.approx(one.best.ns / 1000 - 1)
    assert one.to_json()["best"]["how"] == "1f1b"


def test_a_second_limit_leaves_the_first_alone(make, tmp_path: Path) -> None:
    one = make()
    write_instance(replace(one, name="toy@2GiB", limit_bytes=2**31, best=None))
    assert read_instance("toy@6GiB", tmp_path / "lib") == one
    known = read_instance("toy@2GiB", tmp_path / "lib")
    assert (known.best, known.gap) == (None, None)
    assert problems(known) == []
    with pytest.raises(OptPipeError, match="no schedule is known"):
        known.load_schedule()


def test_only_what_is_better_is_accepted(make) -> None:
    one = make()
    profile = one.load_profile()
    record = Record(0, "by hand", "a test")
    with pytest.raises(Refused, match="no less than the"):
        with_schedule(one, build("1f1b", profile, M), record)
    better = with_schedule(one, build("zb-h1", profile, M), replace(record, ns=1))
    assert better.best.ns == simulate(build("zb-h1", profile, M), profile).makespan_ns
    with pytest.raises(Refused, match="not valid: the programs get stuck"):
        with_schedule(one, build("gpipe", profile, M), record)
    with pytest.raises(Refused, match="4 microbatches"):
        with_schedule(one, build("zb-h1", profile, 4), record)
    proud = replace(one, bound=Record(one.best.ns - 1, "work", "a test"))
    with pytest.raises(Refused, match="less than the proven bound"):
        with_schedule(proud, build("zb-h1", profile, M), record)


def test_only_bounds_that_are_computed_again_are_accepted(make) -> None:
    one = make()
    most = proven(one, one.load_profile(), "work")
    bounded = with_bound(one, Record(most, "work", "a test"))
    assert bounded.bound.ns == most <= one.best.ns
    with pytest.raises(Refused, match="is not confirmed: work proves"):
        with_bound(one, Record(most + 1, "work", "a test"))
    with pytest.raises(Refused, match="is no bound: a schedule takes"):
        with_bound(one, Record(one.best.ns + 1, "work", "a test"))
    with pytest.raises(Refused, match="no more than the bound"):
        with_bound(bounded, Record(most, "work", "a test"))
    with pytest.raises(OptPipeError, match="expected one of work"):
        with_bound(one, Record(most, "cpsat", "a test"))


def test_what_contradicts_is_found(make) -> None:
    one = make("zb-h1")
    (wrong,) = problems(replace(one, best=replace(one.best, ns=one.best.ns - 1)))
    assert "the record says" in wrong
    (wrong,) = problems(replace(one, bound=Record(one.best.ns + 1, "work", "a test")))
    assert "which is therefore wrong" in wrong
    (wrong,) = problems(replace(one, devices=4))
    assert wrong == "the records say 4 devices, the profile 3"
    (wrong,) = problems(replace(one, limit_bytes=2 * 2**30))
    assert "the programs get stuck" in wrong or "needs" in wrong


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "expected optpipe-atlas 1"),
        ({"version": 2}, "expected optpipe-atlas 1"),
        ({"instances": {"6GiB": {"best": {"ns": "1"}}}}, "is damaged"),
        ({"instances": {"6GiB": {"best": {"ns": -1, "how": "x", "by": "y"}}}}, "is damaged"),
        ({"instances": {"much": {}}}, "is not a size"),
        ({"instances": []}, "is damaged"),
        ({"devices": None}, "is damaged"),
    ],
)
def test_damaged_records_are_named(make, tmp_path: Path, change: dict, message: str) -> None:
    one = make()
    path = one.folder / "records.json"
    data = json.loads(path.read_text()) | change
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))
    with pytest.raises(OptPipeError, match=message) as caught:
        read_library(tmp_path / "lib")
    assert "records.json" in str(caught.value)


def test_damaged_schedules_are_named(make) -> None:
    one = make()
    one.schedule_path.write_bytes(b"no xz")
    (wrong,) = problems(one)
    assert "6GiB.schedule.xz: is damaged" in wrong
    one.schedule_path.unlink()
    assert "no such file" in problems(one)[0]


def test_a_name_that_is_not_there_gets_the_nearest(make, tmp_path: Path) -> None:
    make()
    with pytest.raises(OptPipeError, match="its limits there: toy@6GiB"):
        read_instance("toy@7GiB", tmp_path / "lib")
    with pytest.raises(OptPipeError, match="toy@6GiB"):
        read_instance("tou@6GiB", tmp_path / "lib")
    with pytest.raises(OptPipeError, match="no such folder"):
        read_library(tmp_path / "none")
