"use strict";
// The glue between the page and Bokeh's figures: where boxes lie, what a hover says, what a click
// marks. All drawing, zooming and hovering is Bokeh's. `data` is what report/page.py wrote.
const optpipe = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const charts = {}; // by the figure's name
  for (const item of data.views.flatMap((view) => view.charts)) charts[item.name] = { ...item };

  // -- where boxes lie -------------------------------------------------------------------------
  // [top, bottom] of each row of report/columns.py, in units: what is forward stands at the top of its
  // lane and what is backward at the bottom, so that they differ without colours as well.
  const UNIT = 27; // pixels
  const rows = ([f, b, w, bw, c, inside, all], copies, memory, height) => ({
    of: [f, b, w, bw, c, ...copies, inside, all, ...copies, memory], height,
  });
  const lane = (h) => [[0, 0.84 * h], [0.16 * h, h], [0.4 * h, h], [0.16 * h, h], [0.3 * h, 0.7 * h], [0.88 * h, h], [0, h]];
  const OPEN = rows(lane(1), [[1.08, 1.32], [1.38, 1.62]], [1.72, 2.62], 2.9);
  const PLAIN = rows(lane(1), [[0, 0], [0, 0]], [1.12, 2.02], 2.3); // nothing is offloaded
  const FOLDED = rows(lane(0.56), [[0, 0], [0, 0]], [0, 0], 0.66);
  const rowsOf = (chart, device) => (chart.open[device] ? (chart.copies ? OPEN : PLAIN) : FOLDED);

  function stack(chart) {
    chart.open ??= Array.from({ length: chart.devices }, (_, device) => !chart.folded || device === chart.fullest);
    let y = 0.1;
    chart.tops = chart.open.map((_, device) => { const top = y; y += rowsOf(chart, device).height; return top; });
    chart.total = y;
  }
  Object.values(charts).forEach(stack);

  function place(name, places, edge) {
    const chart = charts[name];
    return Float64Array.from(places, (at) => {
      const [top, bottom] = rowsOf(chart, at >> 4).of[at & 15];
      return chart.tops[at >> 4] + top + edge * (bottom - top);
    });
  }
  function height(name, device, bytes, hides = false) {
    const chart = charts[name];
    if (hides && !chart.open[device]) return new Float64Array(bytes.length).fill(NaN);
    const [top, bottom] = rowsOf(chart, device).of[11];
    return Float64Array.from(bytes, (size) => chart.tops[device] + bottom - ((bottom - top) * size) / chart.scale);
  }
  const shifted = (name, times) => Float64Array.from(times, (ns) => ns + (charts[name].shift ?? 0));
  function layout(chart) {
    stack(chart);
    const { figure } = chart;
    figure.y_range.setv({ start: chart.total, end: 0 });
    figure.height = Math.round(chart.total * UNIT) + 85;
    const ticks = chart.tops.map((top, device) => top + rowsOf(chart, device).of[8][1] / 2);
    const axis = figure.left[0];
    axis.major_label_overrides = new Map(ticks.map((y, device) => [y, `${chart.open[device] ? "▾" : "▸"} ${device}`]));
    axis.ticker.ticks = ticks;
    for (const source of chart.sources) source.change.emit();
    relabel(chart);
  }

  // -- what is said -----------------------------------------------------------------------------
  const scaled = (value, units, digits = 4) => { // lengths as the tables have them, instants more exactly
    const [unit, size] = units.find(([, size]) => Math.abs(value) >= size) ?? units.at(-1);
    return `${Number((value / size).toPrecision(digits))} ${unit}`;
  };
  const time = (ns, digits) => scaled(ns, [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]], digits);
  const instant = (ns) => time(ns, 6);
  const bytes = (n) => scaled(n, [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]]);
  const ops = (chart) => chart.ops.data;
  const device = (chart, row) => ops(chart).place[row] >> 4;
  const kind = (chart, row) => chart.kinds[ops(chart).place[row] & 15];
  const op = (chart, row) => `${kind(chart, row)}${ops(chart).stage[row]}.${ops(chart).microbatch[row]}`;
  const where = (chart, row) => `${op(chart, row)} (device ${device(chart, row)})`;
  const span = (table, row) => `${instant(table.start[row])} to ${instant(table.end[row])}`;

  const BECAUSE = { // of `reasons`; what the op waited for is `by`
    start: () => "nothing keeps it from the start",
    stream: (by) => `the compute stream, busy with ${by}`,
    sending: (by) => `the device to send the message of ${by}`,
    input: (by) => `${by}`, neighbour: (by) => `${by}`,
    communication: (by) => `the message of ${by}`,
    reload: (by) => `its activation, back with ${by}`,
    memory: (by) => `memory, freed at the end of ${by}`,
    anchor: (by) => `the start of ${by}, before which a reload is not granted`,
    engine: (by) => `the copy engine, busy with ${by}`, link: (by) => `the host link, busy with ${by}`,
  };
  function waited(chart, row) {
    const { by, reason, idle, slack } = ops(chart);
    const behind = BECAUSE[chart.reasons[reason[row]]](by[row] < 0 ? "" : where(chart, by[row]));
    const late = slack[row] ? `; then ${time(slack[row])} for no reason the profile knows` : "";
    return `${idle[row] ? `${time(idle[row])} idle, ` : ""}${by[row] < 0 ? "" : "for "}${behind}${late}`;
  }
  function life(chart, row) { // of the op's activation: kept, offloaded, recomputed, released
    const { stage, microbatch, start, end } = ops(chart);
    const find = (name) => chart.rowOf[(chart.kinds.indexOf(name) * chart.stages + stage[row]) * chart.microbatches + microbatch[row]];
    const level = chart.levels[stage[row] * chart.microbatches + microbatch[row]] ?? 0;
    const [f, o, r, c, b, w, bw] = ["F", "O", "R", "C", "B", "W", "BW"].map(find);
    const back = b >= 0 ? b : bw;
    return { held: `${instant(start[f])} to ${instant(end[back])}${w >= 0 ? `, what W needs to ${instant(end[w])}` : ""}`,
      offloaded: o < 0 ? "no" : `${span(ops(chart), o)}, back ${span(ops(chart), r)}`,
      recomputed: !level ? "no" : `${chart.levelNames[level - 1]}, ${c >= 0 ? span(ops(chart), c) : "inside its backward"}` };
  }
  const gapOp = (chart, at) => (at < 0 ? "the end" : op(chart, at));
  const SAY = {
    op: (chart, row) => `${op(chart, row)}: stage ${ops(chart).stage[row]} (chunk ${chart.chunkOf[ops(chart).stage[row]]}), microbatch ${ops(chart).microbatch[row]}, device ${device(chart, row)}`,
    time: (chart, row) => `${span(ops(chart), row)}, ${time(ops(chart).end[row] - ops(chart).start[row])}`,
    waited,
    activation: (chart, row) => life(chart, row).held, offloaded: (chart, row) => life(chart, row).offloaded, recomputed: (chart, row) => life(chart, row).recomputed,
    bytes: (chart, row) => { const [plus, minus] = chart.sizes[ops(chart).size[row]]; return `+${bytes(plus)} at its start, −${bytes(minus)} at its end`; },
    idle: (chart, row) => { const gaps = chart.gaps.data; return `device ${gaps.place[row] >> 4}, ${span(gaps, row)}, ${time(gaps.end[row] - gaps.start[row])}`; },
    cause: (chart, row) => {
      const { cause, op: next, by } = chart.gaps.data;
      return `${chart.causes[cause[row]]}: ${gapOp(chart, next[row])} comes after${by[row] < 0 ? "" : `, it waits for ${where(chart, by[row])}`}`;
    },
    held: (chart, at, vars) => {
      const held = chart.memory[at].data, late = held.time.findLastIndex((ns) => ns <= vars.x);
      return `${bytes(held.bytes[Math.max(0, late)])} at ${instant(vars.x)}`;
    },
    of: (chart, at) => `device ${at}, ${chart.limits ? `limit ${bytes(chart.limits[at])}` : "no limit"}, peak ${bytes(chart.memory[at].data.bytes.reduce((a, b) => Math.max(a, b), 0))}`,
  };
  const tell = (name, part, value, vars) => SAY[part](charts[name], value, vars);
  const note = (chart, text) => { chart.view.querySelector(".note").textContent = text; };

  // -- what is marked -----------------------------------------------------------------------------
  function way(chart, row) { // from an op back through what each op waited for
    const found = [];
    for (; row >= 0; row = ops(chart).by[row]) found.push(row);
    return found;
  }
  function mark(chart, found, connected = true) { // Bokeh fades what is not selected
    const { start, end, place } = ops(chart);
    const steps = connected ? found.slice(1).map((by, at) => [by, found[at]]) : [];
    const leaves = ([by, to]) => Math.min(end[by], start[to]); // a reload's anchor: its start
    chart.way.data = {
      x0: steps.map(leaves), x1: steps.map(([, to]) => start[to]),
      from: steps.map(([by]) => place[by]), to: steps.map(([, to]) => place[to]),
    };
    chart.ops.selected.indices = [...found].sort((a, b) => a - b);
    chart.view.dataset.marked = found.length;
  }
  function clear(chart) { mark(chart, []); chart.gaps.selected.indices = []; note(chart, ""); }
  function show(chart, from, to, share = 8) {
    const room = Math.max(share * (to - from), chart.makespan / 200, 1), middle = (from + to) / 2;
    const start = Math.max(-0.02 * chart.makespan, middle - room / 2);
    chart.figure.x_range.setv({ start, end: Math.min(1.02 * chart.makespan, start + room) });
  }
  function whyOp(chart, row) {
    const found = way(chart, row);
    mark(chart, found);
    note(chart, `${op(chart, row)} waited: ${waited(chart, row)}. Marked: its chain of ${found.length} causes back to the start.`);
  }
  function whyIdle(chart, row, zoom = 8) {
    const gaps = chart.gaps.data, by = gaps.by[row];
    if (by >= 0) mark(chart, way(chart, by)); else mark(chart, []);
    chart.gaps.selected.indices = [row];
    const from = by < 0 ? gaps.start[row] : Math.min(gaps.start[row], ops(chart).start[by]);
    show(chart, from, Math.max(gaps.end[row], by < 0 ? 0 : ops(chart).end[by]), zoom);
    note(chart, `Idle: ${SAY.idle(chart, row)}. Cause: ${SAY.cause(chart, row)}.`);
  }
  function tapped(name, source) {
    const chart = charts[name], at = source.selected.indices[0];
    if (at === undefined) clear(chart);
    else if (source === chart.ops) whyOp(chart, at);
    else if (source === chart.gaps) whyIdle(chart, at, 3);
  }
  function relabel(chart) { // names in boxes that have room for them, where few are in sight
    const { start, end } = chart.figure.x_range, pixels = (chart.figure.inner_width || 1000) / (end - start);
    const found = { x: [], place: [], text: [], colour: [] };
    const put = (table, row, text, colour) => {
      const left = Math.max(table.start[row], start), right = Math.min(table.end[row], end);
      if ((right - left) * pixels < 6.2 * text.length + 3) return;
      found.x.push((left + right) / 2); found.place.push(table.place[row]); found.text.push(text); found.colour.push(colour);
    };
    for (const [table, name, colour] of [
      [ops(chart), (row) => op(chart, row), (row) => chart.inks[ops(chart).look[row]]],
      [chart.gaps.data, (row) => chart.causes[chart.gaps.data.cause[row]], () => "#777"],
    ]) {
      for (let row = 0; row < table.start.length && found.x.length < 1500; row++) {
        if (table.end[row] > start && table.start[row] < end && chart.open[table.place[row] >> 4] && [5, 6].every((at) => (table.place[row] & 15) !== at)) put(table, row, name(row), colour(row));
      }
    }
    chart.labels.data = found;
  }

  // -- figures come to life when their view is first opened --------------------------------------------
  const dark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  function paint(figure) {
    const [ink, line] = dark() ? ["#D8DEE6", "#5A6572"] : ["#222222", "#9A9A9A"];
    for (const axis of [...figure.left, ...figure.below]) {
      axis.setv({ major_label_text_color: ink, axis_label_text_color: ink, axis_line_color: line, major_tick_line_color: line, minor_tick_line_color: null });
    }
    for (const legend of figure.center.filter((each) => "label_text_color" in each)) legend.setv({ label_text_color: ink, title_text_color: ink });
    for (const grid of figure.center.filter((each) => "grid_line_color" in each)) grid.setv({ grid_line_color: grid.dimension ? null : line });
  }
  const repaint = () => data.views.flatMap((view) => view.figures ?? []).forEach(paint);

  async function draw(view, section) {
    for (const item of view.items) {
      const manager = await Bokeh.embed.embed_item(item);
      const [plot] = manager, figure = plot.model, chart = charts[figure.name];
      (view.figures ??= []).push(figure);
      (view.plots ??= []).push([plot, document.getElementById(item.target_id)]);
      paint(figure);
      if (!chart) continue;
      const found = (part) => figure.document.get_model_by_name(`${figure.name}-${part}`);
      const memory = figure.renderers.map((each) => each.data_source).filter((source) => source.name === `${figure.name}-memory`);
      Object.assign(chart, { figure, plot, view: section, element: document.getElementById(item.target_id), memory, ops: found("ops"), gaps: found("gaps"), way: found("way"), labels: found("labels"), messages: found("messages-lines") });
      chart.sources = [...new Set(figure.renderers.map((each) => each.data_source))];
      chart.rowOf = new Int32Array(chart.kinds.length * chart.stages * chart.microbatches).fill(-1);
      const { place, stage, microbatch } = ops(chart);
      place.forEach((at, row) => { chart.rowOf[((at & 15) * chart.stages + stage[row]) * chart.microbatches + microbatch[row]] = row; });
      layout(chart);
      let waiting;
      const later = () => { clearTimeout(waiting); waiting = setTimeout(() => relabel(chart), 60); };
      figure.x_range.change.connect(later);
      figure.properties.inner_width.change.connect(later);
      chart.ops.selected.properties.indices.change.connect(() => { if (!chart.ops.selected.indices.length && chart.way.data.x0.length) clear(chart); });
    }
    view.drawn = view.charts.map((each) => charts[each.name]);
    align(view, "start");
    section.dataset.drawn = "yes";
  }
  function open(at) {
    const view = data.views[at], section = document.getElementById(`view-${at}`);
    section.hidden = false;
    view.drawing ??= draw(view, section);
    return section;
  }

  // -- two schedules on one axis ------------------------------------------------------------------------
  function align(view, edge) {
    if (view.drawn.length < 2) return;
    const [one, two] = view.drawn, shift = edge === "end" ? two.makespan - one.makespan : 0;
    const longest = Math.max(one.makespan, two.makespan);
    const couple = (from, to, by) => () => {
      const { start, end } = from.figure.x_range, range = to.figure.x_range;
      if (Math.abs(range.start - start - by) + Math.abs(range.end - end - by) > 1e-6 * (end - start)) range.setv({ start: start + by, end: end + by });
    };
    [one.shift, two.shift] = [-shift, shift];
    for (const chart of view.drawn) {
      chart.figure.x_range.bounds = null;
      for (const source of chart.sources) if (source.name === `${chart.name}-other`) source.change.emit();
    }
    view.couples?.forEach(([range, slot]) => range.change.disconnect(slot));
    view.couples = [[one.figure.x_range, couple(one, two, shift)], [two.figure.x_range, couple(two, one, -shift)]];
    for (const [range, slot] of view.couples) range.change.connect(slot);
    one.figure.x_range.setv({ start: Math.min(0, -shift), end: Math.min(0, -shift) + longest });
    view.couples[0][1]();
  }

  // -- buttons, tables, keys ------------------------------------------------------------------------------
  const pressed = (button, on) => button.setAttribute("aria-pressed", on);
  const ACTIONS = {
    critical: (chart, on) => (on ? mark(chart, chart.critical) : clear(chart)),
    changed: (chart, on) => (on ? mark(chart, chart.changed, false) : clear(chart)),
    messages: (chart, on) => { chart.messages.visible = on; },
    unfold: (chart, on) => { chart.open.fill(on); layout(chart); },
  };
  function fold(chart, at) { chart.open[at] = !chart.open[at]; layout(chart); }
  function foldAt(name, y) { // a click on the axis; counted from its top, of whatever sign
    const chart = charts[name], at = chart.tops.findLastIndex((top) => top <= Math.abs(y));
    if (at >= 0) fold(chart, at);
  }
  function press(button, view) {
    const { action, edge, chart: name, gap, device: lane, open: at } = button.dataset;
    if (at !== undefined) open(at).scrollIntoView();
    else if (edge) {
      align(view, edge);
      button.parentElement.querySelectorAll("[data-edge]").forEach((each) => pressed(each, each === button));
    } else if (action) {
      const on = button.getAttribute("aria-pressed") !== "true";
      pressed(button, on);
      for (const other of ["critical", "changed"]) if (on && action !== other && action in { critical: 1, changed: 1 }) button.parentElement.querySelectorAll(`[data-action=${other}]`).forEach((each) => pressed(each, false));
      view.drawn.forEach((chart) => ACTIONS[action](chart, on));
    } else if (gap !== undefined || lane !== undefined) {
      const chart = charts[name];
      const row = Number(gap ?? lane);
      if (gap !== undefined) { if (!chart.open[chart.gaps.data.place[row] >> 4]) fold(chart, chart.gaps.data.place[row] >> 4); whyIdle(chart, row); }
      else fold(chart, row);
      chart.element.scrollIntoView({ block: "nearest" });
    }
  }
  function sort(head) {
    const at = [...head.parentElement.children].indexOf(head), body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") !== "descending";
    for (const each of head.parentElement.children) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => { const cell = row.children[at]; return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value); };
    const order = (a, b) => (typeof value(a) === "number" ? value(a) - value(b) : value(a).localeCompare(value(b)));
    body.append(...[...body.rows].sort((a, b) => (down ? order(b, a) : order(a, b))));
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button"), head = event.target.closest("th[data-sort]");
    if (head) sort(head);
    if (!button) return;
    if (button.id === "theme") { document.documentElement.dataset.theme = dark() ? "light" : "dark"; repaint(); return; }
    const section = button.closest("section.view");
    press(button, section && data.views[section.dataset.view]);
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
    const near = [...document.querySelectorAll("section.view:not([hidden])")].findLast((each) => each.getBoundingClientRect().top < innerHeight / 2);
    const charts = near ? data.views[near.dataset.view].drawn ?? [] : [], chart = charts[0];
    if (!chart) return;
    const range = chart.figure.x_range, length = range.end - range.start, middle = (range.start + range.end) / 2;
    const pan = (share) => range.setv({ start: range.start + share * length, end: range.end + share * length });
    const zoom = (by) => range.setv({ start: middle - (by * length) / 2, end: middle + (by * length) / 2 });
    const keys = { ArrowLeft: () => pan(-0.2), a: () => pan(-0.2), ArrowRight: () => pan(0.2), d: () => pan(0.2), "+": () => zoom(0.6), w: () => zoom(0.6), "-": () => zoom(1 / 0.6), s: () => zoom(1 / 0.6), 0: () => range.setv({ start: 0, end: chart.makespan }), Escape: () => charts.forEach(clear) };
    const chosen = keys[event.key];
    if (chosen) { chosen(); event.preventDefault(); }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  const onPaper = (yes) => () => {
    if (yes) document.documentElement.dataset.theme = "light";
    repaint();
    document.querySelectorAll("canvas.paper").forEach((each) => each.remove());
    for (const [plot, place] of yes ? data.views.flatMap((view) => view.plots ?? []) : []) {
      const paper = plot.export().canvas; // a picture that scales, in the place of the figure
      paper.classList.add("paper");
      place.append(paper);
    }
  };
  addEventListener("beforeprint", onPaper(true));
  addEventListener("afterprint", onPaper(false));
  Bokeh.logger?.set_level("warn");
  return { place, height, shifted, tell, tapped, foldAt, open, charts, begin: () => { for (let at = 0; at < data.opened; at++) open(at); } };
})();
optpipe.begin();
