"""Claims: sentences with numbers, recomputed from the committed tables and compared with the pages
that contain them.

A module in a room of ``results/claims/`` has a function ``sentences(tables)`` that yields, with numbers
computed from the rows of ``tables("NAME")``, the sentences of the pages. `missing_sentences` finds the
sentences that no page contains (a number has changed), `unclaimed` the sentences of a page with a
number that no claim covers.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from optpipe_sim.files import read_text
from optpipe_sim.study.tables import load_table, table_names

Row = dict[str, Any]
Tables = Callable[[str], list[Row]]

# The pages that say what tables give.
PAGES = (
    "README.md",
    "results/README.md",
    "docs/how-true.md",
    "docs/hardware.md",
    "docs/bounds.md",
    "docs/how-much-is-left.md",
    "docs/which-link.md",
    "docs/price-of-expressiveness.md",
    "docs/trained-layouts.md",
    "docs/atlas.md",
)

# Names that contain digits.
NAMES = re.compile(
    r"(?:\b(?:1F1B(?:-I)?|Seq1F1B|seq1f1b|P2P|D2H|H2D|ZB-H[12]|ZB-[12]p|G[BH]200s?|DeepSeek-V3|[ABH][1-38]00s?|MI3\d\dX?s?|Llama [23]|PCIe \d|fp8|bf16"
    r"|GPT-\d|Qwen\d-\d+B|LLaMA-\d[- ]\d+B(?: SFT)?|table \d+|tables \d+ and \d+|figure \d+|arXiv \d+\.\d+|ICLR \d{4}|Python 3\.\d+)\b)"
)
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\]\([^)]*\)")
_SENTENCE_END = re.compile(
    r"(?<=[.!?])\s+(?=[A-Z`*(])|\s*\|\s*|\s- "
)  # or a table cell's, or an item's


def open_tables(folder: Path) -> Tables:
    """Return a reader of the tables in `folder`: Parquet where there is one, else CSV or JSON, with
    numbers and truth values as such and empty cells as None."""
    typed = set(table_names(folder))

    def tables(name: str) -> list[Row]:
        if name in typed:
            return load_table(folder, name)
        if (folder / f"{name}.json").exists():
            found = json.loads(read_text(folder / f"{name}.json"))
            return [found] if isinstance(found, dict) else list(found)
        reader = csv.DictReader(io.StringIO(read_text(folder / f"{name}.csv")))
        return [{key: _value(text) for key, text in row.items()} for row in reader]

    return tables


def _value(text: str) -> Any:
    if text in ("", "True", "False", "true", "false"):
        return text.lower() == "true" if text else None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def load_sentences(folder: Path, tables: Tables) -> dict[str, list[str]]:
    """Return what each module in `folder` and its rooms yields, whitespace collapsed, by the
    module's name."""
    found = {}
    for path in sorted(folder.rglob("[!_]*.py")):
        spec = spec_from_file_location(f"claims_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        found[path.stem] = [_plain(sentence) for sentence in module.sentences(tables)]
    return found


def missing_sentences(sentences: Iterable[str], pages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (sentence, nearest passage) for each sentence that none of the pages has."""
    texts = [_plain(page) for page in pages]
    passages = [part for text in texts for part in _SENTENCE_END.split(text) if part]
    for sentence in sentences:
        if not any(sentence in text for text in texts):
            close = difflib.get_close_matches(sentence, passages, 1, 0.1)
            yield sentence, close[0] if close else ""


def unclaimed(page: str, sentences: Iterable[str], allowed: Iterable[str] = ()) -> list[str]:
    """Return the sentences of a Markdown page with a digit that neither a sentence nor an `allowed`
    text accounts for; code, link targets and names such as 1F1B do not count."""
    known = sorted({*sentences, *map(_plain, allowed)}, key=len, reverse=True)
    found = []
    for passage in _passages(page):
        for text in known:
            passage = passage.replace(text, " ")
        left = NAMES.sub(" ", _LINK.sub("]", _SPAN.sub(" ", passage)))
        found += [_plain(part) for part in _SENTENCE_END.split(left) if re.search(r"\d", part)]
    return found


def sections(page: str) -> dict[str, str]:
    """Return a Markdown page by heading; the part above the first one has the heading ''."""
    parts = re.split(r"^#+ (.*)$", _CODE.sub("", page), flags=re.MULTILINE)
    return dict(zip(["", *parts[1::2]], parts[::2], strict=True))


def _passages(page: str) -> list[str]:
    """Paragraphs, lists and tables, without code blocks."""
    found = [_plain(block) for block in re.split(r"\n\s*\n", _CODE.sub("", page))]
    return [part for part in found if part]


def _plain(text: str) -> str:
    return " ".join(text.split())


# -- how numbers are written ----------------------------------------------------------------------


def percent(share: float, digits: int = 1) -> str:
    """Write 0.045 as '4.5 %'."""
    return f"{round(100 * share, digits) + 0.0:.{digits}f} %"  # never -0.0


def span(values: Iterable[float], write: Callable[[float], str] = str) -> str:
    """Write the least and the largest of some values, as '2.0 to 4.5 %'; one value where equal."""
    found = sorted(values)
    low, high = write(found[0]), write(found[-1])
    if low == high:
        return low
    unit = low[low.index(" ") :] if " " in low else ""
    return f"{low.removesuffix(unit) if high.endswith(unit) else low} to {high}"
