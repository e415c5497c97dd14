"""Machines by name or from a file; commented files to start from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ProfileError, hint_for
from ..execution import load_execution
from ..files import plain, read_mapping
from ..units import is_plain
from .data_files import data_file
from .machines import Drives, Machine, MachineError, Pcie, Rates

KINDS = ("machine", "model", "calibration")  # of templates
OFFLOAD_TO = ("host", "nvme")
T = TypeVar("T", Pcie, Drives)


def load_machine(source: str | os.PathLike[str] | Mapping[str, Any]) -> Machine:
    """Load a machine by name, from a YAML or JSON file, or from a mapping.

    A file has the fields of `Machine`, with `pcie`, `nvme` and `achieved` (the fields of `Rates`)
    as mappings; ``base: a100-80gb`` takes all missing keys from another machine.

    Raises:
        MachineError: one line with the machine or file, the key, and what would be right.
        OptPipeError: for a file that cannot be read.
    """
    if isinstance(source, Mapping):
        return _machine(dict(source), str(source.get("name", "machine")))
    text = str(source)
    if text.endswith((".json", ".yaml", ".yml")) or Path(text).is_file():
        data = plain(read_mapping(text, "a machine file"))
        try:
            return _machine(data, str(data.get("name", Path(text).stem)))
        except MachineError as error:
            raise MachineError(f"{text}: {error}") from None
    key = _ALIASES.get(text.lower(), text.lower())
    known = machine_names()
    if key not in known:
        hint = hint_for(text, [*known, *_ALIASES], 2)
        raise MachineError(f"machine {text!r}: no such name, and no such file; {hint}")
    return _builtin(key)


_ALIASES = {
    "a100": "a100-80gb",
    "a100-80gb-megatron": "a100-80gb",  # in files written when the data sheet's rates had a file of their own
    "h100": "h100-sxm",
    "h200": "h200-sxm",
    "b200": "b200-sxm",
    "4090": "rtx4090",
}


def machine_names() -> list[str]:
    """Return the names of the built-in machines."""
    return list(_names())


@cache
def _names() -> tuple[str, ...]:
    folder = files("optpipe_sim.costs") / "data" / "machines"
    return tuple(sorted(e.name[:-5] for e in folder.iterdir() if e.name.endswith(".yaml")))


@cache
def _builtin(name: str) -> Machine:
    return _machine(dict(data_file("machines", name)), name)


def _machine(data: dict[str, Any], name: str) -> Machine:
    base = data.pop("base", None)
    if base is not None:
        if not is_built_in(base):
            raise MachineError(
                f"machine {name}: base: no machine {base!r}; known are {', '.join(machine_names())}"
            )
        data = _over(_whole(_ALIASES.get(str(base), str(base))), data)
    data.pop("name", None)
    known = [e.name for e in fields(Machine) if e.name not in ("name", "rates")] + ["achieved"]
    _refuse_unknown(data, known, f"machine {name}", "")
    for entry in fields(Machine):
        missing = entry.default is MISSING and entry.default_factory is MISSING
        if missing and entry.name not in ("name", "rates", "title", *data):
            raise MachineError(f"machine {name}: {entry.name}: missing")
    if "achieved" not in data:
        raise MachineError(f"machine {name}: achieved: missing (gemm, attention, bandwidth)")
    peak = data["peak_tflops"]
    if not isinstance(peak, Mapping) or not peak:
        raise MachineError(
            f"machine {name}: peak_tflops: expected rates by dtype, as {{bf16: 312}}"
        )
    for key, value in peak.items():
        _positive(name, f"peak_tflops.{key}", value)
    for entry in fields(Machine):
        if entry.name in data and not (data[entry.name] is None and "None" in str(entry.type)):
            _check_kind(name, entry.name, str(entry.type), data[entry.name])
    if data.get("offload_to", "host") not in OFFLOAD_TO:
        raise MachineError(
            f"machine {name}: offload_to: expected {' or '.join(OFFLOAD_TO)}, got {data['offload_to']!r}"
        )
    try:
        load_execution(data.get("execution", "ideal"))
    except ProfileError as error:
        raise MachineError(f"machine {name}: {error}") from None
    pcie, nvme = data.pop("pcie", None), data.pop("nvme", None)
    made = {key: value for key, value in data.items() if key != "achieved"}
    made.setdefault("title", name)
    return Machine(
        **made,
        name=name,
        pcie=None if pcie is None else _section(Pcie, "pcie", pcie, name),
        nvme=None if nvme is None else _section(Drives, "nvme", nvme, name),
        rates=_rates(data["achieved"], name),
    )


def is_built_in(name: Any) -> bool:
    """Whether a built-in machine has this name."""
    return _ALIASES.get(str(name), str(name)) in machine_names()


def _whole(name: str) -> dict[str, Any]:
    """Return the data of a built-in machine, laid over that of its base."""
    data = dict(data_file("machines", name))
    base = data.pop("base", None)
    return data if base is None else _over(_whole(str(base)), data)


def _over(base: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` laid over `base`, mappings key by key."""
    merged = dict(base)
    for key, value in data.items():
        under = merged.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        merged[key] = _over(under, value) if both else value  # type: ignore[arg-type]
    fitted = base.get("fitted")
    if isinstance(fitted, Mapping) and "fitted" not in data:  # a rate given here is not fitted
        merged["fitted"] = {key: source for key, source in fitted.items() if key not in data}
    return merged


