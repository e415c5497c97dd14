"""What clicks, keys and buttons do to a figure of lanes: callbacks and tools of Bokeh's, each with the figure's name
before its own, by which the buttons of the page and page.js find it.

Their scripts are what Bokeh has no models for: heights that add up, a chain of causes, names that fit.
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

from .layout import AROUND, PIXELS, TOP


class Parts(NamedTuple):
    """What the callbacks of a figure change.

    Attributes:
        places: where heights of `layout` are, now that some devices are folded. `shift`: what is added to
            the trace's times. `lanes`: the source of `Layout.shapes`, of which those that are selected
            are unfolded.
    """

    plot: Any
    ops: GlyphRenderer
    idle: Sequence[GlyphRenderer]
    arrows: GlyphRenderer
    messages: GlyphRenderer
    names: Sequence[GlyphRenderer]
    places: LinearInterpolator
    shift: Dodge
    lanes: ColumnDataSource


# the same sums as in `Layout.placed`
FOLD = f"""
const {{ unfolded, folded }} = lanes.data, open = lanes.selected.indices, knots = [], ticks = [], labels = new Map();
let top = {TOP};
for (const at of unfolded.keys()) {{
  const [label, ...own] = (open.includes(at) ? unfolded : folded)[at];
  knots.push(...own.slice(0, -1).map((knot) => top + knot));
  ticks.push(top + own[1] / 2);
  labels.set(ticks[at], label);
  top += own.at(-1);
}}
places.y = knots;
plot.left[0].major_label_overrides = labels;
plot.left[0].ticker.ticks = ticks;
plot.y_range.setv({{ start: top, end: 0 }});
plot.height = Math.round({PIXELS} * top) + {AROUND};
"""
# a device of the table, or the one whose label is next to a click on the axis
FOLD_ONE = """
const open = lanes.selected.indices, off = axis.ticker.ticks.map((tick) => Math.abs(tick - Math.abs(cb_obj.value)));
const one = Number(cb_data?.device ?? off.indexOf(Math.min(...off)));
lanes.selected.indices = open.includes(one) ? open.filter((at) => at !== one) : [...open, one];
"""
FOLD_ALL = "lanes.selected.indices = cb_data.on ? all : none"
# what is marked is Bokeh's selection, beside which all else fades
CLEAR = """
const view = document.getElementById(plot.name).closest(".view"), note = view.querySelector(".note");
note.textContent = "";
for (const each of view.querySelectorAll("[data-mark]")) each.ariaPressed = "false";
"""
MARK = f"""{CLEAR}
arrows.visible = drawn;
gaps.selected.indices = [];
ops.selected.indices = cb_data.on ? rows : [];
"""
# after a click, or of an idle interval of the table: an op marks what it waited for, back to the start
WHY = f"""{CLEAR}
const gap = cb_data?.gap ?? gaps.selected.indices[0], [op] = ops.selected.indices, found = [];
for (let at = gap === undefined ? op : gaps.data.by[gap]; at >= 0; at = ops.data.by[at]) found.push(at);
ops.selected.indices = found;
arrows.visible = true;
if (gap !== undefined) {{
  const {{ idle, cause, from, to, level }} = gaps.data;
  note.textContent = `Idle: ${{idle[gap]}}. Cause: ${{cause[gap]}}.`;
  gaps.selected.indices = [Number(gap)];
  times.setv({{ start: from[gap] + shift.value, end: to[gap] + shift.value }});
  const top = document.getElementById(plot.name).getBoundingClientRect().top;
  if (cb_data?.gap) scrollBy(0, top + {PIXELS} * places.compute(level[gap]) - innerHeight / 2);
}} else if (op !== undefined) {{
  const way = `its chain of ${{found.length}} causes back to the start`;
  note.textContent = `${{ops.data.name[op]}} waited: ${{ops.data.waited[op]}}. Marked: ${{way}}.`;
}}
"""
ALIGN = "shift.value = cb_data.on ? by : 0; axis.axis_label = labels[Number(cb_data.on)]"
SHOW = "messages.visible = cb_data.on"
NAMED = """
const { start, end, room } = source.data, from = times.start - shift.value, to = times.end - shift.value;
const pixels = plot.properties.inner_width.is_unset ? 0 : plot.inner_width / (to - from);
return Array.from(room, (most, at) => most * pixels > 1 && start[at] < to && end[at] > from);
"""
RENAME = """
clearTimeout(filters.later);
filters.later = setTimeout(() => filters.forEach((each) => each.change.emit()), 60);
"""


def named_view(plot: Any, shift: Dodge) -> CDSView:
    """The rows of a source that are in sight and have room for their names (``room``: ns per pixel)."""
    args = {"plot": plot, "times": plot.x_range, "shift": shift}
    return CDSView(filter=CustomJSFilter(code=NAMED, args=args))


def add_actions(parts: Parts, unfoldable: int, marks: dict[str, Sequence[int]]) -> None:
    """Tie the callbacks of a figure to its models, and add its tools.

    Args:
        unfoldable: how many of its lanes fold; the others come after them.
        marks: rows of ops that a switch marks, by the name of the switch.
    """
    plot, lanes, places, shift = parts.plot, parts.lanes, parts.places, parts.shift
    axis, times = plot.yaxis[0], plot.x_range
    ops, gaps = parts.ops.data_source, parts.idle[0].data_source

    def act(name: str, code: str, **args: Any) -> CustomJS:
        found = CustomJS(name=f"{plot.name}-{name}", code=code, args=args)
        plot.tags = [*plot.tags, found]  # which takes those along that nothing else knows of
        return found

    lanes.selected.js_on_change(
        "indices", act("layout", FOLD, plot=plot, lanes=lanes, places=places)
    )
    fold = act("fold", FOLD_ONE, lanes=lanes, axis=axis)
    plot.yaxis.js_on_event(AxisClick, fold)
    count = len(lanes.data["folded"])
    ends = {"all": [*range(count)], "none": [*range(unfoldable, count)]}
    act("unfold", FOLD_ALL, lanes=lanes, **ends)

    common = {"plot": plot, "ops": ops, "gaps": gaps, "arrows": parts.arrows}
    why = act("why", WHY, **common, times=times, shift=shift, places=places)
    plot.js_on_event(SelectionGeometry, why)
    for name, rows in marks.items():
        # ops that differ do not follow from one another
        act(name, MARK, **common, rows=rows, drawn=name == "critical")
    act("messages", SHOW, messages=parts.messages)

    filters = [renderer.view.filter for renderer in parts.names]
    rename = act("rename", RENAME, filters=filters)
    for model, attribute in ((times, "start"), (times, "end"), (plot, "inner_width")):
        model.js_on_change(attribute, rename)
    clear = act("clear", MARK, **common, rows=[], drawn=False)
    _tools(plot, TapTool(renderers=[parts.ops, *parts.idle], mode="replace"), clear)


def _tools(plot: Any, tap: TapTool, clear: CustomJS) -> None:
    """The tools of a figure; a key presses that whose name ends in it."""
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


def align(plot: Any, shift: Dodge, by_ns: int, says: str) -> None:
    """Let a switch end this trace with a longer one, `by_ns` later.

    Args:
        says: what its time axis says of that.
    """
    axis = plot.xaxis[0]
    args = {
        "shift": shift,
        "by": by_ns,
        "axis": axis,
        "labels": [axis.axis_label, f"{axis.axis_label}; {says}"],
    }
    found = CustomJS(name=f"{plot.name}-align", code=ALIGN, args=args)
    plot.tags = [*plot.tags, found]
