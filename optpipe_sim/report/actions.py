"""Callbacks and tools of Bokeh: what clicks, keys and buttons do to a figure of lanes.

The name of a callback that buttons and keys run begins with its figure's. What Bokeh has no models for (heights that
add up, a chain of causes, names that fit) is in functions of assets/page.js.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bokeh.events import AxisClick, SelectionGeometry
from bokeh.models import (
    BoxZoomTool,
    CDSView,
    ClickPanTool,
    ColumnDataSource,
    CustomAction,
    CustomJS,
    CustomJSFilter,
    Dodge,
    LinearInterpolator,
    PanTool,
    SaveTool,
    TapTool,
    WheelZoomTool,
    ZoomInTool,
    ZoomOutTool,
)
from bokeh.models.renderers import GlyphRenderer

from .lane_layout import AROUND, PIXELS, LaneLayout

LABEL = 30  # of the height of a label, above its middle


class Parts(NamedTuple):
    """What the callbacks of a figure change.

    Attributes:
        places: where heights of `layout` are, now that some devices are folded. `shift`: what is added to
            the trace's times. `lanes`: the source of their labels, of which those that are selected are
            unfolded.
    """

    plot: Any
    ops: GlyphRenderer
    idle: Sequence[GlyphRenderer]
    names: Sequence[GlyphRenderer]
    places: LinearInterpolator
    shift: Dodge
    lanes: ColumnDataSource
    layout: LaneLayout


def call(function: str, *values: str, name: str | None = None, **models: Any) -> CustomJS:
    """Return a callback that calls a function of page.js with `models` by name, then values of the
    callback's own."""
    return CustomJS(name=name, args=models, code=f"return {_call(function, *values, **models)}")


def _call(function: str, *values: str, **models: Any) -> str:
    named = f"{{ {', '.join(models)} }}"
    return f"{function}({', '.join([named, *values])})"


def named_view(plot: Any, shift: Dodge) -> CDSView:
    """Return the rows of a source that are in sight and large enough for their names (``room``: ns per pixel)."""
    models = {"plot": plot, "shift": shift}
    return CDSView(
        filter=CustomJSFilter(
            code=f"return {_call('inSight', 'source.data', **models)}", args=models
        )
    )


def add_actions(parts: Parts) -> None:
    """Tie the callbacks of a figure to its models, and add its tools."""
    plot, lanes, layout, places = parts.plot, parts.lanes, parts.layout, parts.places
    axis, times = plot.yaxis[0], plot.x_range
    shape: dict[str, Any] = {
        "lane": layout.steps.lane.tolist(),
        "full": layout.steps.full,
        "small": layout.steps.small,
    }
    shape |= {"levels": layout.levels, "pixels": PIXELS, "around": AROUND}
    fold = call("fold", plot=plot, lanes=lanes, places=places, axis=axis, **shape)
    lanes.selected.js_on_change("indices", fold)
    clicked = f"axis.ticker.ticks.findLastIndex((tick) => tick - {LABEL} < Math.abs(cb_obj.value))"
    toggle = {"plot": plot, "lanes": lanes, "axis": axis}
    plot.yaxis.js_on_event(AxisClick, call("toggle", clicked, **toggle))

    models = {"plot": plot, "ops": parts.ops.data_source, "gaps": parts.idle[0].data_source}
    models |= {"places": places, "shift": parts.shift}
    chosen = [f"{source}.selected.indices[0]" for source in ("gaps", "ops")]
    plot.js_on_event(SelectionGeometry, call("mark", *chosen, **models))
    # which the tables' buttons run
    plot.tags = [
        call("toggle", "cb_data", name=f"{plot.name}-toggle", **toggle),
        call("mark", "cb_data", name=f"{plot.name}-mark", **models),
    ]
    names = [renderer.view.filter for renderer in parts.names]
    rename = CustomJS(code="names.forEach((each) => each.change.emit())", args={"names": names})
    for model, attribute in ((times, "start"), (times, "end"), (plot, "inner_width")):
        model.js_on_change(attribute, rename)
    tap = TapTool(renderers=[parts.ops, *parts.idle], mode="replace")
    _tools(plot, tap, call("mark", **models))


def _tools(plot: Any, tap: TapTool, clear: CustomJS) -> None:
    """Add the tools of a figure; a key activates the tool whose name ends in it."""
    wheel = WheelZoomTool(dimensions="width", modifiers={"ctrl": True})
    pan = PanTool(dimensions="width")
    whole = CustomJS(code="times.reset()", args={"times": plot.x_range})  # marks stay
    keys = {
        "ArrowLeft": ClickPanTool(direction="left", factor=0.2, visible=False),
        "ArrowRight": ClickPanTool(direction="right", factor=0.2, visible=False),
        "+": ZoomInTool(dimensions="width", factor=0.4),
        "-": ZoomOutTool(dimensions="width", factor=0.4, maintain_focus=False),
        "0": CustomAction(icon="reset", description="All of the time", callback=whole),
        "Escape": CustomAction(icon="clear_selection", description="Clear marks", callback=clear),
    }
    for key, tool in keys.items():
        tool.name = f"{plot.name}-{key}"
    plot.add_tools(
        pan,
        wheel,
        BoxZoomTool(dimensions="width"),
        tap,
        *keys.values(),
        SaveTool(filename=plot.name),
    )
    plot.toolbar.active_scroll, plot.toolbar.active_drag = wheel, pan
    plot.toolbar.logo = None
