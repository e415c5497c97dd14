"""Templates load as they are, name every key, and stand in the documentation."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from optpipe_sim.cli import main
from optpipe_sim.costs import estimate, load_machine, load_model
from optpipe_sim.costs.calibrate import calibrate, load_measurements
from optpipe_sim.costs.machine_files import KINDS, template
from optpipe_sim.costs.machines import Machine, Pcie
from optpipe_sim.costs.models import Model

DOCS = Path(__file__).parents[2] / "docs" / "files.md"
COMMANDS = {
    "model": "models --template",
    "machine": "machines --template",
    "calibration": "machines --template calibration",
}


@pytest.mark.parametrize("kind", KINDS)
def test_commands_print_what_the_documentation_shows(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(COMMANDS[kind].split()) == 0
    assert capsys.readouterr().out == template(kind)
    assert f"```yaml\n{template(kind)}```" in DOCS.read_text()


def test_model_and_machine_load_as_they_are(tmp_path: Path) -> None:
    paths = {}
    for kind in KINDS:
        paths[kind] = tmp_path / f"{kind}.yaml"
        paths[kind].write_text(template(kind))
    model, machine = load_model(paths["model"]), load_machine(paths["machine"])
    profile = estimate(model, machine, 8, tp=2, levels=True)
    assert profile.offload is not None
    found = calibrate(load_measurements(str(paths["calibration"]), machine), machine, "mine")
    assert {one.kind for one in found.after} == {"time", "message", "iteration", "memory"}
    assert max(abs(one.error) for one in found.after) < 0.5  # numbers that could be measured


def test_experts_and_latent_attention_load_uncommented(tmp_path: Path) -> None:
    text = re.sub(r"^# (\w+: \d)", r"\1", template("model"), flags=re.MULTILINE)
    text = text.replace("positions: 2048", "# positions: 2048").replace("head_dim", "# head_dim")
    path = tmp_path / "model.yaml"
    path.write_text(text)
    model = load_model(path)
    assert (model.experts, model.kv_lora) == (64, 512)


def test_every_key_is_named() -> None:
    def named(kind: str) -> set[str]:
        return set(re.findall(r"^\s*(?:# |- )?(\w+):", template(kind), flags=re.MULTILINE))

    published = {"published_active"}  # beside published_parameters
    assert {entry.name for entry in fields(Model)} - published <= named("model")
    own = {entry.name for entry in (*fields(Machine), *fields(Pcie))} - {"rates"}
    assert own <= named("machine")
    assert yaml.safe_load(template("machine"))["achieved"].keys() >= {"gemm", "context_gib"}
