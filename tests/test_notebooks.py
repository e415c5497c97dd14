"""The notebooks run from top to bottom, and what is committed of them is what a reader needs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import nbformat
import pytest

from optpipe_sim.errors import OptPipeError
from optpipe_sim.plot.interactive import slider

FOLDER = Path(__file__).parents[1] / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [path.name for path in PATHS]
MOST_BYTES = 1_500_000  # of all notebooks
# Texts that no search has a part in are the same wherever and whenever they are made.
SEARCHED = {"2_memory_and_offloading.ipynb", "3_optpipe_against_the_rules.ipynb"}


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / name, as_version=4)


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """What its cells print."""
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", ())]
    return [output.text for output in outputs if output.output_type == "stream"]


def pictures(notebook: nbformat.NotebookNode) -> list[int]:
    """How many pictures each cell shows."""
    return [
        sum("image/png" in output.get("data", {}) for output in cell.get("outputs", ()))
        for cell in notebook.cells
    ]


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_shows_what_is_committed(name: str) -> None:
    committed, done = read(name), runpy.run_path(str(FOLDER / "execute.py"))["execute"](name)
    nbformat.validate(done)
    assert pictures(done) == pictures(committed)
    assert len(texts(done)) == len(texts(committed))
    if name not in SEARCHED:
        assert texts(done) == texts(committed)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_committed_as_a_page_that_needs_no_kernel(name: str) -> None:
    notebook = read(name)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert sum(pictures(notebook)) >= 2
    for output in (output for cell in code for output in cell.outputs):
        assert output.get("name") != "stderr"
        if output.output_type != "stream":
            assert set(output.data) - {"image/png"} == {"text/plain"}
    assert all(len(cell.source.splitlines()) <= 30 for cell in code), (
        "that belongs into the library"
    )


@pytest.mark.parametrize("name", NAMES)
def test_it_names_no_place_on_a_machine(name: str) -> None:
    shown = [cell.source for cell in read(name).cells] + texts(read(name))
    assert not re.search(r"(?<![\w.:/])/(work|home|root|tmp|Users|opt)\b", "\n".join(shown))


@pytest.mark.parametrize("name", NAMES)
def test_its_links_lead_somewhere(name: str) -> None:
    prose = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#]+)", prose)
    assert links
    for link in links:
        assert link.startswith("https://") or (FOLDER / link).is_file(), link


def test_they_are_small_and_in_order() -> None:
    assert sum(path.stat().st_size for path in PATHS) < MOST_BYTES
    assert [name[:2] for name in NAMES] == sorted({name[:2] for name in NAMES})
    assert {"1_", "2_", "3_", "5_"} <= {name[:2] for name in NAMES}


def test_a_slider_draws_its_current_choice(monkeypatch) -> None:
    from matplotlib.figure import Figure

    drawn, shown = [], []

    def draw(choice: str) -> Figure:
        drawn.append(choice)
        figure = Figure(figsize=(1 + len(choice), 1))
        figure.add_subplot()
        return figure

    monkeypatch.setattr("IPython.display.display", lambda forms, raw: shown.append(forms))
    boxes: list = []
    import ipywidgets

    box = ipywidgets.VBox
    monkeypatch.setattr(ipywidgets, "VBox", lambda parts: boxes.append(parts) or box(parts))
    slider(draw, ["a", "bbb"], "bbb", "how long")
    (forms,), ((control, image),) = shown, boxes
    assert {"image/png", "text/plain", "application/vnd.jupyter.widget-view+json"} <= set(forms)
    assert "how long bbb" in forms["text/plain"]
    before = image.value
    control.value = "a"
    assert image.value != before
    control.value = "bbb"
    assert image.value == before
    assert drawn == ["bbb", "a"]
    with pytest.raises(OptPipeError, match="one of a, bbb, got 'c'"):
        slider(draw, ["a", "bbb"], "c", "how long")


def test_gaps_of_a_gantt_chart_are_named(unit) -> None:
    from optpipe_sim import build, simulate
    from optpipe_sim.plot.idle import idle_gantt

    trace = simulate(build("1f1b", unit(4), 8), unit(4))
    figure = idle_gantt(trace)
    (ax,) = figure.axes
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    causes = [cause for cause, time in trace.idle_ns.items() if time]
    assert legend[-len(causes) :] == [f"idle: {cause}" for cause in causes]
    patches = sum(patch.get_width() for patch in ax.patches)
    lanes = 4 * ax.get_xlim()[1]
    assert patches / lanes == pytest.approx(sum(trace.idle_ns.values()) / (4 * trace.makespan_ns))


NUMBER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)(?= ?(?:ms|s|GiB|MiB|%|of \d+)(?!\w))")


def _prose(source: str) -> str:
    """The text of a cell without its links, formulas and code."""
    return re.sub(r"\]\([^)]*\)|\$\$.*?\$\$|`[^`]*`", "", source, flags=re.DOTALL)


@pytest.mark.parametrize("name", NAMES)
def test_what_its_sentences_say_is_what_its_cells_show(name: str) -> None:
    """Each time, size and share of a sentence is in an output or in the code of the page, digit by digit."""
    notebook = read(name)
    shown = "\n".join(
        [cell.source for cell in notebook.cells if cell.cell_type == "code"] + texts(notebook)
    )
    there = set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?", shown))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for said in NUMBER.findall(_prose(cell.source)):
                assert said in there, f"{said} in: {cell.source}"


def test_sentences_are_compared() -> None:
    found = [
        NUMBER.findall(_prose(cell.source))
        for name in NAMES
        for cell in read(name).cells
        if cell.cell_type == "markdown"
    ]
    assert sum(map(len, found)) >= 15
    assert NUMBER.findall(_prose("at 14 GiB 259.0 ms, 5 % of it, in 3 rows, `7 ms`")) == [
        "14",
        "259.0",
        "5",
    ]
