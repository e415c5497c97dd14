"""Every named schedule and an optimised one with real stages on CPU ranks, and what happens when a rank fails.

    make confirm-schedules      (or: python benchmarks/confirm_schedules.py --write results/confirm_schedules)

For 2 and 4 devices and three models (a decoder of this project, modules of one's own with trees between
them, a LLaMA of Hugging Face where transformers is installed) each schedule runs once with a process per
device, and once in one process, op by op. Gradients are compared with plain autograd, bit by bit, and the
peak of each rank with the prediction. Times are not looked at.

What is done is kept in out/confirm_schedules, so that the same command goes on after Ctrl-C; several may work at
once, each with some --models. Run with another version of torch it adds a section to the page.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from schedule_models import MODELS, batch, gradients, loss, stages_of, unpipelined  # noqa: E402
from schedule_page import FAULT, ROOT, Fault, Kept, Key, Run, publish  # noqa: E402

from optpipe_sim import CostProfile, build, simulate, solve  # noqa: E402
from optpipe_sim.errors import OptPipeError, RuntimeFault  # noqa: E402
from optpipe_sim.ops import Op  # noqa: E402
from optpipe_sim.processes.signals import is_running  # noqa: E402
from optpipe_sim.profile import Offload  # noqa: E402
from optpipe_sim.runtime import PipelineStep, profile_modules  # noqa: E402
from optpipe_sim.runtime.confirm.verdict import compare_gradients  # noqa: E402
from optpipe_sim.runtime.execute.launch import Ranks  # noqa: E402
from optpipe_sim.runtime.measure.machine import device_facts  # noqa: E402
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
        steps = tuple(one for one in programs[-1].steps if one is not send)
        programs[-1] = replace(programs[-1], steps=steps)
        for rank in step.ranks.values():
            rank.follow(replace(step.prepared, programs=tuple(programs)))


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


def run_one(ranks: Ranks, model: str, p: int, name: str) -> Run:
    """One schedule, in a process per device and in one."""
    try:
        return compared(ranks, model, p, name)
    except OptPipeError as error:
        return Run(model, p, name, failed=str(error))


def compared(ranks: Ranks, model: str, p: int, name: str) -> Run:
    schedule, profile = schedule_of(name, model, p)
    results = ranks.run(Job(schedule, profile, model))
    found = {key: grad for result in results for key, grad in result["gradients"].items()}
    peak, above = one_process(schedule, profile, model, found)
    mean = next(result["loss"] for result in results if result["loss"] is not None)
    size = schedule.shape.stages, schedule.shape.microbatches
    expected, wanted = unpipelined(model, *size)
    checked = compare_gradients(found, mean, wanted, expected)
    if checked.bitwise < checked.parameters:
        exact = unpipelined(model, *size, exact=True)[1]
        checked = compare_gradients(found, mean, wanted, expected, exact)
    return Run(
        model,
        p,
        name,
        checked.parameters,
        checked.bitwise,
        checked.rounded or 0,
        checked.relative,
        mean / expected,
        peak,
        above,
        max(result["peak"] / result["said"] for result in results),
    )


def one_process(
    schedule: Schedule, profile: CostProfile, model: str, expected: dict[str, Tensor]
) -> tuple[float, bool]:
    """The largest peak of a rank where one op runs after the other, of the predicted one, and whether one is above
    it by more than the losses; gradients have to be those that the ranks found."""
    modules = stages_of(model, schedule.shape.stages)
    step = PipelineStep(modules, schedule, loss, profile=profile)
    step(*batch(schedule.shape.microbatches), measure=True)
    for name, gradient in gradients(dict(enumerate(modules))).items():
        if not torch.equal(gradient, expected[name]):
            raise OptPipeError(f"one process and the ranks have other gradients of {name}")
    static = step.prepared.lowered.profile.static_bytes
    said = [
        peak - own
        for peak, own in zip(step.prepared.lowered.replay().peak_bytes, static, strict=True)
    ]
    losses = 4 * schedule.shape.microbatches
    return (
        max(step.peaks[rank] / said[rank] for rank in step.peaks),
        any(step.peaks[rank] > said[rank] + losses for rank in step.peaks),
    )


# -- faults ------------------------------------------------------------------------------------------

FAULTS = ("exception", "SIGKILL", "missing message")
BROKEN = "own modules"


def broken(p: int, fault: str) -> Fault:
    """What is said of a fault, and how many processes are left after it."""
    schedule, profile = schedule_of("zb-h1", BROKEN, p)
    with Ranks(p) as ranks:
        ranks.run(Job(schedule, profile, BROKEN))
        pids, said = ranks.pids, None
        try:
            ranks.run(Job(schedule, profile, BROKEN, fault))
        except RuntimeFault as error:
            said = str(error)
        left = sum(map(is_running, pids))
    return Fault(p, fault, said, left)


# -- from the command line ---------------------------------------------------------------------------


def main() -> int:
    arguments = _parser().parse_args()
    torch.set_num_threads(1)
    paths = filter(None, [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # of the ranks
    models = arguments.models or list(MODELS)
    facts = f"{device_facts(torch.device('cpu'))['name']}, Python {platform.python_version()}"
    try:
        facts += f", transformers {version('transformers')}"
    except PackageNotFoundError:
        models = [model for model in models if model != "Hugging Face"]
        facts += "; without transformers, so no LLaMA of Hugging Face"
    kept = Kept(ROOT / "out" / "confirm_schedules" / torch.__version__, facts)
    if arguments.fresh:
        shutil.rmtree(kept.folder, ignore_errors=True)
    names = arguments.schedules or [*REGISTRY, OPTIMISED]
    wanted = [(model, p, name) for p in arguments.devices for model in models for name in names]
    if BROKEN in models:
        wanted += [(FAULT, p, fault) for p in arguments.devices for fault in FAULTS]
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, partial(_interrupt, interrupts))
    try:
        make(kept, wanted, interrupts)
    except KeyboardInterrupt:
        done = sum(kept.get(key) is not None for key in wanted)
        print(f"\n{done} of {len(wanted)} runs are done; the same command goes on from there")
        return 130
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    found = kept.found(str(torch.__version__), facts, date, wanted)
    print(publish(arguments.write, found))
    return 0 if found.good else 1


def _interrupt(interrupts: list[int], number: int, frame: Any) -> None:
    interrupts.append(number)
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", metavar="STEM", default="out/confirm_schedules/page")
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--models", nargs="+", choices=MODELS, help="default: all")
    parser.add_argument("--schedules", nargs="+", help="default: every named one, and an optimised")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs have found")
    return parser


def make(kept: Kept, wanted: Sequence[Key], interrupts: Sequence[int]) -> None:
    """Make the runs that are not known; each is kept as it comes.

    `interrupts`: those that have come: a search that is interrupted just ends with what it has.
    """
    left = [key for key in wanted if kept.get(key) is None]
    if len(left) < len(wanted):
        print(f"{len(wanted) - len(left)} of {len(wanted)} are known; --fresh makes them again")
    with ExitStack() as stack:
        ranks: dict[int, Ranks] = {}
        for number, key in enumerate(left, len(wanted) - len(left) + 1):
            model, p, name = key
            if p not in ranks:
                ranks[p] = stack.enter_context(Ranks(p))
            begun = time.monotonic()
            found = broken(p, name) if model == FAULT else run_one(ranks[p], *key)
            if interrupts:
                raise KeyboardInterrupt
            kept.put(key, found, time.monotonic() - begun)
            print(f"{number}/{len(wanted)}  {model}, p = {p}, {name}: {found.text}", flush=True)


if __name__ == "__main__":
    import confirm_schedules  # jobs are of a module that ranks can import

    sys.exit(confirm_schedules.main())
