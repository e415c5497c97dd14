"""Rates fitted to measurements: op times, messages, whole iterations, memory.

A measurement is one number with a function that estimates it for any rates. `calibrate` fits the few
rates that the measurements at hand determine, and keeps the error of every one, before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ..errors import OptPipeError, hint_for
from ..files import plain, read_mapping, write_mapping
from ..names import build
from ..option_fields import options_of
from ..profile import CostProfile
from ..profile_io import load_profile
from ..schedule import Schedule
from ..sim import simulate
from .estimating import estimate
from .layout import Layout
from .machines import Machine, Rates
from .provenance import iteration_ns
from .work import Work
from .wrong_units import require_op, require_peak, require_time

MEMORY = "memory"  # the kind of measurement that is no time
# The rates that each kind of measurement determines, and the bounds of plausible ones.
FITTED = {
    "time": ("gemm", "bandwidth"),
    "message": ("p2p",),
    "iteration": ("overhead",),
    MEMORY: ("memory_factor", "working_set"),
}
BOUNDS = {
    "gemm": (0.05, 1.0),
    "attention": (0.05, 1.0),
    "bandwidth": (0.05, 1.0),
    "p2p": (0.01, 1.0),
    "overhead": (0.0, 0.5),
    "fixed_ms": (0.0, 1e6),  # and less than the shortest iteration
    "op_us": (0.0, 1e6),  # and less than the shortest op
    "memory_factor": (0.8, 1.3),
    "working_set": (0.0, 2.0),
    "workspace_mib": (0.0, 8192.0),
}
_WHOLE = (
    "devices",
    "slices",
    "slice_by",
)  # no options of a measurement, which is of whole sequences
_OPTIONS = [*(key for key in options_of(Layout, Work) if key not in _WHOLE), "levels", "execution"]
_COUNTS = ("devices", "microbatches", "tp", "cp", "ep", "etp", "dp", "chunks", "microbatch", "seq")
_MEASURED = ("t_f_ms", "t_b_ms", "t_w_ms", "t_comm_ms", "iteration_ms", "peak_gib", "profile")
TIMES = ("fixed_ms", "op_us")  # outside kernels
SHARES = ("gemm", "attention", "bandwidth")  # of what kernels could reach
# How many times as long an iteration has to be to tell a fixed time from a share, an op to tell the time beside its
# kernels.
APART = 1.5
# Where such times are fitted too, what is likely before anything is measured counts as well: times up to all of the
# shortest iteration or op, shares within a factor of 1.5 of the machine's (the logarithm of which is `LIKELY`). It
# decides where measurements do not. Beside it a measurement counts as estimates at rates fitted to one run are off on
# other splits of that model: by up to 6 % (five of BigScience's).
OFF, LIKELY = 0.06, 0.4
ALIKE = 0.02  # iterations whose estimates are as near need no further rate
NOISE = 0.05  # errors beyond it count less than their square
_GIB = 2**30


@dataclass(frozen=True)
class Setup:
    """The subject of a measurement: a model on a machine with its parallelism, perhaps under one schedule."""

    model: str
    devices: int
    options: Mapping[str, Any] = field(default_factory=dict)
    schedule: str | None = None
    microbatches: int = 0

    def profile(self, machine: Machine, rates: Rates) -> CostProfile:
        """Return the estimated profile at these rates."""
        return estimate(
            self.model, machine, self.devices, rates=rates, **{"levels": False, **self.options}
        )


@dataclass(frozen=True)
class Measurement:
    """A measured number.

    Attributes:
        label: its name, for people.
        kind: ``time`` (of an op), ``message``, ``iteration`` or ``memory``.
        value: in ms or GiB.
        predict: the same number as estimated at some rates.
        flash: the attention was a fused kernel, so that its rate matters.
        op_ms: of an iteration, what a backward with W takes in the mean stage, as estimated at some rates.
    """

    label: str
    kind: str
    value: float
    predict: Callable[[Rates], float]
    flash: bool = False
    op_ms: Callable[[Rates], float] | None = None


@dataclass(frozen=True)
class Residual:
    """One measurement and its estimate: `error` is estimated / measured - 1."""

    label: str
    kind: str
    measured: float
    estimated: float

    @property
    def error(self) -> float:
        """Relative; positive where the estimate is too high."""
        return self.estimated / self.measured - 1


@dataclass(frozen=True)
class Calibration:
    """Fitted rates, and every measurement's error before and after."""

    rates: Rates
    names: tuple[str, ...]
    before: tuple[Residual, ...]
    after: tuple[Residual, ...]

    def median_error(self, kind: str | None = None) -> float:
        """Return the median of the absolute errors left, of one kind or of all."""
        return median_error(self.after, kind)


