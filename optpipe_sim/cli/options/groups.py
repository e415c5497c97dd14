"""How the options of a command are grouped in its help, and which of them are seldom needed: ``--help``
leaves these out, ``--help-all`` has them. Light, as `parser` is."""

from __future__ import annotations

import argparse

RUN, VARY, SEARCH, OUTPUT = "your run", "what may vary", "search", "output"
GROUPS = (RUN, VARY, SEARCH, OUTPUT)

# of the options that are no fields, which say their group themselves (`fields.add_fields`)
_OPTIONS = {
    RUN: "--model --machine --calibrate --gpus --devices --global-batch --seq -m --stages --pp --microbatch"
    " --layers --schedule --recompute --dtype --capacity-factor --pad-to-capacity --memory-limit --limits --measured-ms"
    " --measured-tokens-per-s --measured-gib --execution --lengths --encoder --device --profile --against --op --mode --fit"
    " --instance --bound --proof --by --how --forward-only",
    VARY: "--family --treatments --per-stage --schedules --chunks --placement --slices --levels --offload --offload-to"
    " --margin --noise --pairs --nearest --without-offloads --without-recomputation",
    SEARCH: "--time-limit --gap --top --seed --objective --engine --workers --no-cache --solver --evaluations"
    " --warm-start --quantile --samples --force --lp",
    OUTPUT: "--json -q --from --to --solution --out --library --scripts --format",
}
_GROUP_OF = {name: group for group, names in _OPTIONS.items() for name in names.split()}
# what a run has in one command is what may vary in another
_ELSEWHERE = {
    "advise": {VARY: "--pp --recompute"},
    "solve": {VARY: "--layers"},
    "evaluate": {RUN: "--log"},
    "import": {RUN: "--from"},
    "export": {OUTPUT: "--force", VARY: "--offload-modules"},
}
_SELDOM = {
    "solve": "--engine --objective --solver --write-model --force --evaluations --warm-start --quantile --samples"
    " --workers --log --placement --noise --margin --from --to --trace --seed",
    "frontier": "--engine --objective --workers --placement --seed",
    "compare": "--objective",
    "simulate": "--engine --objective",
    "evaluate": "--capacity-factor --pad-to-capacity --offload-to --etp",
    "confirm": "--stretch --time-tolerance --memory-tolerance --gradient-tolerance --memory-fraction --deterministic"
    " --kineto --sweeps --seed",
    "explain": "--objective",
    "report": "--objective",
    "advise": "--seed --capacity-factor --pad-to-capacity --offload-to --etp --slices --csv --chart --per-stage",
    "estimate": "--offload --capacity-factor --pad-to-capacity --offload-to --etp --lengths --encoder",
}


def group_of(command: str, action: argparse.Action) -> str | None:
    """Return the group of an option of a command; None: it is of none."""
    own = {
        name: group for group, text in _ELSEWHERE.get(command, {}).items() for name in text.split()
    }
    known = (own.get(name) or _GROUP_OF.get(name) for name in action.option_strings)
    return getattr(action, "group", None) or next(filter(None, known), None)


def is_seldom(command: str, action: argparse.Action) -> bool:
    """Whether ``--help`` of a command leaves an option out."""
    named = not set(action.option_strings).isdisjoint(_SELDOM.get(command, "").split())
    return named or getattr(action, "seldom", False)
