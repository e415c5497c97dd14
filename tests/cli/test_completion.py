"""Completion scripts, asked as the shell asks them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from optpipe_sim.cli.parser import COMMANDS
from optpipe_sim.names import ENTRIES


@pytest.fixture
def complete(command_line):
    """What bash offers for a line whose last word (maybe empty) is to be completed."""
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    answer = command_line("completion bash")
    assert (answer.code, answer.err) == (0, "")
    Path("complete.bash").write_text(answer.out)
    Path("profile.yaml").write_text("")

    def offers(line: str) -> set[str]:
        words = line.split(" ")
        quoted = " ".join(f"'{word}'" for word in words)
        script = (
            f"source complete.bash; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1};"
            ' _optpipe_sim; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return set(filter(None, done.stdout.split("\n")))

    return offers


def test_commands_options_values_and_files(complete) -> None:
    assert complete("optpipe-sim ") == set(COMMANDS)
    assert complete("optpipe-sim so") == {"solve"}
    assert complete("optpipe-sim simulate --obj") == {"--objective"}
    assert complete("optpipe-sim simulate p.yaml --objective ") == {"flush", "span"}
    assert complete("optpipe-sim simulate p.yaml --schedule ") == set(ENTRIES)
    assert complete("optpipe-sim simulate p.yaml --schedule zb-") == {
        name for name in ENTRIES if name.startswith("zb-")
    }
    assert complete("optpipe-sim simulate p.yaml --objective prof") == set()  # no files there
    assert complete("optpipe-sim simulate prof") == {"profile.yaml"}
    assert complete("optpipe-sim solve x --warm-start prof") == {"profile.yaml"}
    assert complete("optpipe-sim completion f") == {"fish"}
    assert "--without-offloads" in complete("optpipe-sim export s.json --w")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_scripts(shell: str, command_line) -> None:
    script = command_line(f"completion {shell}").out
    assert all(command in script for command in COMMANDS)
    if shutil.which(shell):
        Path("script").write_text(script)
        subprocess.run([shell, "-n", "script"], check=True)
    assert command_line(f"completion {shell} --json").json["script"] == script
    assert "invalid choice: 'csh'" in command_line("completion csh").err
