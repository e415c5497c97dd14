"""Machines: every number has its source; files of one's own; refusals."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
import yaml

from optpipe_sim.costs import estimate, load_machine, machine_names
from optpipe_sim.costs.advise.advise import advise
from optpipe_sim.costs.advise.evaluate import evaluate
from optpipe_sim.costs.machines import MachineError
from optpipe_sim.execution import load_execution
from optpipe_sim.names import build
from optpipe_sim.sim import simulate

OWN = {
    "title": "two cards",
    "peak_tflops": {"bf16": 100},
    "units": 64,
    "memory_gib": 24,
    "memory_gb_per_s": 1000,
    "devices_per_node": 2,
    "link": "PCIe",
    "link_gb_per_s": 16,
    "network_gb_per_s": 3,
    "achieved": {"gemm": 0.8, "attention": 0.6, "bandwidth": 0.8},
}


@pytest.mark.parametrize("name", machine_names())
def test_every_number_has_a_source(name: str) -> None:
    path = files("optpipe_sim.costs") / "data" / "machines" / f"{name}.yaml"
    data = yaml.safe_load(path.read_text())
    if "base" in data:  # its own numbers are fitted, and say to what, or have a source
        numbers = {f"achieved.{key}" for key in data["achieved"] if key != "fitted"}
        fitted = data["achieved"]["fitted"]
        assert sorted(numbers) == sorted(
            [*(f"achieved.{key}" for key in fitted), *data.get("sources", ())]
        )
        assert load_machine(name).rates.fitted == fitted
        return
    numbers = set()
    for key, value in data.items():
        if isinstance(value, int | float):
            numbers.add(key)
        elif key in ("pcie", "achieved"):
            numbers |= {f"{key}.{k}" for k, v in value.items() if isinstance(v, int | float)}
        elif key == "peak_tflops":
            numbers.add(key)
    machine = load_machine(name)
    assert numbers <= set(data["sources"]) | {f"achieved.{key}" for key in machine.rates.fitted}
    assert 0 < machine.usable_bytes < machine.memory_gib * 2**30
    assert machine.pcie is not None
    raw = {4: 31.5, 5: 63.0}[machine.pcie.generation] * machine.pcie.lanes / 16
    if name in ("gh200", "gb200"):  # copies go over NVLink-C2C
        raw = 450.0
    assert machine.pcie.d2h_gb_per_s < raw
    assert machine.peak("bf16") == machine.peak("fp16")


def test_known_figures() -> None:
    assert load_machine("a100").peak("bf16") == 312e12
    assert load_machine("h100").peak("fp8") == pytest.approx(
        2 * load_machine("h100").peak("bf16"), rel=1e-3
    )
    assert load_machine("h200").memory_gib > 140
    assert load_machine("a100-40gb").memory_gib == 40
    assert load_machine("a100").pcie.devices_per_switch == 2


def test_a_machine_of_ones_own(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(OWN))
    assert load_machine(path).name == "mine"
    assert load_machine(path).pcie is None
    path.write_text("base: a100\nnetwork_gb_per_s: 12.5\nachieved: {gemm: 0.7}\n")
    mine, base = load_machine(path), load_machine("a100")
    assert (mine.network_gb_per_s, mine.rates.gemm) == (12.5, 0.7)
    assert (mine.rates.attention, mine.pcie) == (base.rates.attention, base.pcie)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"unit": 3}, "unit: unknown key; did you mean units"),
        ({"units": None}, "units: must be a number above 0"),
        ({"memory_gib": -1}, "memory_gib: must be a number above 0, got -1"),
        ({"peak_tflops": {}}, "peak_tflops: expected rates"),
        ({"achieved": {"gemm": 0.8}}, "achieved.attention: missing"),
        ({"achieved": {**OWN["achieved"], "gem": 1}}, "achieved.gem: unknown key"),
        ({"achieved": {**OWN["achieved"], "gemm": 3}}, "achieved.gemm: must be from 0 to 1"),
        ({"pcie": {"generation": 4}}, "pcie.lanes: missing"),
        ({"base": "z100"}, "no machine 'z100'"),
    ],
)
def test_bad_machines_are_refused_in_one_line(change, problem) -> None:
    with pytest.raises(MachineError, match=problem) as caught:
        load_machine({**OWN, **change})
    assert "\n" not in str(caught.value)


def test_missing_keys_and_names() -> None:
    with pytest.raises(MachineError, match="link_gb_per_s: missing"):
        load_machine({k: v for k, v in OWN.items() if k != "link_gb_per_s"})
    with pytest.raises(MachineError, match="did you mean h100"):
        load_machine("h1000")


def test_a_machine_says_how_the_runs_of_its_rates_were_issued() -> None:
    """Rates hold for one execution: `estimate` takes it, unless told another."""
    machine = load_machine("h100")
    options: dict[str, Any] = {"devices": 4, "seq": 4096}
    profile = estimate("llama3-8b", machine, **options)
    assert profile.execution == load_execution("megatron-lm") == machine.issued_as()
    ideal = estimate("llama3-8b", machine, **options, execution="ideal")
    assert ideal == replace(profile, execution="ideal")
    schedule = build("1f1b", ideal, 8)
    assert simulate(schedule, ideal).makespan_ns < simulate(schedule, profile).makespan_ns
    assert load_machine({"base": "h100"}).execution == machine.execution
    with pytest.raises(MachineError, match="machine mine: execution: 'megatron' is neither a file"):
        load_machine({"name": "mine", "base": "h100", "execution": "megatron"})


def test_evaluate_and_advise_take_the_execution_of_the_rates() -> None:
    run: dict[str, Any] = {"pp": 4, "microbatches": 8}
    usual, ideal = (
        evaluate("llama3-8b", "h100", 8, 4096, **run, **more)
        for more in ({}, {"execution": "ideal"})
    )
    assert usual.advice.question.execution.name == "megatron-lm"
    assert ideal.row.iteration_ns < usual.row.iteration_ns
    found = advise(
        "llama3-8b", "h100", 8, 16, 4096, pp=4, tp=1, schedules=["1f1b"], chunks=1, microbatch=1,
        time_limit=2,
    )  # fmt: skip
    assert found.question.execution.name == "megatron-lm"