def _rates(data: Any, name: str) -> Rates:
    if not isinstance(data, Mapping):
        raise MachineError(f"machine {name}: achieved: expected a mapping, got {data!r}")
    known = [entry.name for entry in fields(Rates) if entry.name != "fitted"]
    _refuse_unknown(data, [*known, "fitted"], f"machine {name}", "achieved.")
    for key in ("gemm", "attention", "bandwidth"):
        if key not in data:
            raise MachineError(f"machine {name}: achieved.{key}: missing")
    for key, value in data.items():
        if key != "fitted" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise MachineError(f"machine {name}: achieved.{key}: expected a number, got {value!r}")
    try:
        return Rates(**data)
    except MachineError as error:
        raise MachineError(f"machine {name}: {error}") from None


def _section(kind: type[T], key: str, data: Any, name: str) -> T:
    """Return a part of a machine: `kind` with the fields in `data`."""
    if not isinstance(data, Mapping):
        raise MachineError(f"machine {name}: {key}: expected a mapping, got {data!r}")
    known = fields(kind)
    _refuse_unknown(data, [entry.name for entry in known], f"machine {name}", f"{key}.")
    for entry in known:
        if entry.default is MISSING and entry.name not in data:
            raise MachineError(f"machine {name}: {key}.{entry.name}: missing")
        if entry.name in data and not (data[entry.name] is None and "None" in str(entry.type)):
            _check_kind(name, f"{key}.{entry.name}", str(entry.type), data[entry.name])
    return kind(**data)


def _check_kind(name: str, key: str, kind: str, value: Any) -> None:
    """Refuse a value that is not of the kind its field is annotated with."""
    if kind.startswith(("int", "float")):
        _positive(name, key, value)
    if kind == "int" and not isinstance(value, int):
        raise MachineError(f"machine {name}: {key}: must be a whole number, got {value!r}")
    if kind == "bool" and not isinstance(value, bool):
        raise MachineError(f"machine {name}: {key}: expected true or false, got {value!r}")
    if kind == "str" and not (isinstance(value, str) and is_plain(value)):
        raise MachineError(f"machine {name}: {key}: expected a text on one line, got {value!r}")
    if kind.startswith("Mapping[str, str]") and not (
        isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values())
    ):
        raise MachineError(f"machine {name}: {key}: expected a mapping of texts, got {value!r}")


def _positive(name: str, key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise MachineError(f"machine {name}: {key}: must be a number above 0, got {value!r}")


def _refuse_unknown(data: Mapping[str, Any], known: list[str], where: str, prefix: str) -> None:
    for key in data:
        if key not in known:
            hint = hint_for(str(key), known)
            raise MachineError(f"{where}: {prefix}{key}: unknown key; {hint}")


def template(kind: str) -> str:
    """Return the text of a commented YAML file of that kind, which can be loaded unchanged."""
    return (files("optpipe_sim.costs") / "data" / "templates" / f"{kind}.yaml").read_text()
