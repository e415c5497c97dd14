"""How the options of a command are grouped in its help, and which of them are for research: ``--help`` leaves these out,
``--help-all`` has them. Light, as `parser` is."""

from __future__ import annotations

from collections.abc import Iterable

RUN, VARY, SEARCH, OUTPUT = "your run", "what may vary", "search", "output"
GROUPS = (RUN, VARY, SEARCH, OUTPUT)

_OPTIONS = {
    RUN: "--model --machine --calibrate --gpus --devices --global-batch --seq -m --stages --pp --tp --cp --ep --etp --dp --zero"
    " --microbatch --layers --schedule --recompute --dtype --overlap --exchange --pairs --imbalance --capacity-factor --pad-to-capacity --context --no-flash --no-sequence-parallel"
    " --grad-reduce-in-bf16 --accumulate-grads-in-fp32 --weights-in-fp32 --loss-fusion --cuda-graphs --cuda-graph-modules --memory-limit --limits --measured-ms --measured-tokens-per-s --measured-gib --execution --lengths"
    " --device --profile --against --op --mode --fit --instance --bound --proof --by --how",
    VARY: "--family --treatments --per-stage --schedules --chunks --placement --slices --slice-by --levels --offload --offload-to"
    " --margin --noise",
    SEARCH: "--time-limit --gap --top --seed --objective --engine --workers --no-cache --solver --evaluations --warm-start --quantile"
    " --samples --force --lp",
    OUTPUT: "--json -q --save --save-profile --save-measurement --save-run --save-trace --report --gantt --chart --csv --figure --write --from --to"
    " --trace --log --write-model --solution --out --library --scripts --script",
}  # fmt: skip
_GROUP_OF = {name: group for group, names in _OPTIONS.items() for name in names.split()}
# what a run has in one command is what may vary in another
_ELSEWHERE = {
    "advise": {
        VARY: "--pp --tp --cp --ep --etp --dp --zero --microbatch --recompute",
    },
    "solve": {VARY: "--layers --pairs"},
    "frontier": {VARY: "--pairs"},
    "evaluate": {RUN: "--chunks --log"},
    "estimate": {RUN: "--chunks --placement --slices --slice-by"},
}
_RESEARCH = {
    "solve": "--engine --objective --solver --write-model --force --evaluations --warm-start --quantile --samples --workers --log",
    "frontier": "--engine --objective --workers --placement",
    "compare": "--objective",
    "simulate": "--engine --objective",
    "explain": "--objective",
    "report": "--objective",
    "advise": "--slice-by --no-flash --no-sequence-parallel --context --seed",
    "evaluate": "--no-flash --no-sequence-parallel --context --cuda-graphs",
    "estimate": "--slice-by --no-flash --no-sequence-parallel --context --cuda-graphs --offload",
}


def group_of(command: str, names: Iterable[str]) -> str | None:
    """Return the group of an option of a command, by any of its names; None: it is of none."""
    own = {
        name: group for group, text in _ELSEWHERE.get(command, {}).items() for name in text.split()
    }
    return next((found for name in names if (found := own.get(name) or _GROUP_OF.get(name))), None)


def is_research(command: str, names: Iterable[str]) -> bool:
    """Whether ``--help`` of a command leaves an option out."""
    return not set(names).isdisjoint(_RESEARCH.get(command, "").split())
