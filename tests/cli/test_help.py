"""Help in groups: what a user needs first; what is for research behind ``--help-all``."""

from __future__ import annotations

import re

import pytest

from optpipe_sim.cli import main
from optpipe_sim.cli.options.groups import GROUPS, group_of, is_seldom
from optpipe_sim.cli.parser import COMMANDS, _parsers

PARSERS = _parsers()[1]


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def listed(text: str) -> list[str]:
    """The options that a help describes."""
    heads = re.findall(r"^  (-.*?)(?:  |$)", text, re.MULTILINE)
    return [name for head in heads for name in re.findall(r"(?<![\w-])--?[a-z][\w-]*", head)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_in_the_long_help_once(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = told(capsys, command, "--help-all")
    known = [name for action in PARSERS[command]._actions for name in action.option_strings]
    assert sorted(listed(text)) == sorted(known)
    assert "example:" in text


@pytest.mark.parametrize(
    "command", ["solve", "frontier", "compare", "simulate", "advise", "evaluate", "estimate"]
)
def test_help_is_in_groups_without_what_is_for_research(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = told(capsys, command, "--help")
    titles = [line[:-1] for line in text.splitlines() if line[:-1] in GROUPS and line.endswith(":")]
    assert titles == [group for group in GROUPS if group in titles]
    assert {"your run", "output"} <= set(titles)
    hidden = [a.option_strings[-1] for a in PARSERS[command]._actions if is_seldom(command, a)]
    assert hidden
    # descriptions may name them, as a default hangs on one
    assert not set(hidden) & set(listed(text))
    assert f"{len(hidden)} option" in text
    assert text.splitlines()[0].startswith(f"usage: optpipe-sim {command} [options] ")
    # of these commands every option has a group
    left = [
        a.option_strings
        for a in PARSERS[command]._actions
        if a.option_strings and group_of(command, a) is None
    ]
    assert left == [["-h", "--help"], ["--help-all"]]


def test_one_option_is_of_the_run_or_may_vary() -> None:
    def group(command: str, name: str) -> str | None:
        return group_of(command, PARSERS[command]._option_string_actions[name])

    for option in ("--pp", "--tp", "--microbatch"):
        assert group("evaluate", option) == "your run"
        assert group("advise", option) == "what may vary"
    assert group("solve", "--help") is None


def test_what_is_for_research_works_without_being_shown() -> None:
    parsed = PARSERS["solve"].parse_args(
        ["p.yaml", "-m", "8", "--engine", "search", "--evaluations", "5"]
    )
    assert (parsed.engine, parsed.evaluations) == ("search", 5)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_what_a_person_reads(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two screens at most, on a narrow terminal: the first sentence of each option; all of it is in the long help."""
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = told(capsys, command, "--help"), told(capsys, command, "--help-all")
    assert len(short.splitlines()) <= 75
    assert len(whole.splitlines()) >= len(short.splitlines())
    for action in PARSERS[command]._actions:
        if action.option_strings and not is_seldom(command, action) and action.dest[:4] != "help":
            assert action.option_strings[-1] in listed(short)


def test_a_default_stands_in_the_first_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    short = " ".join(told(capsys, "evaluate", "--help").split())
    assert "as in core_attn,mlp (none)" in short
    assert "activation functions" not in short
    assert "activation functions" in told(capsys, "evaluate", "--help-all")
