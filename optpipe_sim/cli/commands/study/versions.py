"""``versions``: the versions of the package and its dependencies."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ...status import DONE

if TYPE_CHECKING:
    from ...outputs.show import Out

EXAMPLE = "optpipe-sim versions"
SUMMARY = "print the versions of optpipe-sim and of what it runs on"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Take no options but the common ones."""


def run(arguments: argparse.Namespace, out: Out) -> int:
    """Print the versions of the package and its dependencies."""
    import platform

    from ....study.versions import SOLVERS
    from ....study.versions import versions as versions_of

    others = ("simpy", "pyyaml", "matplotlib", "rich", "joblib", "pyarrow", "distributed", "torch")
    installed = versions_of((*SOLVERS, *others))
    found = {
        "optpipe-sim": installed.pop("optpipe_sim"),
        "python": installed.pop("python"),
        "platform": platform.platform(),
        **installed,
    }
    out.result(found)
    for name, version in found.items():
        out.print(f"{name:<12} {version or 'not installed'}")
    return DONE
