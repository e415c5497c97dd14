"""Tables whose finished cells are kept, and the page that puts OptPipe's claims to the test."""

from __future__ import annotations

import pytest

from optpipe_sim import build, simulate
from optpipe_sim.errors import OptPipeError
from optpipe_sim.study import claims
from optpipe_sim.study.cells import finish_cells, provenance, to_markdown
from optpipe_sim.study.claims_cases import best_of, limit_of, pipeoffload_names, setting
from optpipe_sim.study.claims_page import by_setting, draw, faster, finding, less_idle, page

FOLDER = "experiments/profiles"


@pytest.fixture(autouse=True)
def _root(monkeypatch, request) -> None:
    monkeypatch.chdir(request.config.rootpath)


def test_finished_cells_are_not_computed_again(tmp_path) -> None:
    path, seen = tmp_path / "t.csv", []

    def compute(cell):
        if cell["x"] == 3 and len(seen) < 3:
            seen.append("killed")
            raise KeyboardInterrupt
        seen.append(cell["x"])
        return {"square": cell["x"] ** 2}

    cells = [{"x": x, "name": "a, b"} for x in (1, 2, 3)]
    with pytest.raises(KeyboardInterrupt):
        finish_cells(path, cells, compute)
    assert seen == [1, 2, "killed"]
    rows = finish_cells(path, cells, compute)
    assert seen == [1, 2, "killed", 3]
    assert [row["square"] for row in rows] == ["1", "4", "9"]
    assert finish_cells(path, cells[:1], compute) == rows[:1]
    assert finish_cells(path, cells, compute) == rows  # the others stayed in the file
    finish_cells(path, cells[:1], compute, fresh=True)
    assert seen[-1] == 1
    assert "Measured" in provenance(rows)


def test_a_file_with_other_columns_is_refused(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(OptPipeError, match=r"t\.csv: expected a table with the columns x"):
        finish_cells(path, [{"x": 1}], lambda cell: {})
    with pytest.raises(OptPipeError, match="the same"):
        finish_cells(tmp_path / "u.csv", [{"x": 1}, {"x": 1}], lambda cell: {})


def test_markdown_puts_numbers_to_the_right() -> None:
    rows = [{"a": "1.5", "b": "x"}, {"a": "-2 %", "b": "y"}]
    assert to_markdown({"a": "A", "b": "B"}, rows) == [
        "| A | B |",
        "|--:|---|",
        "| 1.5 | x |",
        "| -2 % | y |",
    ]


def test_settings_are_what_they_say() -> None:
    profile, m = setting("1.5B", 21, "0.5", FOLDER)
    stage = profile.stages[0]
    assert (profile.devices, m) == (8, 24)
    assert stage.t_offload_ns == pytest.approx(stage.offloadable / 21, abs=1)
    assert profile.memory_limit == (stage.static_bytes + 4 * stage.act_bytes,) * 8
    trace = simulate(build("1f1b", profile, m), profile, enforce=False, engine="replay")
    assert max(trace.peak_bytes) == limit_of(profile, "1")
    half, few = setting("1.5B/2", 55, "1", FOLDER)
    assert (half.devices, few, half.stages[0].t_f_ns) == (4, 12, stage.t_f_ns)


def test_best_pipeoffload_is_the_fastest_that_fits() -> None:
    where = "1.5B/2", 110, "0.5", FOLDER
    profile, m = setting(*where)
    names = tuple(pipeoffload_names(4))
    name, trace = best_of(names, *where)
    assert max(trace.peak_bytes) <= profile.memory_limit[0]
    makespans = []
    for other in names:
        try:
            makespans.append(simulate(build(other, profile, m), profile).makespan_ns)
        except OptPipeError:
            continue
    assert len(makespans) > 3
    assert trace.makespan_ns == min(makespans)
    assert name in names
    assert best_of(names, "1.5B/2", 21, "0.15", FOLDER) is None


def rows_of_a_run(tmp_path, monkeypatch):
    """A run of the study on the small model with short times."""
    quick = {name: (engine, 0.3, same) for name, (engine, _, same) in claims.SOLVED.items()}
    quick = {name: entry for name, entry in quick.items() if name not in claims.ONLY_SMALL}
    monkeypatch.setattr(claims, "SOLVED", quick)
    monkeypatch.setattr(claims, "BANDWIDTHS", (110,))
    monkeypatch.setattr(claims, "SHARES", ("1", "0.5", "0.15"))
    assert claims.main(["--models", "1.5B/2", "--results", str(tmp_path)]) == 0
    return finish_cells(tmp_path / "optpipe_claims.csv", claims.claim_cells(["1.5B/2"]), None)


def test_a_run_from_end_to_end(tmp_path, monkeypatch, capsys) -> None:
    rows = rows_of_a_run(tmp_path, monkeypatch)
    cells = by_setting(rows)
    assert len(cells) == 3
    for methods in cells.values():
        if methods["auto"]["fits"] == "yes":
            assert int(methods["auto"]["makespan_ns"]) <= int(methods["AdaOffload"]["makespan_ns"])
            assert int(methods["auto"]["makespan_ns"]) >= int(methods["auto"]["bound_ns"])
    # one activation of a whole stage does not fit into 0.15 of four
    assert cells["1.5B/2", "110", "0.15"]["auto"]["fits"] == "no"
    for ending in ("csv", "md", "png"):
        assert (tmp_path / f"optpipe_claims.{ending}").stat().st_size > 500
    text = (tmp_path / "optpipe_claims.md").read_text()
    assert "some PipeOffload fits in" in text
    assert "po:chunks=" in text


def test_gains_are_counted_the_right_way_round(tmp_path) -> None:
    def row(share, method, makespan, idle, fits="yes"):
        return {
            "model": "M", "gb_per_s": "21", "share": share, "method": method, "fits": fits,
            "schedule": "po:chunks=2", "chunks": "2", "makespan_ns": str(makespan),
            "idle_ns": str(idle), "bound_ns": "90", "by": "work", "status": "feasible",
            "date": "2026-01-01", "load": "0.1",
        }  # fmt: skip

    ours, other = row("0.25", "auto", 100, 10), row("0.25", "PO best", 150, 60)
    assert faster(ours, other) == 0.5
    assert less_idle(ours, other) == pytest.approx(1 - 10 / 60)
    none = row("0.25", "no offload", "", "", "no")
    ample = [
        row("1", "auto", 120, 30),
        row("1", "PO best", 100, 10),
        row("1", "no offload", 110, 20),
    ]
    rows = [ours, other, none, *ample]
    text = finding(by_setting(rows))
    assert "+50.0 % throughput in the median" in text
    assert "-16.7 % throughput in the median" in text  # slower is said, too
    assert "+58.3 % idle time in the median against the best PipeOffload" in text
    assert "at least halved in 1 of 2, more idle time in 1)" in text
    assert "so in 1 of 2 settings; in 1 of them some PipeOffload fits" in text
    assert "does not fit" in page(rows, tmp_path / "c.md").read_text()
    assert draw(rows, tmp_path / "c.png").stat().st_size > 5000
