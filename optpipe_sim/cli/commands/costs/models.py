"""``models``: which models go by name, with their shapes and sources."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ...status import DONE, NO

if TYPE_CHECKING:
    from ...outputs.show import Out

EXAMPLE = "optpipe-sim models qwen3"
SUMMARY = "list the models that go by name"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `models` understands."""
    parser.add_argument(
        "search", metavar="TEXT", nargs="*", help="only those whose name or source has all of these"
    )
    parser.add_argument("--sources", action="store_true", help="say where each shape is from")
    parser.add_argument(
        "--template", action="store_true", help="print a commented model file, to be filled in"
    )


def print_template(out: Out, kind: str) -> int:
    """A commented file of that kind, which loads as it is."""
    from ....costs.templates import template

    text = template(kind)
    out.result({"template": text})
    if not out.json:
        print(text, end="")
    return DONE


def run(arguments: argparse.Namespace, out: Out) -> int:
    """List them; 1 where none has what is searched for."""
    if arguments.template:
        return print_template(out, "model")
    from rich import box
    from rich.table import Table

    from ....costs import load_model, model_names
    from ....costs.models import active_parameters, parameters

    words = [word.lower() for word in arguments.search]
    found = [load_model(name) for name in model_names()]
    found = [m for m in found if all(w in f"{m.name} {m.source}".lower() for w in words)]
    out.result(
        {
            "models": [
                {
                    "name": one.name,
                    "parameters": parameters(one),
                    "active_parameters": active_parameters(one),
                    "layers": one.layers,
                    "hidden": one.hidden,
                    "experts": one.experts,
                    "source": one.source,
                }
                for one in found
            ]
        }
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for head in ("model", "parameters", "per token", "layers", "hidden", "experts"):
        table.add_column(head, justify="left" if head == "model" else "right", no_wrap=True)
    if arguments.sources:
        table.add_column("source", overflow="fold")
    for one in found:
        total, active = parameters(one), active_parameters(one)
        cells = [one.name, f"{total / 1e9:.3g}B", f"{active / 1e9:.3g}B" if active < total else ""]
        cells += [str(one.layers), str(one.hidden)]
        cells.append(f"{one.experts_per_token} of {one.experts}" if one.experts else "")
        table.add_row(*cells, *([one.source] if arguments.sources else []))
    if found:
        out.print(table)
    else:
        out.print(f"no model has {' and '.join(arguments.search)}; all: optpipe-sim models")
    out.hint(
        "others: --model config.json, a folder with one, or a short config (models --template)"
    )
    return DONE if found else NO
