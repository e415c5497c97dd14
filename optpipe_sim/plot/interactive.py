"""A slider over figures, for notebooks; without a kernel it leaves one of the figures."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..errors import OptPipeError
from .style import figure_of, styled


def slider(
    draw: Callable[[str], Figure | Axes], choices: Sequence[str], start: str, label: str
) -> None:
    """Display a slider, and below it the figure of its current choice.

    A page without a kernel (a saved notebook, an exported one) shows the figure of `start`.

    Args:
        draw: makes the figure of a choice; called once for each choice that is shown.
        choices: what the slider steps through, as it shows them. `start`: the first choice shown.
        label: the text before the slider.

    Raises:
        OptPipeError: where `start` is no choice, or ipywidgets is not installed.
    """
    if start not in choices:
        raise OptPipeError(f"slider: start must be one of {', '.join(choices)}, got {start!r}")
    try:
        from IPython.display import display
        from ipywidgets import Image, Layout, SelectionSlider, VBox
    except ImportError:
        raise OptPipeError(
            "sliders need ipywidgets: pip install 'optpipe-sim[notebooks]'"
        ) from None

    @cache
    def picture(choice: str) -> bytes:
        return _png(draw(choice))

    image = Image(value=picture(start), format="png", layout=Layout(max_width="100%"))
    control = SelectionSlider(
        options=list(choices),
        value=start,
        description=label,
        continuous_update=False,
        style={"description_width": "initial"},
        layout=Layout(width="32em"),
    )

    def moved(change: dict[str, str]) -> None:
        image.value = picture(change["new"])

    control.observe(moved, names="value")
    # One output in several formats: a front end shows the richest that it supports.
    forms = {
        **VBox([control, image])._repr_mimebundle_(),
        "image/png": b64encode(picture(start)).decode(),
        "text/plain": f"{label} {start} (run the notebook to move the slider)",
    }
    display(forms, raw=True)  # type: ignore[no-untyped-call]


def _png(drawn: Figure | Axes) -> bytes:
    stream = io.BytesIO()
    with styled():
        figure_of(drawn).savefig(stream, format="png", dpi=100)
    return stream.getvalue()
