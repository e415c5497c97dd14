"""How each table of results/README.md was made, from its manifest, and from its rows where they say it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results.claims import Tables, open_tables, span

UNKNOWN = "not recorded"


def sentences(tables: Tables) -> Iterator[str]:
    for path in sorted(Path(__file__).parents[1].glob("*.manifest.json")):
        name = path.name.removesuffix(".manifest.json")
        yield sentence(tables(f"{name}.manifest")[0], tables(name))


def sentence(manifest: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return commits, CPU, load and seeds of a table."""
    commits = {row["commit"] for row in rows if row.get("commit")} | set(
        manifest.get("commits") or ()
    )
    loads = [row["load"] for row in rows if row.get("load") is not None]
    named = (re.findall(r"\bseed=(\d+)", str(row.get("schedule"))) for row in rows)
    own = (row["seed"] for row in rows if row.get("seed") is not None)
    seeds = sorted({*manifest["seed"], *own, *(int(seed) for found in named for seed in found)})
    machine = manifest["machine"]
    days = manifest.get("dates") or [manifest["date"]]  # on which its points ran
    reused = (
        f", {manifest['reused']} of {manifest['points']} points from an earlier run"
        if 0 < manifest["reused"] < manifest["points"]
        else ""
    )
    return (
        f"*Made {span(days)}{reused}: commit {_listed(commits)}; {machine['cores']} cores, CPU"
        f" {machine.get('cpu') or UNKNOWN}; load {span(loads, lambda load: f'{load:.1f}') if loads else UNKNOWN};"
        f" {_seeds(seeds)}.*"
    )


def _listed(commits: set[str]) -> str:
    return ", ".join(sorted(commits)) or UNKNOWN


def _seeds(seeds: list[int]) -> str:
    if not seeds:
        return "nothing drawn at random"
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"


def rewritten(page: str, tables: Tables) -> str:
    """Return the page with the line *Made* of each table as its manifest has it now."""
    lines, name = page.split("\n"), ""
    for at, line in enumerate(lines):
        found = re.search(r"sweep experiments/(\w+)", line) or re.match(
            r"- \*\*\[(zb_tables)\]", line
        )
        name = found[1] if found else name
        if line.strip().startswith("*Made ") and name:
            indent = line[: len(line) - len(line.lstrip())]
            lines[at] = indent + sentence(tables(f"{name}.manifest")[0], tables(name))
    return "\n".join(lines)


if __name__ == "__main__":  # after a table was made again: python -m results.claims.provenance
    PAGE = Path(__file__).parents[1] / "README.md"
    PAGE.write_text(rewritten(PAGE.read_text(), open_tables(PAGE.parent)))
