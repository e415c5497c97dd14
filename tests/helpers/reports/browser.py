"""A real headless Chromium that looks at pages from the disk, and what it has to say of them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
MISSING = "no chromium and chromedriver here (Debian: apt-get install chromium chromium-driver)"
READY_S = 180.0  # a loaded machine is slow; what is measured is asserted elsewhere


# whether every figure of an open view is drawn; of a page in a page too
READY = """
const { Bokeh } = window.frames[0] ?? window;
return !!Bokeh?.documents?.length && Bokeh.documents.every((each) => each.is_idle);
"""
# what a function finds in the figure called arguments[0], once it has stayed the same for some frames: input is
# handled before a frame, and figures are laid out and drawn later than their models change
_AT_REST = """
const done = [...arguments].at(-1), [name, ...values] = arguments;
const view = [...Bokeh.index].find((each) => each.model.name === name);
let last = "", same = 0;
const look = () => {
  const now = (%s)(view, ...values);
  same = String(now) === last && !view.is_paused ? same + 1 : 0;
  last = String(now);
  if (same < 5) requestAnimationFrame(look); else done(now);
};
look();
"""
# where a point is in the window; with the height of the figure, which places below depend on
_POINT = (
    _AT_REST
    % """
(view, x, y) => {
  const box = view.el.getBoundingClientRect(), { x_scale, y_scale } = view.frame;
  return [box.left + x_scale.compute(x), box.top + y_scale.compute(y), box.height];
}"""
)
_RANGE = _AT_REST % "({ model: { x_range } }) => [x_range.start, x_range.end]"
# the middle of a box of lanes
_BOX = """
const [name, part, row] = arguments, { data } = named(`${name}-${part}`);
const { start, end } = named(name).x_range, places = named(`${name}-places`);
const by = named(`${name}-shift`).value;
const middle = (Math.max(start, data.start[row] + by) + Math.min(end, data.end[row] + by)) / 2;
return [middle, places.compute((data.top[row] + data.bottom[row]) / 2)];
"""
_REACH = "const { start, end } = named(arguments[0]).x_range; return [start, end]"
_MARKED = "return Array.from(named(`${arguments[0]}-${arguments[1]}`).selected.indices)"
# the rows of the ops that a switch shows; none while it is off
_SHOWN = """
const group = named(arguments[0]).renderers.filter((each) => each.group?.name === arguments[1]);
const rows = group.filter((each) => each.visible).map((each) => each.view.filter.indices);
return Array.from(rows.find(Boolean) ?? []);
"""
# the texts of all hovers that are shown, row by row; Bokeh keeps them in shadow trees
_HOVERS = """
const found = [];
const walk = (node) => {
  if (node.classList?.contains("bk-Tooltip") && node.style.display !== "none") {
    const rows = [...node.shadowRoot.querySelectorAll(".bk-tooltip-row-value")];
    if (rows.length) found.push(rows.map((row) => row.innerText));
  }
  for (const child of [...(node.shadowRoot?.children ?? []), ...node.children]) walk(child);
};
walk(document.body);
return found;
"""


class Browser:
    """A page at a time; `messages` are the lines on its console."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path) -> float:
        """Open a page and wait until its first view is drawn; how many seconds that took."""
        from selenium.webdriver.support.ui import WebDriverWait

        self.messages()  # of the page before
        self.driver.get(path.resolve().as_uri())
        WebDriverWait(self.driver, READY_S, 0.05).until(lambda d: d.execute_script(READY))
        return self.settle()

    def settle(self) -> float:
        """Wait two frames, after which everything that was drawn is on the screen; the page's seconds."""
        return float(
            self.driver.execute_async_script(
                "const done = arguments[0];"
                "requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() / 1000)))"
            )
        )

    def worked(self) -> float:
        """For how many seconds the page has had a processor: its main thread, which does all that figures need."""
        metrics = self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "ThreadTime"))

    def messages(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def run(self, script: str, *values: Any) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *values)

    def wait(self, asked: str | Callable[[], Any]) -> Any:
        """What a script returns, or a function, once that is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        ask = (lambda: self.run(asked)) if isinstance(asked, str) else asked
        return WebDriverWait(self.driver, READY_S, 0.05).until(lambda _: ask())

    def reach(self, chart: str) -> tuple[float, float]:
        """What part of the time axis a chart shows."""
        start, end = self.run(_REACH, chart)
        return start, end

    def marked(self, chart: str, part: str = "ops") -> list[int]:
        """The rows of the ops that are marked in a chart, or of its ``gaps``."""
        return sorted(self.run(_MARKED, chart, part))

    def shown(self, chart: str, mark: str) -> list[int]:
        """The rows of the ops that a switch shows in a chart, ``critical`` or ``changed``."""
        return sorted(self.run(_SHOWN, chart, f"{chart}-{mark}"))

    def note(self, chart: str = "a") -> str:
        """The line that answers clicks on a chart."""
        return str(
            self.run("return document.getElementById(arguments[0]).textContent", f"{chart}-note")
        )

    def click(self, selector: str) -> None:
        from selenium.webdriver.common.by import By

        element = self.driver.find_element(By.CSS_SELECTOR, selector)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A mouse event at a place of the window, as the browser gets it from a hand."""
        event = {"type": kind, "x": x, "y": y, **more}
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)

    def tap(self, x: float, y: float, held_ms: int = 20) -> None:
        """A click."""
        gesture = {"x": x, "y": y, "duration": held_ms, "gestureSourceType": "mouse"}
        self.driver.execute_cdp_cmd("Input.synthesizeTapGesture", gesture)

    def box(self, chart: str, part: str, row: int) -> tuple[float, float]:
        """Where the middle of a box of a chart is in the window, scrolled there: the `row`-th of its
        ``ops`` or ``gaps``."""
        self.run("document.getElementById(arguments[0]).scrollIntoView({block: 'nearest'})", chart)
        return self.point(chart, *self.run(_BOX, chart, part, row))

    def lane(self, chart: str, time_ns: float, height: float) -> tuple[float, float]:
        """Where a time and a height (see `report.lane_layout`) of a chart are in the window."""
        y = self.run("return named(`${arguments[0]}-places`).compute(arguments[1])", chart, height)  # fmt: skip
        return self.point(chart, time_ns, y)

    def point(self, figure: str, x: float, y: float) -> tuple[float, float]:
        """Where a point of a figure is in the window, in which it has come to rest."""
        left, top, _ = self.driver.execute_async_script(_POINT, figure, x, y)
        return left, top

    def at_rest(self, chart: str) -> tuple[float, float]:
        """What part of the time axis a chart shows, once that stands still: a drag, a wheel and a pinch take
        several frames."""
        start, end = self.driver.execute_async_script(_RANGE, chart)
        return start, end

    def press(self, key: str) -> None:
        event = "new KeyboardEvent('keydown', {key: arguments[0], bubbles: true})"
        self.run(f"document.dispatchEvent({event})", key)

    def hover(self, x: float, y: float) -> list[list[str]]:
        """The rows of the hovers that appear at a place of the window."""
        self.mouse("mouseMoved", 1, 1)
        self.wait(f"return (() => {{{_HOVERS}}})().length === 0")
        self.mouse("mouseMoved", x - 1, y)
        self.mouse("mouseMoved", x, y)
        found: list[list[str]] = self.wait(
            f"const all = (() => {{{_HOVERS}}})(); return all.length ? all : null"
        )
        return found

    def drag(self, x: float, y: float, by: float) -> None:
        """A drag to the right, in three steps."""
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, button="left", clickCount=1)
        for step in (1, 2, 3):
            self.mouse("mouseMoved", x + by * step / 3, y, button="left", buttons=1)
        self.mouse("mouseReleased", x + by, y, button="left", clickCount=1)

    def swipe(self, x: float, y: float, by: tuple[float, float]) -> None:
        """A finger that moves to the right and down, in eight steps."""
        touch, points = "Input.dispatchTouchEvent", [{"x": x, "y": y}]
        self.driver.execute_cdp_cmd(touch, {"type": "touchStart", "touchPoints": points})
        for step in range(1, 9):
            points = [{"x": x + by[0] * step / 8, "y": y + by[1] * step / 8}]
            self.driver.execute_cdp_cmd(touch, {"type": "touchMove", "touchPoints": points})
        self.driver.execute_cdp_cmd(touch, {"type": "touchEnd", "touchPoints": []})

    def media(self, **features: str) -> None:
        """Colour scheme and the like, as the system of a user would set them."""
        named = [{"name": f"prefers-{key}", "value": value} for key, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": named})

    def picture(self, path: Path) -> None:
        self.driver.save_screenshot(str(path))


@contextmanager
def browser(width: int = 1400, height: int = 1000) -> Iterator[Browser]:
    """Start Chromium and end it; its profile is a folder of its own."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory() as profile:
        for flag in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            "--force-prefers-reduced-motion",  # places are read once nothing scrolls
            f"--window-size={width},{height}",
            f"--user-data-dir={profile}",
        ):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        try:
            driver.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
            yield Browser(driver)
        finally:
            driver.quit()
