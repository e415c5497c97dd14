"""Options that are written once: the command line, Python's signatures and docstrings have the same."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, dataclass

import pytest

from optpipe_sim import estimate, evaluate
from optpipe_sim.cli import main
from optpipe_sim.cli.parser import _parsers, parse
from optpipe_sim.costs.layout import Layout
from optpipe_sim.costs.work import Work
from optpipe_sim.option_fields import made_of, option, options_of, takes

PARSERS = _parsers()[1]
OF_A_RUN = {"devices", "dp", "placement", "slices", "slice_by"}  # evaluate has them not


@dataclass(frozen=True)
class Two:
    size: int = option(3, "how many, unless --fast, or as --other-tool has it")
    fast: bool = option(False, "whether it is quick")
    own: int = 7


@takes(Two, size=4)
def two(first: int, **options: object) -> tuple[int, Two]:
    """Return both.

    Args:
        first: one.
        options: the fields of `Two`,
            and more.

    Raises:
        ValueError: never.
    """
    return first, made_of(options, Two)[0]


def test_a_function_takes_the_fields_and_no_others() -> None:
    assert two(1) == (1, Two(4))
    assert two(1, size=5, fast=True) == (1, Two(5, fast=True))
    shown = inspect.signature(two).parameters
    assert [(name, one.default) for name, one in shown.items()] == [
        ("first", inspect.Parameter.empty),
        ("size", 4),
        ("fast", False),
    ]
    for name in ("own", "speed"):
        with pytest.raises(
            TypeError, match=rf"two\(\) got an unexpected keyword argument '{name}'"
        ):
            two(1, **{name: 1})


def test_one_of_several_may_be_chosen() -> None:
    @takes(Two, several=["size"], without=["fast"])
    def chosen(**options: object) -> dict[str, object]:
        return options

    (shown,) = inspect.signature(chosen).parameters.values()
    assert (shown.default, shown.annotation) == (None, "int | Sequence[int] | None")
    assert chosen(size=(1, 2)) == {"size": (1, 2)}
    with pytest.raises(TypeError, match="'fast'"):
        chosen(fast=True)


def test_a_docstring_says_what_each_means() -> None:
    assert (two.__doc__ or "").splitlines() == [
        "Return both.",
        "",
        "Args:",
        "    first: one.",
        "    size: how many, unless `fast`, or as --other-tool has it",
        "    fast: whether it is quick",
        "",
        "Raises:",
        "    ValueError: never.",
    ]


@pytest.mark.parametrize("name", [*options_of(Layout, Work)])
def test_an_option_of_a_run_is_everywhere(name: str) -> None:
    one = options_of(Layout, Work)[name]
    for command, function in (("estimate", estimate), ("evaluate", evaluate)):
        if command == "evaluate" and name in OF_A_RUN:
            continue
        action = next(each for each in PARSERS[command]._actions if each.dest == name)
        shown = inspect.signature(function).parameters[name]
        assert f"{name}:" in (function.__doc__ or "")
        if name == "zero" or one.default is MISSING or action.required:
            continue
        assert action.default == shown.default == one.default


def test_what_is_typed_is_what_the_cost_models_get() -> None:
    words = (
        "estimate --model m --machine h --devices 8 --tp 2 --no-flash --recompute mlp,core_attn --dtype BFloat16"
        " --overlap grad-reduce,tp-comm --pairs --layers 3,4 --zero 3"
    )
    layout, work = made_of(vars(parse(words.split())), Layout, Work)
    assert layout == Layout(8, 2, zero=3, layers=(3, 4))
    assert work == Work(
        flash=False,
        recompute="core_attn+mlp",
        overlap=("grad-reduce", "tp-comm"),
        pairs="combined",
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--layers 3,x", "argument --layers: expected whole numbers, as in 3,4,4,3, got '3,x'"),
        ("--recompute all", "argument --recompute: expected none, norms, full, or some of"),
        ("--tp 0", "argument --tp: must be a whole number of at least 1, got '0'"),
    ],
)
def test_a_wrong_value_is_refused_by_name(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"estimate --model qwen3-8b --machine h100 --devices 8 {words}"
    assert main(line.split()) == 2
    assert said in capsys.readouterr().err


def test_several_to_choose_from() -> None:
    words = "advise --model m --machine h --gpus 8 --global-batch 8 --seq 8 --zero 0,3 --tp 1,2"
    parsed = parse(words.split())
    assert (parsed.zero, parsed.tp, parsed.cp, parsed.slice_by) == ((0, 3), (1, 2), None, "time")
