"""Files that are refused: one line that names the file, the key and what would be right."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from file_cases import BASE, with_key
from unit_profiles import unit_profile

from optpipe_sim import (
    Schedule,
    Shape,
    Trace,
    build,
    load_profile,
    save_profile,
    simulate,
)
from optpipe_sim.errors import Deadlock, InvalidSchedule, OptPipeError, OutOfMemory, ProfileError
from optpipe_sim.units import (
    parse_size,
)

# -- bad profiles -------------------------------------------------------------------------------------

NAN = float("nan")
BAD_PROFILES: list[tuple[str, Any, str]] = [
    ("devices", ..., "devices: missing"),
    ("devices", 0, "devices: must be a whole number from 1 to 4096, got 0"),
    ("devices", 2.5, "devices: expected a whole number"),
    ("devices", True, "devices: expected a whole number, got True"),
    ("chunks", 0, "chunks: must be a whole number from 1 to 4096, got 0"),
    ("chunk", 2, "chunk: unknown key; did you mean chunks?"),
    ("name", 7, "name: expected a text, got 7"),
    ("stages", ..., "stages: missing"),
    ("stages", 3, "stages: expected a mapping or a list of 2, got 3"),
    ("stages", [BASE["stages"]], "stages: lists 1 stages, expected devices x chunks = 2"),
    ("stages", [BASE["stages"], {"t_f_ms": 1}], "stages[1].t_b_ms: missing (one of t_b_s, t_b_ms, t_b_us, t_b_ns)"),
    ("stages.t_f_ms", ..., "stages.t_f_ms: missing (one of t_f_s, t_f_ms, t_f_us, t_f_ns)"),
    ("stages.act_mib", ..., "stages.act_mib: missing (one of act_bytes, act_mib, act_gib)"),
    ("stages.t_f_ms", -1, "stages.t_f_ms: must be above 0, got -1"),
    ("stages.t_f_ms", 0, "stages.t_f_ms: must be above 0, got 0"),
    ("stages.t_w_ms", -0.5, "stages.t_w_ms: must be at least 0, got -0.5"),
    ("stages.t_b_ms", NAN, "stages.t_b_ms: expected a finite number, got nan"),
    ("stages.t_b_ms", float("inf"), "stages.t_b_ms: expected a finite number, got inf"),
    ("stages.t_b_ms", "5", "stages.t_b_ms: expected a number, got '5'"),
    ("stages.t_b_ms", None, "stages.t_b_ms: expected a number, got None"),
    ("stages.t_f_hours", 1, "stages.t_f_hours: unknown key; did you mean t_f_ms?"),
    ("stages.t_f_us", 1, "stages.t_f_us: given twice, also as t_f_ms"),
    ("stages.act_gb", 1, "stages.act_gb: unknown key"),
    ("stages.act_mib", -1, "stages.act_mib: must be at least 0, got -1"),
    ("stages.w_mib", 11, "w_bytes: 11 MiB is more than act_bytes, 10 MiB"),
    ("stages.offload_mib", 11, "offload_bytes: 11 MiB is more than act_bytes, 10 MiB"),
    ("stages.t_bw_ns", 0.4, "stages.t_bw_ns: 0.4 rounds to 0 ns, must be above"),
    ("stages.t_f_s", 2e6, "stages.t_f_ms: given twice, also as t_f_s"),
    ("placement", [0, 0], "placement: device 1 has no stage"),
    ("placement", [0], "placement: lists 1 stages, but 2 devices x 1 chunks make 2"),
    ("placement", [0, 2], "placement: stage 1 is on device 2; devices are 0 to 1"),
    ("placement", "vee", "placement: vee needs 2 chunks per device, here are 1"),
    ("placement", "spiral", "placement: expected loop, vee or a list with the device of each stage, got 'spiral'"),
    ("t_comm_us", -1, "t_comm_us: must be at least 0, got -1"),
    ("t_comm", 1, "t_comm_us: given twice, also as t_comm"),
    ("t_comm_ms", 1, "given twice, also as t_comm_ms"),
    ("t_comm_us", {"latency_us": 1, "message_mib": 1}, "t_comm_us.gb_per_s: missing"),
    ("t_comm_us", {"latency_us": 1, "message_mib": 1, "gb_per_s": 0}, "t_comm_us.gb_per_s: must be above 0, got 0"),
    ("t_comm_us", {"speed": 1}, "t_comm_us.speed: unknown key; known are latency_us, gb_per_s, message_mib"),
    ("links", "parallel", "links: expected latency, serial or blocking, got 'parallel'"),
    ("memory_limit_gib", -1, "memory_limit_gib: must be at least 0, got -1"),
    ("memory_limit_gib", [1], "memory_limit_gib: lists 1 devices, but there are 2"),
    ("memory_limit_gib", [1, NAN], "memory_limit_gib[1]: expected a finite number, got nan"),
    ("memory_limit_gib", 2**40, "memory_limit_gib: 1099511627776 is 1.074e+09 TiB, more than any device has; did you mean memory_limit_bytes?"),
    ("memory_limit", 1, "memory_limit: unknown key"),
    ("meta", 1, "meta: expected a mapping, got 1"),
    ("offload", 1, "offload: expected a mapping, got 1"),
    ("offload.t_reload_ms", ..., "offload.t_reload_ms: give t_reload_ms or h2d_gb_per_s, and not both"),
    ("offload.h2d_gb_per_s", 1, "offload.t_reload_ms: give t_reload_ms or h2d_gb_per_s, and not both"),
    ("offload.t_offload_ms", [1], "offload.t_offload_ms: lists 1 stages, expected 2"),
    ("offload.t_offload_ms", -1, "offload.t_offload_ms: must be at least 0, got -1"),
    ("offload.copy_engines", "two", "offload.copy_engines: expected separate or shared, got 'two'"),
    ("offload.host_link", "both", "offload.host_link: expected per_direction or single, got 'both'"),
    ("offload.host_link_groups", [[0, 1], [1]], "offload.host_link_groups: groups overlap: device 1"),
    ("offload.host_link_groups", [[0, 2]], "offload.host_link_groups: device 2 does not exist; devices are 0 to 1"),
    ("offload.host_link_groups", [0, 1], "offload.host_link_groups: expected lists of devices"),
    ("offload.host_link_groups", 0, "offload.host_link_groups: expected lists of devices"),
    ("offload.host_link_groups", "", "offload.host_link_groups: expected lists of devices"),
    ("offload.devices_per_node", 0, "offload.devices_per_node: must be from 1 to 2, got 0"),
    ("offload.devices_per_node", 3, "offload.devices_per_node: must be from 1 to 2, got 3"),
    ("offload.host_limit_gib", -1, "offload.host_limit_gib: must be at least 0, got -1"),
    ("offload.host_limit_gib", 2**63, "offload.host_limit_gib: 9223372036854775808 is 9.007e+15 TiB, more than any device has"),
    ("offload.engines", 1, "offload.engines: unknown key; did you mean copy_engines?"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "message"), BAD_PROFILES)
def test_bad_profiles_are_refused_by_name(
    tmp_path: Path, path: str, value: Any, message: str
) -> None:
    data = with_key(path, value)
    with pytest.raises(ProfileError) as of_mapping:
        load_profile(data)
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(ProfileError) as of_file:
        load_profile(file)
    assert message in str(of_mapping.value)
    assert str(of_file.value).startswith(f"{file}: ")
    assert message in str(of_file.value).replace("NaN", "nan").replace("Infinity", "inf")
    assert "\n" not in str(of_file.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"devices": 2, "stages": {', "not valid JSON"),
        ("b.json", '{"devices": 2, "stages": {', "(the file ends there: truncated?)"),
        ("c.json", '{"devices": 2,, }', "not valid JSON: Expecting property name"),
        ("d.yaml", "devices: 2\ndevices: 3\n", "not valid YAML: key 'devices' is given twice at line 2, column 1"),
        ("e.yaml", "stages: {t_f_ms: 1, t_f_ms: 2}\n", "key 't_f_ms' is given twice at line 1"),
        ("f.yaml", "devices: [1\n", "not valid YAML"),
        ("g.yaml", "- 1\n- 2\n", "holds list, expected a mapping of keys"),
        ("h.yaml", "", "is empty, expected a mapping of keys"),
        ("i.json", "[]", "holds list, expected a mapping of keys"),
        ("j.yaml", "? [1, 2]\n: 3\n", "not valid YAML"),
        ("k.json", '{"devices": 2, "devices": 3}', "key 'devices' is given twice"),
        ("l.yaml", "devices: 1:30.5\n", "not valid YAML: 1:30.5 is no decimal number at line 1"),
        ("m.yaml", "devices: 2026-02-30\n", "devices: expected a whole number, got '2026-02-30'"),
        ("n.json", '{"devices": ' + "[" * 100_000, "cannot be parsed: it is nested too deeply"),
        ("n2.yaml", "devices: " + "[" * 100_000, "cannot be parsed: it is nested too deeply"),
        ("o.json", '{"devices": ' + "9" * 5000 + "}", "cannot be parsed: a number of too many digits"),
        ("q.yaml", "devices: 1\nstages: {t_f_ms: 1e999999999}\n", "stages.t_f_ms: expected a number of sensible size"),
        ("p.yaml", "devices: 1\nt_comm: 1\nstages: {t_f_ms: 1, t_b_ms: 1, t_w_ms: 1, act_mib: 1}\n", "t_comm: unknown key; write t_comm_ms (or _s, _us, _ns)"),
    ],
)  # fmt: skip
def test_files_that_are_none(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(OptPipeError) as error:
        load_profile(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unreadable_and_unwritable_paths(tmp_path: Path) -> None:
    with pytest.raises(OptPipeError, match=r"none\.yaml: no such file"):
        load_profile(tmp_path / "none.yaml")
    with pytest.raises(OptPipeError, match="cannot be read: Is a directory"):
        load_profile(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(OptPipeError, match=r"bytes\.yaml: cannot be read: not UTF-8 text"):
        load_profile(tmp_path / "bytes.yaml")
    profile = unit_profile(1)
    schedule = Schedule(profile.shape(1), [["F0.0", "BW0.0"]])
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "file" / "below.json", Path("/proc/none/x.json")):
        for save in (
            schedule.save,
            simulate(schedule, profile).save,
            lambda p: save_profile(profile, p),
        ):
            with pytest.raises(OptPipeError, match="cannot be written") as error:
                save(bad)
            assert str(error.value).startswith(f"{bad}: ")
    taken = tmp_path / "taken.json"
    taken.mkdir()
    with pytest.raises(OptPipeError, match=r"taken\.json: cannot be written: Is a directory"):
        schedule.save(taken)
    assert sorted(os.listdir(tmp_path)) == ["bytes.yaml", "file", "taken.json"]


# -- bad schedules ------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "format": "optpipe-schedule",
    "version": 1,
    "shape": {"devices": 2, "chunks": 1, "microbatches": 1, "placement": "loop"},
    "programs": [["F0.0", "O0.0", "R0.0", "BW0.0"], ["F1.0", "B1.0", "W1.0"]],
    "link_order": {"0/O": ["O0.0"]},
}
BAD_SCHEDULES: list[tuple[str, Any, str]] = [
    ("format", ..., "format: expected 'optpipe-schedule', got None"),
    ("version", 2, "version: this program reads version 1, the file has 2"),
    ("program", [], "program: unknown key; known are format, link_order, meta, programs, recompute, shape, version"),
    ("shape", ..., "shape: expected a mapping of devices, chunks, microbatches, placement"),
    ("shape.devices", ..., "shape.devices: missing"),
    ("shape.microbatches", ..., "shape.microbatches: missing"),
    ("shape.stages", 2, "shape.stages: unknown key; known are devices, chunks, microbatches, placement"),
    ("shape.microbatches", 0, "microbatches: must be a whole number of at least 1, got 0"),
    ("shape.devices", "2", "devices: must be a whole number of at least 1, got '2'"),
    ("shape.placement", [0, 0], "placement: device 1 has no stage"),
    ("shape.placement", "vee", "placement: vee needs 2 chunks per device, here are 1"),
    ("programs", ..., "programs: expected a list with one list of ops per device"),
    ("programs", [["F0.0"], "F1.0"], "programs: expected a list with one list of ops per device"),
    ("programs", [["F0.0", "BW0.0"]], "programs: 1 programs for 2 devices; give one per device"),
    ("programs", [["X0.0"], []], "'X0.0' is not an op: write KIND stage . microbatch, as in F3.7"),
    ("programs", [[7], []], "7 is not an op"),
    ("programs", [["F2.0"], []], "device 0: F2.0 is outside the shape: stages are 0 to 1, microbatches 0 to 0"),
    ("link_order", ["O0.0"], 'link_order: expected a mapping such as {"0/O": ["O0.0", ...]}'),
    ("link_order", {"0/O": ["F0.0"]}, "link_order 0/O: F0.0 is no transfer of this shape"),
    ("meta", 3, "meta: expected a mapping"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "message"), BAD_SCHEDULES)
def test_bad_schedule_files_are_refused_by_name(
    tmp_path: Path, path: str, value: Any, message: str
) -> None:
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(with_key(path, value, GOOD)))
    with pytest.raises(InvalidSchedule) as error:
        Schedule.load(file)
    assert str(error.value).startswith(f"{file}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_truncated_and_foreign_schedule_files(tmp_path: Path) -> None:
    file = tmp_path / "cut.json"
    text = json.dumps(GOOD)
    for size in (1, 40, len(text) // 2, len(text) - 1):
        file.write_text(text[:size])
        with pytest.raises(OptPipeError, match=r"cut\.json: not valid JSON") as error:
            Schedule.load(file)
        assert "\n" not in str(error.value)
    with pytest.raises(OptPipeError, match="format: expected 'optpipe-trace', version 1"):
        Trace.from_json(GOOD)
    with pytest.raises(InvalidSchedule, match=r"expected 'DEVICE: OP OP \.\.\.'"):
        Schedule.from_text(Shape(2, 1, 1), "2: F0.0")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("start_ns", ..., "start_ns: expected a list of 4 whole numbers"),
        ("end_ns", [1, 2], "end_ns: expected a list of 4 whole numbers"),
        ("grant_ns", [0, 0, 0, 2.5], "grant_ns: expected a list of 4 whole numbers"),
        ("grant_ns", [0, 0, 0, None], "grant_ns: expected a list of 4 whole numbers"),
        ("memory_limit_bytes", [1], "memory_limit_bytes: expected a list of 2 whole numbers"),
        ("profile", None, "profile: missing, or no mapping"),
        ("schedule", ..., "schedule: missing, or no mapping"),
        ("profile.devices", 0, "profile: devices: must be a whole number from 1 to 4096, got 0"),
        ("schedule.version", 0, "version: this program reads version 1, the file has 0"),
        ("objective", "speed", "objective: expected flush or span, got 'speed'"),
    ],
)
def test_bad_trace_files(tmp_path: Path, path: str, value: Any, message: str) -> None:
    profile = unit_profile(2)
    trace = simulate(Schedule(profile.shape(1), [["F0.0", "BW0.0"], ["F1.0", "BW1.0"]]), profile)
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(with_key(path, value, trace.to_json())))
    with pytest.raises(OptPipeError) as error:
        Trace.load(file)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


PROGRAMS = ["F0.0 O0.0 F0.1 BW0.1 R0.0 BW0.0", "F1.0 F1.1 B1.0 W1.0 B1.1 W1.1"]
BAD_PROGRAMS: list[tuple[str, str, type[Exception], str]] = [
    ("F0.1 ", "", InvalidSchedule, "device 0: F0.1 is missing"),
    ("B1.1 ", "", InvalidSchedule, "device 1: B1.1 is missing (and there is no BW for it)"),
    ("W1.0 ", "", InvalidSchedule, "device 1: W1.0 is missing (and there is no BW for it)"),
    ("F1.0 ", "F1.0 F1.0 ", InvalidSchedule, "device 1: F1.0 is in the program more than once"),
    ("B1.0 W1.0", "B1.0 W1.0 BW1.0", InvalidSchedule, "device 1: B1.0 is there as well as its BW"),
    ("O0.0 ", "", InvalidSchedule, "device 0: R0.0 reloads what no O offloads"),
    ("R0.0 ", "", InvalidSchedule, "device 0: O0.0 offloads what no R reloads"),
    ("F1.0 F1.1", "F1.0 F1.1 F0.1", InvalidSchedule, "device 1: F0.1 belongs on device 0"),
    ("F0.0 O0.0 F0.1 BW0.1 R0.0 BW0.0", "BW0.0 F0.0 O0.0 F0.1 BW0.1 R0.0", Deadlock, "device 0: BW0.0 waits for"),
    ("R0.0 BW0.0", "BW0.0 R0.0", Deadlock, "BW0.0 waits for R0.0"),
    ("F1.0 F1.1 B1.0 W1.0 B1.1 W1.1", "F1.0 B1.0 W1.0 B1.1 F1.1 W1.1", Deadlock, "device 1: B1.1 waits for F1.1"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "kind", "message"), BAD_PROGRAMS)
def test_programs_that_are_none(old: str, new: str, kind: type[Exception], message: str) -> None:
    profile = load_profile(BASE)
    lines = [line.replace(old, new) for line in PROGRAMS]
    assert lines != PROGRAMS
    assert simulate(Schedule(profile.shape(2), [line.split() for line in PROGRAMS]), profile)
    with pytest.raises(kind) as error:
        simulate(Schedule(profile.shape(2), [line.split() for line in lines]), profile)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_schedule_and_profile_that_do_not_belong_together() -> None:
    profile = load_profile(BASE)
    schedule = Schedule(profile.shape(2), [line.split() for line in PROGRAMS])
    with pytest.raises(InvalidSchedule, match="for 2 devices, the profile unit has 3"):
        simulate(schedule, unit_profile(3))
    with pytest.raises(InvalidSchedule, match="the profile unit has no offload section"):
        simulate(schedule, unit_profile(2))
    ordered = schedule.replace(link_order={"0/OR": ["O0.0", "R0.0"]})
    with pytest.raises(
        InvalidSchedule, match="the profile has no such link; it has 0/O, 0/R, 1/O, 1/R"
    ):
        simulate(ordered, profile)


def test_no_microbatches() -> None:
    for none in (0, -1, 1.5, True):
        with pytest.raises(
            InvalidSchedule, match="microbatches: must be a whole number of at least 1"
        ):
            Shape(2, 1, none)  # type: ignore[arg-type]
        with pytest.raises(
            InvalidSchedule, match="microbatches: must be a whole number of at least 1"
        ):
            build("1f1b", unit_profile(2), none)  # type: ignore[arg-type]


def test_a_limit_below_one_microbatch_says_the_least_that_works() -> None:
    profile = load_profile(BASE)
    schedule = Schedule(profile.shape(2), [line.split() for line in PROGRAMS])
    with pytest.raises(OutOfMemory) as error:
        simulate(schedule, profile, 10 * 2**20 - 1)
    assert str(error.value) == (
        "does not fit: device 0: the limit of 9.999999 MiB is below what one microbatch needs; the least limit that"
        " works is 10MiB, with 1 chunk per device"
    )
    one = Schedule(profile.shape(1), [["F0.0", "BW0.0"], ["F1.0", "BW1.0"]])
    assert simulate(one, profile, parse_size("10MiB")).peak_bytes == (10 * 2**20,) * 2
