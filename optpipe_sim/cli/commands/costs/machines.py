"""``machines``: the named machines, their data, and the error of estimates on them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .listing import add_listing, having, print_template, show_listing

if TYPE_CHECKING:
    from ....costs.machines import Machine
    from ...outputs.show import Out

EXAMPLE = "optpipe-sim machines h100 --sources"
SUMMARY = "list the machines that are known by name"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `machines`."""
    add_listing(parser, "name or title", "every number")
    parser.add_argument(
        "--template",
        nargs="?",
        const="machine",
        choices=("machine", "calibration"),
        help="print a commented machine file, to be filled in; or one of measurements (--calibrate)",
    )


def run(arguments: argparse.Namespace, out: Out) -> int:
    """List them; returns 1 if none matches the search."""
    if arguments.template:
        return print_template(out, arguments.template)
    from ....costs import load_machine, machine_names
    from ...outputs.show import plain_table

    every = map(load_machine, machine_names())
    found = having(arguments.search, every, lambda one: f"{one.name} {one.title}")
    out.result({"machines": [_facts(one) for one in found]})
    rows = []
    for one in found:
        facts = _facts(one)
        error = facts["median_error"]
        rows.append(
            {
                "machine": one.name,
                "bf16": f"{one.peak_tflops.get('bf16', 0):g} TFLOP/s",
                "memory": f"{one.memory_gib:g} GiB",
                "links": f"{one.link_gb_per_s:g} GB/s",
                "network": f"{one.network_gb_per_s:g} GB/s",
                "to host": f"{one.pcie.d2h_gb_per_s:g} GB/s" if one.pcie else "-",
                "runs compared": "none"
                if error is None
                else f"{facts['compared']}, median error {error:.1%}",
            }
        )
    status = show_listing(out, arguments, "machine", plain_table(rows))
    if arguments.sources:
        for one in found:
            out.print()
            out.print(f"{one.name}: {one.title}", style="bold")
            for key, source in one.sources.items():
                out.text(f"  {key}: {source}")
            for key, source in one.rates.fitted.items():
                out.text(f"  achieved.{key}: fitted to {source}")
    out.hint(
        "others: --machine FILE.yaml (machines --template); base: NAME in it takes the rest from one above"
    )
    return status


def _facts(machine: Machine) -> dict[str, Any]:
    from statistics import median

    from ....costs.doubt import compared

    errors = [
        abs(one.error)
        for one in compared()
        if one.machine == machine.name and one.role == "check" and one.error is not None
    ]
    return {
        "name": machine.name,
        "title": machine.title,
        "peak_tflops": dict(machine.peak_tflops),
        "memory_gib": machine.memory_gib,
        "link_gb_per_s": machine.link_gb_per_s,
        "network_gb_per_s": machine.network_gb_per_s,
        "compared": len(errors),
        "median_error": median(errors) if errors else None,
        "sources": dict(machine.sources),
        "fitted": dict(machine.rates.fitted),
    }
