"""Refuse measured times and sizes that cannot be: their unit is probably another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import OptPipeError
from ..profile import CostProfile
from ..units import format_size, format_time
from .machines import Machine
from .provenance import mfu

FAR = 100  # times the prediction; the worst of all compared runs is off by less than 2
_NEAR = 5  # times the prediction: what a number in its right unit is within
_TIMES = (1e-6, 1e-3, 60, 1e3, 6e4, 1e6, 1e9)  # seconds for ms, minutes for s, ...
_SIZES = (2.0**-30, 2.0**-20, 2.0**-10, 2.0**10, 2.0**20, 2.0**30)


def require_time(
    name: str,
    measured_ns: float,
    predicted_ns: float,
    profile: CostProfile,
    microbatches: int,
) -> None:
    """Refuse a measured iteration with more FLOPs than the devices can do, and one a hundred times as
    long as predicted.

    Raises:
        OptPipeError: names the argument, and the time that was probably meant.
    """
    share = mfu(profile, measured_ns, microbatches, causal=True)
    if share > 1:
        why = f"an MFU of {share:,.0%}"
    elif measured_ns > FAR * predicted_ns:
        why = f"{measured_ns / predicted_ns:,.0f} times the {format_time(predicted_ns)} predicted"
    else:
        return
    likely = _likely(measured_ns, predicted_ns, _TIMES, format_time)
    likely = likely or "; are machine, GPUs and batch those of the run?"
    raise OptPipeError(f"{name}: {format_time(measured_ns)} per iteration is {why}{likely}")


def require_tokens(name: str, tokens_per_s: float, slower: float, gpus: int) -> None:
    """Refuse tokens per second that are most likely those of one GPU of several.

    Args:
        slower: the predicted rate over this one.

    Raises:
        OptPipeError: names the argument, and the rate that was probably meant.
    """
    if slower > _NEAR / 2 and 0.5 < slower / gpus < 2:
        raise OptPipeError(
            f"{name}: {tokens_per_s:,.0f} over all GPUs is {slower:,.0f} times less than predicted; did you mean"
            f" {tokens_per_s * gpus:,.0f}, {gpus} GPUs of that each?"
        )


def require_op(name: str, measured_ms: float, predicted_ms: float) -> None:
    """Refuse a measured op a hundred times as long as predicted, or a hundredth of it.

    Raises:
        OptPipeError: names the key, and the time that was probably meant.
    """
    if predicted_ms and not 1 / FAR < measured_ms / predicted_ms < FAR:
        likely = _likely(measured_ms * 1e6, predicted_ms * 1e6, _TIMES, format_time)
        raise OptPipeError(
            f"{name}: {format_time(measured_ms * 1e6)}, where {format_time(predicted_ms * 1e6)} is predicted{likely}"
        )


def require_peak(
    name: str, measured_bytes: float, predicted_bytes: float, machine: Machine
) -> None:
    """Refuse a measured peak above the memory of a device, and one of a hundredth of what is predicted.

    Raises:
        OptPipeError: names the argument, and the size that was probably meant.
    """
    whole = machine.memory_gib * 2**30
    if measured_bytes > whole:
        why = f"more than the {format_size(round(whole))} of one {machine.name}"
    elif measured_bytes * FAR < predicted_bytes:
        why = f"not a hundredth of the {format_size(round(predicted_bytes))} predicted"
    else:
        return
    likely = _likely(
        measured_bytes, min(predicted_bytes, whole), _SIZES, lambda size: format_size(round(size))
    )
    raise OptPipeError(f"{name}: {format_size(round(measured_bytes))} is {why}{likely}")


def _likely(
    value: float, predicted: float, factors: Sequence[float], form: Callable[[float], str]
) -> str:
    """Return the question whether another unit was meant: the one that comes nearest to the prediction."""

    def off(one: float) -> float:
        return max(one / predicted, predicted / one)

    best = min((value * factor for factor in factors), key=off)
    return f"; did you mean {form(best)}?" if off(best) < _NEAR else ""
