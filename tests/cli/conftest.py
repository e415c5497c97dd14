from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from cli_cases import OFFLOADING, PROFILE


@pytest.fixture
def cli(command_line):
    """Run a command line in an empty folder that holds p.yaml (4 devices) and o.yaml (offloading)."""
    Path("p.yaml").write_text(yaml.safe_dump(PROFILE))
    Path("o.yaml").write_text(yaml.safe_dump(OFFLOADING))
    return command_line
