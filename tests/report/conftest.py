"""One Chromium for all pages of a session; one page that most tests look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, DRIVER, MISSING, Browser, browser
from pages import LEVELS, replayed

from optpipe_sim import Report, Trace, load_profile


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if not (CHROMIUM and DRIVER):
        pytest.skip(MISSING)
    with browser() as found:
        yield found


@pytest.fixture(scope="session")
def trace() -> Trace:
    """Offloading, recomputation inside backwards, messages and waits for memory."""
    return replayed("adaoffload:recompute=selective", load_profile(LEVELS), 12)


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Callable[[Report], float]:
    """Opens a report and returns how many seconds that took."""
    folder = tmp_path_factory.mktemp("pages")

    def show(report: Report) -> float:
        return chromium.open(report.save(folder / f"{abs(hash(report.html))}.html"))

    return show


@pytest.fixture(scope="session")
def opened(trace: Trace, shown: Any, chromium: Browser) -> str:
    shown(Report.of(trace))
    return str(chromium.driver.current_url)


@pytest.fixture
def page(opened: str, chromium: Browser) -> Iterator[Browser]:
    """The page of the trace, as it was opened."""
    if chromium.driver.current_url != opened:
        chromium.open(Path(opened.removeprefix("file://")))
    yield chromium
    for key in ("Escape", "0"):
        chromium.press(key)
    chromium.mouse("mouseMoved", 1, 1)
    assert chromium.messages() == []
