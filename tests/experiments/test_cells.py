"""Tables whose finished cells are kept."""

from __future__ import annotations

import pytest

from experiments.cells import finish_cells, provenance, to_markdown
from optpipe_sim.errors import OptPipeError


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
