"""The atlas from the command line, on a small library; the one that ships is in tests/atlas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optpipe_sim import build, check, load_profile
from optpipe_sim.atlas.instances import PROFILE, Instance, Record, read_instance, write_instance
from optpipe_sim.atlas.records import with_schedule
from optpipe_sim.profile_io import save_profile

STAGES = {"t_f_us": 10, "t_b_us": 11, "t_w_us": 9, "act_gib": 2, "w_gib": 1}
M = 6


@pytest.fixture
def here(command_line):
    """An empty folder with a library `lib` of two instances, one with 1F1B, one that nothing is known of."""
    folder = Path("lib/toy")
    save_profile(
        load_profile({"devices": 3, "stages": STAGES, "t_comm_us": 1, "name": "toy"}),
        folder / PROFILE,
    )
    one = Instance("toy@6GiB", folder, "toy-7b", "made up", 3, 1, M, 6 * 2**30)
    schedule = build("1f1b", one.load_profile(), M)
    one = with_schedule(one, schedule, Record(0, "1f1b", "a test"))
    write_instance(one, schedule)
    write_instance(Instance("toy@2GiB", folder, "toy-7b", "made up", 3, 1, M, 2 * 2**30))
    build("zb-h1", one.load_profile(), M).save("zb-h1.json")
    build("gpipe", one.load_profile(), M).save("gpipe.json")
    return command_line


def names(answer) -> list[str]:
    return [one["name"] for one in answer.json["instances"]]


def test_list_filters(here) -> None:
    assert names(here("atlas list --library lib --json")) == ["toy@6GiB", "toy@2GiB"]
    assert names(here("atlas list 2GiB --library lib --json")) == ["toy@2GiB"]
    assert names(here("atlas list --memory-limit 3GiB --library lib --json")) == ["toy@2GiB"]
    assert names(here("atlas list --model TOY-7 --devices 3 --library lib --json"))
    assert here("atlas list --devices 4 --library lib").code == 1
    assert here("atlas list --model other --library lib").code == 1
    here("atlas submit --bound 1us --proof work --by me --instance toy@6GiB --library lib")
    assert names(here("atlas list --gap 1% --library lib --json")) == ["toy@6GiB", "toy@2GiB"]
    # without a bound and without a schedule nothing is closed
    assert names(here("atlas list --gap 99999% --library lib --json")) == ["toy@2GiB"]
    text = here("atlas list --library lib").out
    assert "none known" in text
    assert "2 instances, 0 of them proven optimal" in text


def test_get_writes_profile_and_schedule(here) -> None:
    answer = here("atlas get toy@6GiB --save s.json --save-profile p.yaml --library lib --json")
    assert (answer.code, answer.json["best"]["how"]) == (0, "1f1b")
    assert answer.json["schedule"] == json.loads(Path("s.json").read_text())
    assert here("simulate p.yaml --schedule s.json --json").json["fits"]
    assert here("check s.json p.yaml").code == 0
    assert load_profile("p.yaml").memory_limit == (6 * 2**30,) * 3
    assert here("atlas get toy@2GiB --library lib").code == 0
    assert "no schedule is known" in here("atlas get toy@2GiB --save t.json --library lib").err


def test_check_says_what_is_wrong(here) -> None:
    answer = here("atlas check --library lib --json")
    assert (answer.code, answer.json["problems"]) == (0, {})
    assert (answer.json["instances"], answer.json["schedules"]) == (2, 1)
    records = Path("lib/toy/records.json")
    records.write_text(records.read_text().replace('"ns": ', '"ns": 9'))
    answer = here("atlas check --library lib --json")
    assert answer.code == 1
    assert "the record says" in answer.json["problems"]["toy@6GiB"][0]
    assert "toy@6GiB" in here("atlas check --library lib").out


def test_a_better_schedule_is_one_file_and_one_command(here) -> None:
    line = "atlas submit zb-h1.json --instance toy@6GiB --by me --how thinking --library lib"
    answer = here(f"{line} --json")
    assert (answer.code, answer.json["accepted"]) == (0, True)
    known = read_instance("toy@6GiB", "lib")
    assert (known.best.by, known.best.how) == ("me", "thinking")
    profile = known.load_profile()
    assert check(known.load_schedule(profile), profile) == []
    again = here(f"{line} --json")  # no better than itself
    assert (again.code, again.json["accepted"]) == (1, False)
    assert "no less than" in again.json["reason"]
    damaged = here("atlas submit gpipe.json --instance toy@6GiB --by me --library lib")
    assert damaged.code == 1
    assert "not valid" in damaged.out
    assert here("atlas check --library lib").code == 0


def test_a_bound_is_computed_again(here) -> None:
    line = "atlas submit --instance toy@6GiB --by me --library lib --proof"
    assert here(f"{line} work --bound 100us --json").json["accepted"]
    assert read_instance("toy@6GiB", "lib").bound.ns == 100_000
    refused = here(f"{line} work --bound 229us --json")
    assert (refused.code, refused.json["accepted"]) == (1, False)
    assert here("atlas check --library lib --lp --json").json["bounds_computed_again"] == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("get", "give the name of an instance"),
        ("get toy@5GiB", "its limits there: toy@6GiB"),
        ("get toy@6GiB --gap 1%", "--gap: only with list"),
        ("list --save s.json", "--save: only with get"),
        ("list --library none", "none: no such folder"),
        ("submit zb-h1.json --by me", "--instance: give the name"),
        ("submit --instance toy@6GiB --by me", "give a schedule file"),
        ("submit zb-h1.json --instance toy@6GiB", "--by: say who"),
        ("submit --bound 1us --instance toy@6GiB --by me", "give both"),
        ("submit --bound x --instance toy@6GiB --by me", "not a time"),
        ("submit --bound 1us --proof faith --instance toy@6GiB --by me", "expected one of work"),
        ("submit none.json --instance toy@6GiB --by me", "none.json: no such file"),
        ("take", "invalid choice"),
    ],
)
def test_bad_input_is_one_line(here, line: str, message: str) -> None:
    answer = here(f"atlas {line}" + ("" if "--library" in line else " --library lib"))
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1