def median_error(residuals: Sequence[Residual], kind: str | None = None) -> float:
    """Return the median of the absolute relative errors (nan where there are none)."""
    errors = [abs(one.error) for one in residuals if kind in (None, one.kind)]
    return median(errors) if errors else float("nan")


def residuals(measurements: Sequence[Measurement], rates: Rates) -> tuple[Residual, ...]:
    """Return the estimate of each measurement at these rates, with its error."""
    return tuple(Residual(m.label, m.kind, m.value, m.predict(rates)) for m in measurements)


def calibrate(
    measurements: Sequence[Measurement],
    machine: Machine,
    source: str,
    names: Sequence[str] | None = None,
) -> Calibration:
    """Fit rates of the machine to measurements, by least squares on the logarithms.

    A time beside kernels (`TIMES`) is fitted only where an iteration is further than `ALIKE` from what shares say: a second run that the
    first one all but predicts is no reason for another rate, which would move the estimates of other runs.

    Args:
        source: the origin of the measurements, for the provenance of profiles.
        names: the rates to fit; by default those that the measurements determine (`determined`).

    Raises:
        OptPipeError: without measurements, or for a rate that cannot be fitted.
    """
    if not measurements:
        raise OptPipeError("calibrate: no measurements")
    for name in names or ():
        if name not in BOUNDS:
            raise OptPipeError(f"calibrate: {name}: known rates are {', '.join(BOUNDS)}")
    if names is not None:
        return _fitted(measurements, machine, source, names)
    names = determined(measurements, machine.rates)
    shares = [name for name in names if name not in TIMES]
    alone = _fitted(measurements, machine, source, shares)
    off = (abs(one.error) for one in alone.after if one.kind == "iteration")
    if shares == names or max(off) <= ALIKE:
        return alone
    return _fitted(measurements, machine, source, names)


def _fitted(
    measurements: Sequence[Measurement], machine: Machine, source: str, names: Sequence[str]
) -> Calibration:
    """Fit these rates, by least squares on the logarithms."""
    from scipy.optimize import least_squares

    start = machine.rates
    bounds = _bounds(names, measurements, start)
    low, high = (np.array([bound[at] for bound in bounds]) for at in (0, 1))
    width = high - low
    inside = np.array([getattr(start, name) for name in names])
    first = np.clip(inside, low + 0.01 * width, high - 0.01 * width)
    measured = np.log([one.value for one in measurements])
    timed, shares = (np.array([name in kind for name in names]) for kind in (TIMES, SHARES))

    def errors(values: np.ndarray) -> np.ndarray:
        changes: dict[str, Any] = dict(zip(names, map(float, values), strict=True))
        rates = replace(start, **changes)
        off = np.log([one.predict(rates) for one in measurements]) - measured
        if not timed.any():
            return off
        beside = [*values[timed] / high[timed], *np.log(values[shares] / inside[shares]) / LIKELY]
        return np.concatenate([off, OFF * np.array(beside)])

    found = least_squares(
        errors,
        first,
        bounds=(low, high),
        x_scale=np.where(timed, width, 1.0),
        loss="soft_l1",
        f_scale=NOISE,
        diff_step=[1e-3],
    )
    fitted = start.fit(
        source, **{n: round(float(v), 4) for n, v in zip(names, found.x, strict=True)}
    )
    return Calibration(
        fitted, tuple(names), residuals(measurements, start), residuals(measurements, fitted)
    )


def determined(measurements: Sequence[Measurement], rates: Rates) -> list[str]:
    """Return the rates that measurements determine.

    Without op times an iteration determines one rate, and the share of it in no op stays as it is. Iterations of
    which one is `APART` times as long as another determine a time that is the same in both, too; and those whose
    ops are so far apart, as with other
    microbatches or chunks, the time of an op beside its kernels: never more of them than there are iterations.
    """
    kinds = {one.kind for one in measurements}
    flash = any(one.flash and one.kind in ("time", "iteration") for one in measurements)
    names_of = dict(FITTED) if "time" in kinds else {**FITTED, "iteration": ("gemm",)}
    names = [name for kind in names_of if kind in kinds for name in names_of[kind]]
    names += ["attention"] if flash and "time" in kinds else []
    whole = [one for one in measurements if one.kind == "iteration"]
    ops = [one.op_ms(rates) for one in whole if one.op_ms is not None]
    more = [
        name
        for name, times in (("fixed_ms", [one.value for one in whole]), ("op_us", ops))
        if times and max(times) >= APART * min(times)
    ]
    return names + more[: max(0, len(whole) - 1)]


