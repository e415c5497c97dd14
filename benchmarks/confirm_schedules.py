"""Every named schedule and an optimised one with real stages on CPU ranks, and what happens when a rank fails.

    make confirm-schedules      (or: python benchmarks/confirm_schedules.py --write results/confirm_schedules)

For 2 and 4 devices and three models (a decoder of this project, modules of one's own with trees between
them, a LLaMA of Hugging Face where transformers is installed) each schedule runs once with a process per
device, and once in one process, op by op. Gradients are compared with plain autograd, bit by bit, and the
peak of each rank with the prediction. Times are not looked at.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # ranks import the job from here
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH")])
)

from schedule_models import MODELS, batch, gradients, loss, stages_of, unpipelined  # noqa: E402

from optpipe_sim import CostProfile, build, simulate, solve  # noqa: E402
from optpipe_sim.errors import RuntimeFault  # noqa: E402
from optpipe_sim.files import write_text  # noqa: E402
from optpipe_sim.ops import Op  # noqa: E402
from optpipe_sim.processes.signals import is_running  # noqa: E402
from optpipe_sim.profile import Offload  # noqa: E402
from optpipe_sim.runtime import PipelineStep, profile_modules  # noqa: E402
from optpipe_sim.runtime.confirm.verdict import compare_gradients  # noqa: E402
from optpipe_sim.runtime.execute.launch import Ranks  # noqa: E402
from optpipe_sim.runtime.measure.machine import device_facts  # noqa: E402
from optpipe_sim.runtime.program.program import without  # noqa: E402
from optpipe_sim.schedule import Schedule  # noqa: E402
from optpipe_sim.schedules import REGISTRY  # noqa: E402
from optpipe_sim.stage_cost import StageCost  # noqa: E402

OPTIMISED = "optimised"
SHARE = 0.6  # of 1F1B's activations, for the optimised one


# -- ranks -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A step on p ranks; `fault`: what goes wrong on the last of them."""

    schedule: Schedule
    profile: CostProfile
    model: str
    fault: str = ""

    def perform(self, rank: int, begun: Callable[[Op], None] = lambda op: None) -> dict[str, Any]:
        shape = self.schedule.shape
        every = stages_of(self.model, shape.stages)
        mine = {stage: every[stage] for stage in shape.stages_of(rank)}
        step = PipelineStep(
            mine,
            self.schedule,
            loss,
            profile=self.profile,
            timeout_s=5.0 if self.fault else 300.0,  # a busy machine is no fault
            begun=begun,
        )
        step.prepare(*batch(shape.microbatches))
        if rank == shape.devices - 1:
            _spoil(self.fault, step, mine[max(mine)])
        found = step(*batch(shape.microbatches), measure=True)
        static = step.prepared.lowered.profile.static_bytes[rank]
        said = step.prepared.lowered.replay().peak_bytes[rank] - static
        return {
            "loss": found,
            "peak": step.peaks[rank],
            "said": said,
            "gradients": gradients(mine),
        }


