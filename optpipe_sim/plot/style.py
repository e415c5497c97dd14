"""The style of all figures; how they are made and written.

No pyplot: figures are plain objects with a canvas of their own, so that drawing changes no global
state and works in threads and without a display.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from ..errors import OptPipeError
from ..files import write_bytes
from ..ops import BW, B, C, F, O, OpKind, R, W

# Distinct with every common colour blindness (a test simulates them): a Lab distance of at least 16.
COLOURS: dict[OpKind, str] = {
    F: "#3F7FBF",
    B: "#F0A830",
    W: "#4DB38A",
    BW: "#D9622B",
    C: "#7A4B1E",
    O: "#C77CB0",
    R: "#5E2D79",
}
KIND_NAMES: dict[OpKind, str] = {
    F: "forward",
    B: "backward, input",
    W: "backward, weight",
    BW: "backward",
    C: "recomputation",
    O: "offload",
    R: "reload",
}
IDLE, IDLE_COPY = "#F0F0F0", "#F7F7F7"
INK, MUTED, LIMIT = "#222222", "#6B6B6B", "#C1121F"
STATIC = "#D5D5D5"
LIGHTEST = 0.6  # how far the last chunk's shade goes towards white

FORMATS = (".png", ".svg", ".pdf")
# for signs that DejaVu lacks, if one of them is installed
FALLBACKS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "Hiragino Sans",
    "Arial Unicode MS",
)
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: figures look alike everywhere
    "text.parse_math": False,  # a name may have a dollar sign
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.edgecolor": "#9A9A9A",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": "#9A9A9A",
    "ytick.color": "#9A9A9A",
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,  # whole fonts, so that texts stay texts
    "svg.fonttype": "path",  # looks the same without the font installed
    "svg.hashsalt": "optpipe_sim",  # the same figure is the same file
    "savefig.dpi": 160,
    "figure.dpi": 100,
}


@contextmanager
def styled() -> Iterator[None]:
    """Apply our matplotlib settings while a figure is drawn or written.

    A sign that no installed font has is drawn as a box, without warnings.
    """
    settings = {**STYLE, "font.family": [STYLE["font.family"], *_fallbacks()]}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        yield


@cache
def _fallbacks() -> tuple[str, ...]:
    installed = set(font_manager.get_font_names())
    return tuple(name for name in FALLBACKS if name in installed)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty white figure of so many inches, with a canvas of its own."""
    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def shade(kind: OpKind, chunk: int, chunks: int) -> str:
    """Return the colour of an op: that of its kind, lighter for later chunks of the device."""
    towards_white = 0.0 if chunks < 2 else LIGHTEST * chunk / max(chunks - 1, 2)
    red, green, blue = (part + (1 - part) * towards_white for part in to_rgb(COLOURS[kind]))
    return to_hex((red, green, blue))


def text_colour(background: str) -> str:
    """Black or white, whichever reads better on `background`."""
    red, green, blue = to_rgb(background)
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else INK


def figure_of(drawn: Figure | Axes) -> Figure:
    """Return a figure, or that of an axis."""
    figure = drawn if isinstance(drawn, Figure) else drawn.get_figure(root=True)
    assert figure is not None
    return figure


def save(drawn: Figure | Axes, path: str | os.PathLike[str]) -> Path:
    """Write a figure, or that of an axis, as PNG, SVG or PDF by the name's ending, whole or not at all.

    Raises:
        OptPipeError: for another ending, or a path that cannot be written.
    """
    ending = Path(path).suffix.lower()
    if ending not in FORMATS:
        raise OptPipeError(
            f"{path}: a figure's name ends in {', '.join(FORMATS)}, not in {ending or 'nothing'}"
        )
    stream = io.BytesIO()
    # without dates the same figure gives the same bytes
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(ending)
    with styled():
        figure_of(drawn).savefig(stream, format=ending[1:], metadata=undated)
    return write_bytes(path, stream.getvalue())
