"""Confirm everything on a device in one run with a time limit: part by part, the results of each saved before
the next begins.

On an untested machine anything may fail. A part that fails is reported in one line and its traceback saved;
the rest continues with what is available. Parts for which no time is left are reported as left out.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch

from optpipe_sim.costs.issuing import Run, fitted
from optpipe_sim.costs.models import Model
from optpipe_sim.errors import Deadlock, OptPipeError, OutOfMemory
from optpipe_sim.execution import execution_to_json
from optpipe_sim.files import write_mapping, write_text
from optpipe_sim.frameworks.chrome_trace import save_chrome_trace
from optpipe_sim.names import build
from optpipe_sim.profile import CostProfile
from optpipe_sim.profile_io import save_profile
from optpipe_sim.runtime.confirm.case import Case
from optpipe_sim.runtime.confirm.confirm import confirm
from optpipe_sim.runtime.confirm.verdict import Confirmation
from optpipe_sim.runtime.device import check_device
from optpipe_sim.runtime.measure.fake import with_latency
from optpipe_sim.runtime.measure.footprint import OPS
from optpipe_sim.runtime.measure.profiler import measure
from optpipe_sim.runtime.model.plan import Plan
from optpipe_sim.runtime.train.planner import in_order
from optpipe_sim.schedule import Schedule
from optpipe_sim.schedules import ADAOFFLOAD, PLAIN
from optpipe_sim.sim import simulate
from optpipe_sim.sim.interference import Interference
from optpipe_sim.solvers.solve import solve

from .parts import Parts
from .probes import probe

OPTIMISED = "optimised"


class Ranked(NamedTuple):
    """A schedule that is ranked among others: a name, its chunks per device, and how these are placed. `planned`: its name takes
    the limit that it is built for."""

    name: str
    chunks: int = 1
    placement: str = "loop"
    planned: bool = False


ROOT = Path(__file__).parents[2]
TESTS, TESTS_S = "tests/gpu", 120  # on a new machine loops are compiled in the meantime
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Work:
    """A model that is cut, profiled and run.

    Attributes:
        share: of 1F1B's activations, per device, that schedules under a limit may hold.
        planned: that limit, as a share of the cap of the allocator, which rounds sizes and has gaps.
        replays, loops: names of schedules; under the limit those that offload, and ``optimised``,
            which is searched for, among those that add up gradients in the order of microbatches.
        ranked: schedules that are run under the same limits, to see whether those that are predicted to be faster are;
            `shares`: these limits, of 1F1B's activations on the fullest device. `rank_iterations`, `rank_sweeps`: of their loops.
        levels: of recomputation, that are measured as well.
        capped: whether 1F1B is run under the limit's cap as well, which it has to break.
    """

    model: Model
    devices: int = 4
    seq: int = 4096
    microbatch: int = 1
    dtype: str = "bf16"
    microbatches: int = 8
    samples: int = 30
    iterations: int = 5
    sweeps: int = 4
    share: float = 0.6
    planned: float = 0.95
    replays: tuple[str, ...] = ()
    loops: tuple[str, ...] = ()
    ranked: tuple[Ranked, ...] = ()
    shares: tuple[float, ...] = (2.0, 0.6)
    rank_iterations: int = 3
    rank_sweeps: int = 2
    levels: tuple[str, ...] = ()
    capped: bool = True
    solve_seconds: float = 15.0

    @property
    def name(self) -> str:
        """Of the model and the length of its sequences."""
        return f"{self.model.name}-s{self.seq}"


@dataclass(frozen=True)
class Campaign:
    """What to confirm, and in how many seconds.

    Attributes:
        machine: the link between devices is estimated for it, which one device cannot measure.
        tests: whether the tests for GPUs are run: plain, before anything is measured, and at the end under
            torch's race detector for CUDA.
        traces: whether measured traces are written.
    """

    works: tuple[Work, ...]
    device: str = "cuda"
    seconds: float = 500.0
    machine: str = "h200-sxm"
    tests: bool = True
    traces: bool = True
    meta: dict[str, Any] = field(default_factory=dict)


class Runner:
    """Runs a campaign and writes what it finds into a folder.

    Args:
        resume: go on where an earlier process of the same campaign ended (`parts`).
    """

    def __init__(
        self,
        campaign: Campaign,
        folder: Path,
        say: Callable[[str], None] = lambda text: None,
        resume: bool = False,
    ) -> None:
        self.campaign, self.folder = campaign, folder
        folder.mkdir(parents=True, exist_ok=True)
        alive = partial(_clean, campaign.device)
        least_s = 150.0 if campaign.device == "cuda" else 900.0  # a CPU may have other work
        self.parts = Parts(folder, campaign.seconds, say, alive, resume, least_s)
        self.found: dict[str, Any] = {
            "meta": campaign.meta,
            "parts": self.parts.entries,
            "works": {},
        }
        self.confirmed: dict[str, dict[str, Confirmation]] = {}

    def run(self) -> dict[str, Any]:
        """Run all parts; return the contents of `results.json`."""
        plan = _plan(self.campaign.works[0])
        place = check_device(self.campaign.device)
        self.found["probes"] = self.part("probes", 30, lambda: probe(place, plan))
        self.found["tests"] = {}
        for work in self.campaign.works:
            self._work(work)
        self._tests("plain", {})
        self._tests("sanitizer", {"TORCH_CUDA_SANITIZER": "1"})
        self._write()
        return self.found

    def part(self, name: str, needs: float, do: Callable[[], _Found]) -> _Found | None:
        """Run a part, unless fewer than `needs` seconds are left."""
        found = self.parts.run(name, needs, do)
        self._write()
        return found

    # -- a model ---------------------------------------------------------------------------------

    def _work(self, work: Work) -> None:
        name = work.name
        entry: dict[str, Any] = {"work": _facts(work), "confirmed": {}}
        self.found["works"][name], self.confirmed[name] = entry, {}
        profile = self.part(f"{name}: profile", 40, lambda: self._profile(work))
        if profile is None:
            return
        path = self.folder / f"profile-{name}.yaml"
        self.parts.write(path.name, lambda: save_profile(profile, path))
        entry["levels"] = _levels(profile)
        entry["basics"] = basics(profile)
        if work.ranked:
            self._rank(work, profile)
        limits = self.part(f"{name}: limit", 5, lambda: limit_of(work, profile))
        if limits is None:
            return
        caps = tuple(int(limit / work.planned) for limit in limits)
        entry["limits"], entry["caps"] = list(limits), list(caps)
        schedules: dict[str, Schedule] = {}
        for schedule in dict.fromkeys((*work.replays, *work.loops)):
            tight = limits if _offloads(schedule) else None
            made = self.part(
                f"{name}: {schedule}",
                work.solve_seconds + 10 if schedule == OPTIMISED else 5,
                partial(_schedule, work, profile, schedule, tight),
            )
            if made is not None:
                schedules[schedule] = made
        for mode, names, needs in (("replay", work.replays, 30), ("loop", work.loops, 40)):
            for schedule in filter(schedules.__contains__, names):
                case = self._case(work, profile, schedules[schedule])
                if _offloads(schedule):
                    cap = self.campaign.device == "cuda"
                    case = replace(case, memory_limit=limits, cap_memory=cap, cap_limits=caps)
                self._confirm(work, f"{mode} of {schedule}", case, mode, needs)
        if work.capped and PLAIN in schedules and self.campaign.device == "cuda":
            case = self._case(work, profile, schedules[PLAIN])
            case = replace(case, cap_memory=True, cap_limits=caps, sweeps=1)
            entry["1f1b_under_the_cap"] = self.part(
                f"{name}: 1f1b under the cap", 20, lambda: _runs_out(case)
            )

    def _rank(self, work: Work, profile: CostProfile) -> None:
        """Run the ranked schedules under each limit, and fit an execution to them."""
        entry = self.found["works"][work.name]
        profiles = {1: profile}
        for chunks in sorted({one.chunks for one in work.ranked} - {1}):
            name = f"{work.name}: profile of {chunks} chunks"
            made = self.part(name, 40, partial(self._profile, replace(work, levels=()), chunks))
            if made is not None:
                profiles[chunks] = made
        runs: list[Run] = []
        entry["ranking"] = {}
        for share in work.shares:
            limit = max(limit_of(replace(work, share=share), profile))
            rows = entry["ranking"].setdefault(f"{share:.0%}", {"limit": limit, "rows": []})["rows"]
            for one in work.ranked:
                if one.chunks not in profiles:
                    continue
                costs = replace(
                    profiles[one.chunks], placement=cast(Any, one.placement), memory_limit=None
                )
                needs = 25 + (work.solve_seconds if one.name == OPTIMISED else 0)
                name = f"{work.name}: {one.name} within {share:.0%}"
                found = self.part(name, needs, partial(self._ranked, work, costs, one, limit))
                if found is None:
                    continue
                row, run = found
                rows.append(row)
                runs += [run] if run is not None else []
                self._write()
        if runs:
            source = f"one {self.campaign.device} device, rank by rank, links modelled"
            execution = self.part(
                f"{work.name}: execution",
                1,
                lambda: fitted(f"{work.name}-one-device", source, runs),
            )
            if execution is not None:
                entry["execution"] = data = execution_to_json(execution)
                path = self.folder / f"execution-{work.name}.yaml"
                self.parts.write(path.name, lambda: write_mapping(path, data))

    def _ranked(
        self, work: Work, costs: CostProfile, one: Ranked, limit: int
    ) -> tuple[dict[str, Any], Run | None]:
        """Return what is predicted and measured of a schedule under a limit; no run where it does not fit."""
        name = f"{one.name}:limit={limit}" if one.planned else one.name
        limits = (limit,) * work.devices
        row: dict[str, Any] = {"schedule": one.name, "chunks": one.chunks}
        try:
            tight = limits if _offloads(one.name) else None
            schedule = _schedule(work, costs, name, tight)
            predicted = simulate(schedule, costs, limits)
        except (OutOfMemory, Deadlock) as error:
            return row | {"fits": False, "why": str(error).splitlines()[0]}, None
        case = replace(
            self._case(work, costs, schedule),
            plan=_plan(work, one.chunks),
            iterations=work.rank_iterations,
            sweeps=work.rank_sweeps,
            memory_limit=limits,
        )
        found = confirm(case, "loop")
        measured = found.difference.measured.makespan_ns
        row |= {
            "fits": True,
            "predicted_ns": predicted.makespan_ns,
            "measured_ns": measured,
            "noise_ns": found.noise_ns,
            "closure_ns": found.closure_ns,
            "peak_bytes": max(predicted.peak_bytes),
            "offloaded": predicted.offloaded,
            "gradients": found.gradients and asdict(found.gradients),
        }
        return row, Run(one.name, float(measured), False, schedule, costs.for_shape(schedule.shape))

    def _profile(self, work: Work, chunks: int = 1) -> CostProfile:
        plan = _plan(work, chunks)
        profile = measure(plan, self.campaign.device, work.samples, levels=work.levels)
        # what a device has is no limit here: plans get theirs from 1F1B's activations
        return replace(with_latency(profile, plan, self.campaign.machine), memory_limit=None)

    def _case(self, work: Work, profile: CostProfile, schedule: Schedule) -> Case:
        return Case(
            schedule,
            profile,
            plan=_plan(work),
            device=self.campaign.device,
            iterations=work.iterations,
            sweeps=work.sweeps,
        )

    def _confirm(self, work: Work, name: str, case: Case, mode: str, needs: float) -> None:
        found = self.part(f"{work.name}: {name}", needs, lambda: _confirmed(case, mode))
        if found is None:
            return
        self.confirmed[work.name][name] = found
        self.found["works"][work.name]["confirmed"][name] = found.to_json()
        if self.campaign.traces and mode == "loop":
            label = re.sub(r"[^\w.+-]+", "-", name.removeprefix("loop of "))
            path = self.folder / f"trace-{label}.json"
            trace = found.last or found.difference.measured
            self.parts.write(path.name, lambda: save_chrome_trace(trace, path))

    # -- tests -----------------------------------------------------------------------------------

    def _tests(self, name: str, more: dict[str, str]) -> None:
        """Run the tests for GPUs, if that is wanted, with `more` in their environment."""
        if not self.campaign.tests:
            return
        most = min(TESTS_S, self.parts.left)
        found = self.part(f"tests, {name}", 30, lambda: _run_tests(more, most))
        if found is not None:
            self.found["tests"][name] = found

    # -- files -----------------------------------------------------------------------------------

    def _write(self) -> None:
        from .report import report

        self.found["seconds"] = round(self.campaign.seconds - self.parts.left, 1)
        data, page = self.folder / "results.json", self.folder / "report.md"
        self.parts.write(data.name, lambda: write_text(data, _text(self.found)))
        self.parts.write(page.name, lambda: write_text(page, report(self.found, self.confirmed)))


def _text(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=1, default=str) + "\n"


def _run_tests(more: dict[str, str], seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "pytest", TESTS, "-q", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=seconds,
            env={**os.environ, **more},
        )
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"").decode(errors="replace").splitlines()
        return {"status": None, "end": [*said[-24:], f"stopped after {seconds:.0f} s"]}
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    stderr = done.stderr.splitlines()[-10:]  # all that there is without pytest
    return {"status": done.returncode, "end": lines[-25:] or stderr, "stderr": stderr}


def limit_of(work: Work, profile: CostProfile) -> tuple[int, ...]:
    """Return, per device, what is static and `share` of the activations that 1F1B holds, or the least that
    any schedule without recomputation needs."""
    whole = profile.map_stages(lambda _, cost: replace(cost, recompute=()))
    peaks = simulate(build(PLAIN, whole, work.microbatches), whole).peak_bytes
    return tuple(
        max(least, static + int(work.share * (peak - static)))
        for least, static, peak in zip(whole.least_limits, whole.static_bytes, peaks, strict=True)
    )


def _schedule(
    work: Work, profile: CostProfile, name: str, limits: Sequence[int] | None
) -> Schedule:
    limited = profile if limits is None else replace(profile, memory_limit=tuple(limits))
    if name != OPTIMISED:
        return build(name, limited, work.microbatches)
    # gradients that are added up in another order are no longer bitwise those of the unpipelined model
    comparable: list[Schedule] = []

    def keep(schedule: Schedule, _: int = 0) -> None:
        if in_order(schedule):
            comparable.append(schedule)

    # compiled here, not one of the solvers that a machine may lack
    found = solve(
        limited,
        work.microbatches,
        engine="search",
        time_limit=work.solve_seconds,
        chunks="own",
        on_incumbent=keep,
    )
    assert found.schedule is not None
    keep(found.schedule)  # without its useless offloads
    if not comparable:
        raise OptPipeError("no schedule was found under the limit that adds up gradients in order")
    return comparable[-1]


def _offloads(name: str) -> bool:
    return name.startswith((ADAOFFLOAD, OPTIMISED))


def _plan(work: Work, chunks: int = 1) -> Plan:
    return Plan(work.model, work.devices, chunks, work.seq, work.microbatch, work.dtype)


def basics(profile: CostProfile) -> dict[str, Any]:
    """Return what decides most between schedules, from a measured profile: the rates of copies alone, together and beside GEMMs; how
    much longer ops take beside copies and messages; what B and W take apart over one backward; and the share of its op that the
    host needs to issue it, the most of any stage."""
    stages = [entry["times_us"] for entry in profile.meta["stages"]]
    shares = {op: max(one[op]["issue"] / one[op]["median"] for one in stages) for op in OPS}
    interference = Interference.of(profile)
    return {
        "copies_gb_per_s": {
            mode: {way: copy["gb_per_s"] for way, copy in both.items()}
            for mode, both in profile.meta["copies"].items()
        },
        "beside": [] if interference is None else interference.lines(),
        "apart": [
            (one["B"]["median"] + one["W"]["median"]) / one["BW"]["median"] for one in stages
        ],
        "issue": shares,
        "issue_us": {op: max(one[op]["issue"] for one in stages) for op in shares},
    }


def _confirmed(case: Case, mode: str) -> Confirmation:
    """Run a case; one that runs out of memory under its cap is measured without it, as its times count too."""
    try:
        return confirm(case, mode)
    except OutOfMemory as error:
        if not case.cap_memory:
            raise
        why = str(error).splitlines()[0]
    _clean(case.device)
    return replace(confirm(replace(case, cap_memory=False), mode), beyond_cap=why)


def _runs_out(case: Case) -> dict[str, Any]:
    """Whether a schedule that holds more breaks the cap, as it should."""
    try:
        found = confirm(case, "loop")
    except OutOfMemory as error:
        return {"out_of_memory": True, "error": str(error).splitlines()[0]}
    return {"out_of_memory": False, "memory": [asdict(peak) for peak in found.peaks]}


def _levels(profile: CostProfile) -> list[dict[str, tuple[float, float]]]:
    """Return, per stage and level, the time of recomputing in shares of F, what is kept in shares of all."""
    return [
        {
            level.name: (level.t_ns / cost.t_f_ns, level.keep_bytes / cost.act_bytes)
            for level in cost.recompute
        }
        for cost in profile.stages
    ]


def _facts(work: Work) -> dict[str, Any]:
    facts = {key: value for key, value in vars(work).items() if key != "model"}
    return {"model": asdict(work.model), **facts}


def _clean(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