def _spoil(fault: str, step: PipelineStep, module: nn.Module) -> None:
    plain, calls = module.forward, []

    def forward(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            if fault == "SIGKILL":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("the third is one too many")
        return plain(*arguments, **options)

    if fault in ("SIGKILL", "exception"):
        module.forward = forward  # type: ignore[method-assign]
    if fault == "missing message":
        programs = list(step.prepared.programs)
        send = [one for one in programs[-1].steps if one.do == "send"][2]
        programs[-1] = without(programs[-1], "send", send.op)
        step.prepared = replace(step.prepared, programs=tuple(programs))


# -- schedules ---------------------------------------------------------------------------------------


@cache
def chunks_of(name: str, p: int) -> int:
    cost = StageCost(9, 9, 9, 1000, 500, t_offload_ns=9, t_reload_ns=9)
    profile = CostProfile("any", p, (cost,) * p, offload=Offload())
    return build(name, profile, 2 * p, **options(name, profile)).shape.chunks


def options(name: str, profile: CostProfile) -> dict[str, Any]:
    limit = max(profile.least_limits) + profile.stages[0].act_bytes
    return {"limit": limit} if name.startswith("adaoffload") else {}


@cache
def profile_of(model: str, p: int, chunks: int) -> CostProfile:
    inputs, targets = batch(1)
    return profile_modules(
        stages_of(model, p * chunks), loss, inputs[0], targets[0], devices=p, samples=2, warmup=1
    )


def schedule_of(name: str, model: str, p: int) -> tuple[Schedule, CostProfile]:
    if name != OPTIMISED:
        profile = profile_of(model, p, chunks_of(name, p))
        schedule = build(name, profile, 2 * p, **options(name, profile))
        return schedule, profile.for_shape(schedule.shape)
    profile = profile_of(model, p, 1)
    peaks = simulate(build("1f1b", profile, 2 * p), profile).peak_bytes
    limits = [
        max(least, static + int(SHARE * (peak - static)))
        for least, static, peak in zip(
            profile.least_limits, profile.static_bytes, peaks, strict=True
        )
    ]
    profile = replace(profile, memory_limit=tuple(limits))
    found = solve(profile, 2 * p, engine="search", time_limit=2, workers=1).schedule
    assert found is not None
    return found, profile.for_shape(found.shape)


@dataclass(frozen=True)
class Outcome:
    """Of one schedule: how many gradients are equal, how many as close to fp64 as plain autograd's.

    `peak`: the largest of a rank, of the predicted one, op by op; `ranks_peak`: in a process per rank, with
    messages that their receiver has not taken yet.
    """

    parameters: int
    bitwise: int
    rounded: int
    relative: float
    peak: float
    held: bool
    ranks_peak: float

    @property
    def text(self) -> str:
        if self.bitwise == self.parameters:
            how = "="
        elif self.bitwise + self.rounded == self.parameters:
            how = f"≈ ({self.relative:.0e})"
        else:
            how = f"OFF by {self.relative:.0e}"
        return f"{how} {self.peak:.1%}{'' if self.held else ' ABOVE'} ({self.ranks_peak:.0%})"

    @property
    def good(self) -> bool:
        return self.held and self.bitwise + self.rounded == self.parameters


def outcome(ranks: Ranks, name: str, model: str, p: int) -> Outcome:
    schedule, profile = schedule_of(name, model, p)
    results = ranks.run(Job(schedule, profile, model))
    found = {key: grad for result in results for key, grad in result["gradients"].items()}
    peak, held = one_process(schedule, profile, model, found)
    mean = next(result["loss"] for result in results if result["loss"] is not None)
    size = schedule.shape.stages, schedule.shape.microbatches
    expected, wanted = unpipelined(model, *size)
    checked = compare_gradients(found, mean, wanted, expected)
    if checked.bitwise < checked.parameters:
        checked = compare_gradients(
            found, mean, wanted, expected, unpipelined(model, *size, exact=True)[1]
        )
    return Outcome(
        checked.parameters,
        checked.bitwise,
        checked.rounded or 0,
        checked.relative,
        peak,
        held,
        max(result["peak"] / result["said"] for result in results),
    )


def one_process(
    schedule: Schedule, profile: CostProfile, model: str, expected: dict[str, Tensor]
) -> tuple[float, bool]:
    """The largest peak of a rank where one op runs after the other, of the predicted one, and whether none is above
    it but for the losses; gradients have to be those that the ranks found."""
    modules = stages_of(model, schedule.shape.stages)
    step = PipelineStep(modules, schedule, loss, profile=profile)
    step(*batch(schedule.shape.microbatches), measure=True)
    for name, gradient in gradients(dict(enumerate(modules))).items():
        assert torch.equal(gradient, expected[name]), name
    static = step.prepared.lowered.profile.static_bytes
    said = [
        peak - own
        for peak, own in zip(step.prepared.lowered.replay().peak_bytes, static, strict=True)
    ]
    losses = 4 * schedule.shape.microbatches
    return (
        max(step.peaks[rank] / said[rank] for rank in step.peaks),
        all(step.peaks[rank] <= said[rank] + losses for rank in step.peaks),
    )


# -- faults ------------------------------------------------------------------------------------------

FAULTS = ("exception", "SIGKILL", "missing message")


def faults(p: int) -> Iterator[tuple[str, str, int]]:
    """Of each fault what is said, and how many processes are left after it."""
    schedule, profile = schedule_of("zb-h1", "own modules", p)
    for fault in FAULTS:
        with Ranks(p) as ranks:
            ranks.run(Job(schedule, profile, "own modules"))
            pids = ranks.pids
            try:
                ranks.run(Job(schedule, profile, "own modules", fault))
                said = "NOTHING: it ran"
            except RuntimeFault as error:
                said = str(error)
            left = sum(map(is_running, pids))
        yield fault, said, left


# -- the page ----------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", metavar="STEM", help="write STEM.md")
    parser.add_argument("--devices", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--schedules", nargs="*", help="default: every named one, and an optimised")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    models, missing = list(MODELS), ""
    try:
        import transformers

        version = f", transformers {transformers.__version__}"
    except ImportError:
        models.remove("Hugging Face")
        version, missing = "", " transformers is not installed: without the LLaMA of Hugging Face."
    names = arguments.schedules or [*REGISTRY, OPTIMISED]
    cells: dict[tuple[str, str, int], Outcome] = {}
    failed: list[tuple[int, str, str, int]] = []
    for p in arguments.devices:
        with Ranks(p) as ranks:
            for model in models:
                for name in names:
                    cells[name, model, p] = outcome(ranks, name, model, p)
                    print(f"{model}, p = {p}, {name}: {cells[name, model, p].text}", flush=True)
        failed += [(p, *one) for one in faults(p)]
    good = sum(one.good for one in cells.values())
    text = page(cells, names, models, arguments.devices, failed, version, missing)
    print(text)
    if arguments.write:
        write_text(f"{arguments.write}.md", text)
    sound = all("\n" not in said and not left for _, _, said, left in failed)
    return 0 if good == len(cells) and sound else 1


def page(
    cells: dict[tuple[str, str, int], Outcome],
    names: Sequence[str],
    models: Sequence[str],
    devices: Sequence[int],
    failed: Sequence[tuple[int, str, str, int]],
    version: str,
    missing: str,
) -> str:
    """All outcomes, a row per schedule; what faults led to; where it ran."""
    facts = device_facts(torch.device("cpu"))
    lines = [
        "# Every schedule on CPU ranks",
        "",
        "**No GPU took part.** A process per device over gloo, real stages, fp32. Each cell: gradients equal to plain"
        " autograd's bit by bit (`=`), or as close to fp64 as those are (`≈`, and the largest difference, of the largest"
        " entry); the largest peak of a rank, of the predicted one, with one op after the other (none may be above it by more"
        " than the losses); and in parentheses the same in a process per rank, where messages that a rank has sent are held"
        f" until the other takes them.{missing}",
        "",
        f"{facts['name']}, torch {torch.__version__}{version}; 2p microbatches; the optimised one under {SHARE:.0%} of"
        " 1F1B's activations.",
        "",
    ]
    columns = [(model, p) for model in models for p in devices]
    lines.append("| schedule | " + " | ".join(f"{model}, p = {p}" for model, p in columns) + " |")
    lines.append("|---|" + "---|" * len(columns))
    for name in names:
        texts = [cells[name, model, p].text for model, p in columns]
        lines.append(f"| {name} | {' | '.join(texts)} |")
    good = sum(one.good for one in cells.values())
    equal = sum(one.bitwise == one.parameters for one in cells.values())
    lines += ["", f"{good} of {len(cells)} runs are as predicted; {equal} of them bit by bit.", ""]
    lines += ["| p | fault | the one line | processes left |", "|--:|---|---|--:|"]
    for p, fault, said, left in failed:
        lines.append(f"| {p} | {fault} | `{said}` | {left} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import confirm_schedules  # jobs are of a module that ranks can import

    sys.exit(confirm_schedules.main())
