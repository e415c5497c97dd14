"""What README.md and results/README.md say of zb_tables."""

from __future__ import annotations

from collections.abc import Iterator

from results.claims import Tables, span


def sentences(tables: Tables) -> Iterator[str]:
    cells = tables("zb_tables")
    in_table = {table: sum(cell["table"] == table for cell in cells) for table in (5, 8)}
    equal = [cell for cell in cells if cell["simulated"] == cell["published"]]
    lower = [cell for cell in cells if cell["simulated"] < cell["published"]]
    higher = [cell for cell in cells if cell["simulated"] > cell["published"]]
    assert {cell["schedule"] for cell in lower} == {"ZB-V"}
    assert {cell["schedule"] for cell in higher} == {"1F1B-I"}
    edge = sum(cell["simulated"] == cell["expected"] for cell in higher)
    most = max(cell["published"] - cell["simulated"] for cell in lower)
    above = span((c["simulated"] - c["published"] for c in higher), lambda x: f"{x:.4f}")
    yield (
        f"tables 5 and 8: {in_table[5]} and {in_table[8]} cells, all {len(cells)} of them, up to"
        f" {max(c['devices'] for c in cells)} devices and {max(c['microbatches'] for c in cells)}"
        f" microbatches): {len(equal)} come out equal to all four decimals, {len(lower)} of ZB-V are"
        f" lower, by at most {most:.4f}, and the {len(higher)} of 1F1B-I are higher, by {above}."
    )
    yield (
        f"Of the {len(cells)} bubble rates of the zero-bubble papers (tables 5 and 8: {in_table[5]} and"
        f" {in_table[8]}) {len(equal)} come out equal to four decimals; {len(lower)} of ZB-V are lower,"
        f" by at most {most:.4f}; {len(higher)} of 1F1B-I are higher, by {above}, and {edge} of these"
        " are equal once an edge is put back that the published script leaves out."
    )
    yield from _readme_table(cells)


def _readme_table(cells: list[dict]) -> Iterator[str]:
    """The rows of the README's table: the fewest microbatches of each model."""
    order = ("1F1B", "1F1B-I", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p", "ZB-V")
    fewest: dict[str, dict] = {}
    for cell in cells:
        model = cell["profile"].rsplit("-m", 1)[0]
        least = fewest.setdefault(model, {"microbatches": cell["microbatches"]})
        if cell["microbatches"] == least["microbatches"]:
            least[cell["schedule"]] = f"{cell['simulated']:.4f}"
    for model, rates in fewest.items():
        shown = " | ".join(rates.get(name, "") for name in order)
        yield f"| {model}-m{rates['microbatches']} | {shown} |"