def _bounds(
    names: Sequence[str], measurements: Sequence[Measurement], rates: Rates
) -> list[tuple[float, float]]:
    """Return what each rate may be: a fixed time less than the shortest iteration, that of an op less than the
    shortest op."""
    found = {**BOUNDS}
    whole = [one for one in measurements if one.kind == "iteration"]
    if whole and "fixed_ms" in names:
        found["fixed_ms"] = (0.0, min(one.value for one in whole))
    ops = [one.op_ms(rates) for one in whole if one.op_ms is not None]
    if ops and "op_us" in names:
        found["op_us"] = (0.0, 1e3 * min(ops))
    return [found[name] for name in names]


# -- measurements ---------------------------------------------------------------------------------


def op_times(setup: Setup, machine: Machine, measured: Mapping[str, float]) -> list[Measurement]:
    """Of the middle stage, for the keys ``t_f_ms``, ``t_b_ms``, ``t_w_ms`` and ``t_comm_ms``."""
    middle = setup.devices // (setup.options.get("tp", 1) * setup.options.get("cp", 1))
    middle = middle * setup.options.get("chunks", 1) // 2

    @lru_cache(maxsize=2)  # one estimate yields all keys
    def profiled(rates: Rates) -> CostProfile:
        return setup.profile(machine, rates)

    def predict(key: str) -> Callable[[Rates], float]:
        def value(rates: Rates) -> float:
            profile = profiled(rates)
            if key == "t_comm_ms":
                return profile.t_comm_ns / 1e6
            return float(getattr(profile.stages[middle], f"{key[:-3]}_ns")) / 1e6

        return value

    flash = bool(setup.options.get("flash", True))
    label = _label(setup)
    return [
        Measurement(
            f"{label} {key}",
            "message" if key == "t_comm_ms" else "time",
            value,
            predict(key),
            flash,
        )
        for key, value in measured.items()
    ]


class Replays:
    """The schedule of a setup, built once with the machine's own rates, replayed with others."""

    def __init__(self, setup: Setup, machine: Machine) -> None:
        self.setup, self.machine = setup, machine
        self.schedule: Schedule | None = None
        self.seen: tuple[Rates, Any] | None = None

    def trace(self, rates: Rates) -> Any:
        """Return the replay, without the limit, at these rates."""
        if self.seen is None or self.seen[0] != rates:
            setup = self.setup
            profile = setup.profile(self.machine, rates)
            if self.schedule is None:
                assert setup.schedule is not None
                self.schedule = build(setup.schedule, profile, setup.microbatches)
            self.seen = rates, simulate(self.schedule, profile, enforce=False)
        return self.seen[1]


def run(
    setup: Setup,
    machine: Machine,
    iteration_ms: float | None = None,
    peak_gib: float | None = None,
    activation_gib: float | None = None,
    replays: Replays | None = None,
) -> list[Measurement]:
    """Of a whole iteration under ``setup.schedule``: its time, the peak of the fullest device, and
    that peak less what is held when the iteration begins: weights, gradients, optimizer states and libraries'
    workspace.
    """
    replays = replays or Replays(setup, machine)
    flash = bool(setup.options.get("flash", True))

    def time(rates: Rates) -> float:
        trace = replays.trace(rates)
        return iteration_ns(trace.profile, trace.cost_ns) / 1e6

    def op(rates: Rates) -> float:
        stages = replays.trace(rates).profile.stages
        return float(sum(stage.fused_ns for stage in stages)) / len(stages) / 1e6

    def peak(rates: Rates) -> float:
        return float(max(replays.trace(rates).peak_bytes)) / _GIB

    def activation(rates: Rates) -> float:
        trace = replays.trace(rates)
        weights = trace.profile.meta["weights_bytes_per_device"]
        held = max(b - w for b, w in zip(trace.peak_bytes, weights, strict=True))
        return float(held) / _GIB - rates.workspace_mib / 1024

    label = f"{_label(setup)} m={setup.microbatches} {setup.schedule}"
    made = []
    for name, kind, value, predict in (
        ("iteration_ms", "iteration", iteration_ms, time),
        ("peak_gib", MEMORY, peak_gib, peak),
        ("activation_gib", MEMORY, activation_gib, activation),
    ):
        if value is not None:
            made.append(
                Measurement(
                    f"{label} {name}",
                    kind,
                    value,
                    predict,
                    flash,
                    op if kind == "iteration" else None,
                )
            )
    return made


