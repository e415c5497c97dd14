"""Write the picture of docs/report.md, of a report in Chromium: ``python picture.py docs/report.png``."""

from __future__ import annotations

import sys
import tempfile
from base64 import b64decode
from pathlib import Path

from browser import browser
from pages import LEVELS, replayed

from optpipe_sim import Report, load_profile
from optpipe_sim.ops import Op, OpKind

WIDTH, SCROLLBAR = 1300, 16


def write_picture(path: Path) -> None:
    """What a hover over one op says, from the switches down to the legend."""
    trace = replayed("adaoffload:recompute=selective", load_profile(LEVELS), 12)
    with tempfile.TemporaryDirectory() as folder, browser(WIDTH) as page:
        page.open(Report.of(trace).save(Path(folder) / "page.html"))
        _, stage, microbatch = trace.schedule.table[trace.schedule.table[:, 0] == OpKind.R][-1]
        page.run("document.querySelector('.bar').scrollIntoView()")  # all of it fits the window
        page.hover(*page.box("a", "ops", trace.schedule.row(Op(OpKind.B, stage, microbatch))))
        edge = "return scrollY + document.querySelector('{}').getBoundingClientRect().{}"
        top = page.run(edge.format(".bar", "top")) - 6
        height = page.run(edge.format(".legend", "bottom")) + 6 - top
        clip = {"x": 0, "y": top, "width": WIDTH - SCROLLBAR, "height": height, "scale": 1}
        shot = page.driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip})
        path.write_bytes(b64decode(shot["data"]))


if __name__ == "__main__":
    write_picture(Path(sys.argv[1]))
