"""``models``: the named models, with their shapes and sources."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ....units import format_parameters
from ...options.shared import add_flags
from .listing import add_listing, having, print_template, show_listing

if TYPE_CHECKING:
    from ...outputs.show import Out

EXAMPLE = "optpipe-sim models qwen3"
SUMMARY = "list the models that are known by name"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `models`."""
    add_listing(parser, "name or source", "each shape")
    add_flags(parser, ("template", "print a commented model file, to be filled in"))


def run(arguments: argparse.Namespace, out: Out) -> int:
    """List them; returns 1 if none matches the search."""
    if arguments.template:
        return print_template(out, "model")
    from ....costs import load_model, model_names
    from ....costs.models import active_parameters, parameters
    from ...outputs.show import plain_table

    every = map(load_model, model_names())
    found = having(arguments.search, every, lambda one: f"{one.name} {one.source}")
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
    rows = (
        {
            "model": one.name,
            "parameters": format_parameters(parameters(one)),
            "per token": format_parameters(active_parameters(one))
            if active_parameters(one) < parameters(one)
            else "",
            "layers": one.layers,
            "hidden": one.hidden,
            "experts": f"{one.experts_per_token} of {one.experts}" if one.experts else "",
            **({"source": one.source} if arguments.sources else {}),
        }
        for one in found
    )
    table = plain_table(rows, left=("model", "source"))
    if arguments.sources and found:
        table.columns[-1].overflow, table.columns[-1].no_wrap = "fold", False
    status = show_listing(out, arguments, "model", table)
    out.hint(
        "others: --model config.json, a folder with one, or a short config (models --template)"
    )
    return status