def load_measurements(path: str, machine: Machine) -> list[Measurement]:
    """Return the measurements in a YAML or JSON file.

    ``rows`` lists mappings: `model`, `devices` and the other arguments of `estimate`; and what was
    measured: ``t_f_ms``, ``t_b_ms``, ``t_w_ms`` and ``t_comm_ms`` of a middle stage, or ``profile``,
    a profile file to take them from; with ``schedule`` and ``microbatches`` the whole
    ``iteration_ms`` and ``peak_gib``.

    Raises:
        OptPipeError: one line with the file, the row and what is wrong.
    """
    found: list[Measurement] = []
    for at, row in enumerate(_rows_of(path)):
        where = f"{path}: rows[{at}]"
        if not isinstance(row, dict):
            raise OptPipeError(f"{where}: expected a mapping, got {row!r}")
        try:
            found += _row(dict(row), machine)
        except OptPipeError as error:
            raise OptPipeError(f"{where}: {error}") from None
    return found


def add_row(path: str, row: Mapping[str, Any]) -> bool:
    """Add a measurement to a file of rows, which is made where there is none. What was measured of the same run
    goes into its row, in place of the numbers there. Returns whether there was one.

    Raises:
        OptPipeError: one line, for a file that holds anything but rows.
    """
    rows = _rows_of(path) if Path(path).is_file() and Path(path).stat().st_size else []
    row = plain(dict(row))  # as it is read back
    same = [old for old in rows if isinstance(old, dict) and _run_of(old) == _run_of(row)]
    for old in same:
        old.update(row)
    write_mapping(path, {"rows": rows if same else [*rows, row]})
    return bool(same)


def _run_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was run, without what was measured of it."""
    return {key: value for key, value in row.items() if key not in _MEASURED}


def _rows_of(path: str) -> list[Any]:
    data = plain(read_mapping(path, "a file of measurements"))
    rows = data.get("rows")
    if not isinstance(rows, list) or not rows or set(data) - {"rows"}:
        raise OptPipeError(f"{path}: expected one key, rows, with a list of measurements")
    return rows


def _row(row: dict[str, Any], machine: Machine) -> list[Measurement]:
    for key in ("model", "devices"):
        if key not in row:
            raise OptPipeError(f"{key}: missing")
    known = ("model", "devices", "schedule", "microbatches", *_OPTIONS, *_MEASURED)
    for key, value in row.items():
        if key not in known:
            raise OptPipeError(f"{key}: unknown key; {hint_for(str(key), known)}")
        number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        if key in _MEASURED and key != "profile" and not number:
            raise OptPipeError(f"{key}: must be a number above 0, got {value!r}")
    for key in _COUNTS:
        if type(row.get(key, 1)) is not int or row.get(key, 1) < 1:
            raise OptPipeError(f"{key}: must be a whole number of at least 1, got {row[key]!r}")
    for key in ("model", "schedule", "profile"):
        if not isinstance(row.get(key, ""), str):
            raise OptPipeError(f"{key}: expected a text, got {row[key]!r}")
    options = {key: row[key] for key in _OPTIONS if key in row}
    setup = Setup(
        row["model"], row["devices"], options, row.get("schedule"), row.get("microbatches", 0)
    )
    times = {key: float(row[key]) for key in _MEASURED[:4] if key in row}
    if "profile" in row:
        profile = load_profile(row["profile"])
        stage = profile.stages[len(profile.stages) // 2]
        ns = {"t_f_ms": stage.t_f_ns, "t_b_ms": stage.t_b_ns, "t_w_ms": stage.t_w_ns}
        ns["t_comm_ms"] = profile.t_comm_ns
        times |= {key: value / 1e6 for key, value in ns.items() if value}
    whole = {key: float(row[key]) for key in ("iteration_ms", "peak_gib") if key in row}
    if whole and not (setup.schedule and setup.microbatches):
        raise OptPipeError(f"{next(iter(whole))}: needs schedule and microbatches as well")
    made = op_times(setup, machine, times)
    if whole:
        replays = Replays(setup, machine)
        made += run(
            setup, machine, whole.get("iteration_ms"), whole.get("peak_gib"), replays=replays
        )
    if not made:
        raise OptPipeError(f"nothing measured: give some of {', '.join(_MEASURED)}")
    # bad options and impossible values are reported here, not in the middle of the fit
    for one in made:
        predicted, key = one.predict(machine.rates), one.label.rpartition(" ")[2]
        if one.kind == "time":
            require_op(key, one.value, predicted)
        elif one.kind == "iteration":
            profile = replays.trace(machine.rates).profile
            require_time(key, one.value * 1e6, predicted * 1e6, profile, setup.microbatches)
        elif one.kind == MEMORY:
            require_peak(key, one.value * _GIB, predicted * _GIB, machine)
    return made


def _label(setup: Setup) -> str:
    options = setup.options
    return (
        f"{setup.model} x{setup.devices} s={options.get('seq', 4096)}"
        f" b={options.get('microbatch', 1)}"
    )
