"""Numbers in README.md and results/README.md, recomputed from the committed tables."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from results.claims import (
    NAMES,
    PAGES,
    load_sentences,
    missing_sentences,
    open_tables,
    percent,
    sections,
    span,
    unclaimed,
)

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
CLAIMS = RESULTS / "claims"
TEXTS = {name: (ROOT / name).read_text() for name in PAGES}
NO_RESULTS = yaml.safe_load((CLAIMS / "no_results.yaml").read_text())


@pytest.fixture(scope="module")
def claims() -> dict[str, list[str]]:
    return load_sentences(CLAIMS, open_tables(RESULTS))


@pytest.mark.parametrize("name", sorted(path.stem for path in CLAIMS.rglob("[!_]*.py")))
def test_the_pages_say_what_the_tables_give(name, claims) -> None:
    assert claims[name]
    for sentence, nearest in missing_sentences(claims[name], list(TEXTS.values())):
        pytest.fail(
            f"{name}: the table gives\n  {sentence}\nand the nearest passage is\n  {nearest}"
        )


@pytest.mark.parametrize("page", PAGES)
def test_every_number_in_the_pages_is_a_claim_or_no_result(page, claims) -> None:
    known = [sentence for found in claims.values() for sentence in found]
    parts = sections(TEXTS[page])
    assert set(NO_RESULTS["sections"]) <= {
        heading for text in TEXTS.values() for heading in sections(text)
    }
    left = [
        sentence
        for heading, part in parts.items()
        if heading not in NO_RESULTS["sections"]
        for sentence in unclaimed(part, known, NO_RESULTS["texts"])
    ]
    assert left == []


def test_texts_listed_as_no_result_are_in_a_page() -> None:
    assert [text for text, _ in missing_sentences(NO_RESULTS["texts"], list(TEXTS.values()))] == []


@pytest.mark.parametrize("path", sorted(CLAIMS.rglob("[!_]*.py")), ids=lambda path: path.stem)
def test_claims_compute_their_numbers(path) -> None:
    """The text of a claim contains no digit of its own: nothing would recompute it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    formats = {node.format_spec for node in nodes if isinstance(node, ast.FormattedValue)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr) and node not in formats:
            texts = [part.value for part in node.values if isinstance(part, ast.Constant)]
            assert [text for text in texts if any(map(str.isdigit, NAMES.sub("", text)))] == []


def test_a_number_that_changes_is_found() -> None:
    page = "# A\n\nIt is 3 % slower in\n4 of 5 cells. See [2](x3.md), `4` and 1F1B on A100s.\n\n```\n7\n```\n"
    assert list(missing_sentences(["It is 3 % slower in 4 of 5 cells."], [page])) == []
    ((sentence, nearest),) = missing_sentences(["It is 2 % slower in 4 of 5 cells."], [page])
    assert sentence.startswith("It is 2 %")
    assert "It is 3 %" in nearest


def test_a_number_without_a_claim_is_found() -> None:
    page = (
        "It is 3 % slower in\n4 of 5 cells. See `4`, [a](x3.md) and 1F1B on A100s.\n\n```\n7\n```\n"
    )
    assert unclaimed(page, ["It is 3 % slower in 4 of 5 cells"]) == []
    assert unclaimed(page, ["4 of 5 cells"]) == ["It is 3 % slower in ."]
    assert unclaimed("| a | 12 s |\n|---|---|\n| b | 5 |\n", ["12 s"]) == ["5"]
    assert unclaimed("Free. It takes 3 s.", [], ["takes 3 s"]) == []


def test_pages_are_divided_at_their_headings() -> None:
    page = "one\n\n```\n# no heading\n```\n\n## A\n\ntwo\n\n### B\nthree\n"
    assert {key: part.strip() for key, part in sections(page).items()} == {
        "": "one",
        "A": "two",
        "B": "three",
    }


def test_shares_and_ranges_are_written_as_in_the_pages() -> None:
    assert percent(0.045) == "4.5 %"
    assert span([0.31, 0.62], lambda x: percent(x, 0)) == "31 to 62 %"
    assert span([10.4, 0.4], lambda x: f"{x:.1f} %") == "0.4 to 10.4 %"
    assert span([3, 3]) == "3"
    assert span([5, 3]) == "3 to 5"
