"use strict";
// The glue between the page and Bokeh's figures. Drawing, zooming, hovering and selecting are Bokeh's;
// all texts, boxes and numbers are made in Python (see report/page.py, which packs them).
const optpipe = (() => {
  const PIXELS = 0.27; // of a hundredth of a lane (report/layout.py)
  const PARTS = ["ops", "gaps", "arrows", "messages", "places", "inside", "ops-names", "gaps-names"];
  const charts = {}, plots = []; // figures of lanes by name; the views of all figures
  const chartsOf = (section) => Object.values(charts).filter((chart) => chart.section === section);

  // -- figures come to life when their part of the page is first opened
  async function unpacked(parent) {
    const packed = parent.querySelector(":scope > .data").textContent;
    const bytes = Uint8Array.from(atob(packed), (sign) => sign.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }
  async function draw(section) {
    const { docs, items, known } = JSON.parse(await unpacked(section));
    for (const view of (await Bokeh.embed.embed_items(docs, items))[0]) {
      const figure = view.model, { name: title, document: models } = figure;
      if (figure.type === "Figure") plots.push(view);
      if (!known[title]) continue;
      const chart = (charts[title] = { ...known[title], section, figure });
      for (const part of PARTS) chart[part] = models.get_model_by_name(`${title}-${part}`);
      const name = () => { for (const part of PARTS.slice(-2)) chart[part].change.emit(); };
      const later = () => { clearTimeout(chart.later); chart.later = setTimeout(name, 60); };
      const { x_range, properties: { inner_width } } = figure;
      for (const each of [x_range, inner_width, chart.places]) each.change.connect(later);
      layout(chart);
    }
    const [one, two] = chartsOf(section);
    for (const pair of two ? [[one, two], [two, one]] : []) {
      pair[0].figure.x_range.change.connect(() => follow(...pair));
    }
    section.dataset.drawn = "yes";
  }
  function open(section) {
    if (section.dataset.drawn === undefined) draw(section);
    section.dataset.drawn ??= "soon";
    section.hidden = false;
    section.scrollIntoView();
  }

  // -- lanes: boxes lie as if all devices were unfolded; interpolation moves them to where they are
  function layout({ figure, lanes, open, places, inside }) {
    const ticks = [], now = [], axis = figure.left[0];
    let top = 10;
    lanes.forEach(({ unfolded, folded }, at) => {
      const knots = open[at] ? unfolded : folded;
      now.push(...knots.slice(0, -1).map((knot) => [top + knot, open[at] ? top + knot : NaN]));
      ticks.push(top + knots[1] / 2);
      top += knots.at(-1);
    });
    [places.y, inside.y] = [0, 1].map((which) => now.map((pair) => pair[which]));
    figure.y_range.setv({ start: top, end: 0 });
    figure.height = Math.round(top * PIXELS) + 85;
    const label = ({ name, folded }, at) => (folded ? `${open[at] ? "▾" : "▸"} ${name}` : name);
    axis.major_label_overrides = new Map(lanes.map((lane, at) => [ticks[at], label(lane, at)]));
    axis.ticker.ticks = ticks;
  }
  function unfold(chart, which) { // which(lane, whether it is unfolded): whether it is to be
    chart.open = chart.open.map((was, at) => !chart.lanes[at].folded || which(at, was));
    layout(chart);
  }
  function foldAt(name, y) { // a click on the axis: the label next to it
    const off = charts[name].figure.left[0].ticker.ticks.map((tick) => Math.abs(tick - Math.abs(y)));
    unfold(charts[name], (at, was) => was !== (off[at] === Math.min(...off)));
  }

  // -- what is marked; Bokeh fades what is not selected
  function mark(chart, rows, text, arrows = true) {
    chart.ops.selected.indices = [...rows].sort((one, two) => one - two);
    chart.arrows.visible = arrows && rows.length > 0;
    chart.gaps.selected.indices = [];
    chart.section.querySelector(".note").textContent = text;
  }
  function chain({ ops }, row) { // from an op back through what each op waited for
    const found = [];
    for (; row >= 0; row = ops.data.by[row]) found.push(row);
    return found;
  }
  function whyOp(chart, row) {
    const found = chain(chart, row), { name, waited } = chart.ops.data;
    const way = `Marked: its chain of ${found.length} causes back to the start.`;
    mark(chart, found, `${name[row]} waited: ${waited[row]}. ${way}`);
  }
  function whyIdle(chart, row, share) { // and go there
    const { by, from, to, idle, cause } = chart.gaps.data, { makespan, figure } = chart;
    mark(chart, chain(chart, by[row]), `Idle: ${idle[row]}. Cause: ${cause[row]}.`);
    chart.gaps.selected.indices = [row];
    const room = Math.max(share * (to[row] - from[row]), makespan / 200);
    const start = Math.max(-0.02 * makespan, (from[row] + to[row] - room) / 2);
    figure.x_range.setv({ start, end: Math.min(1.02 * makespan, start + room) });
  }
  function tapped(name, source) {
    const chart = charts[name], [row] = source.selected.indices;
    if (row === undefined) mark(chart, [], "");
    else if (source === chart.ops) whyOp(chart, row);
    else whyIdle(chart, row, 3);
  }

  // -- two schedules on one axis
  function align([one, two], edge) {
    one.shift = edge === "end" ? two.makespan - one.makespan : 0;
    two.shift = -one.shift;
    const start = Math.min(0, two.shift), end = start + Math.max(one.makespan, two.makespan);
    one.figure.x_range.setv({ reset_start: start, reset_end: end, start, end });
    follow(one, two);
  }
  function follow({ figure, shift = 0 }, other) {
    const { x_range } = figure, its = other.figure.x_range;
    const start = x_range.start + shift, end = x_range.end + shift;
    const off = Math.abs(its.start - start) + Math.abs(its.end - end);
    if (off > 1e-6 * (end - start)) its.setv({ start, end });
  }

  // -- buttons: the first data attribute says what one does; of a group one is pressed at most
  const PRESS = {
    colours: () => theme(getComputedStyle(document.body).colorScheme === "dark" ? "light" : "dark"),
    open: ({ value }) => open(document.getElementById(`view-${value}`)),
    align: ({ value, shown }) => align(shown, value),
    critical: ({ on, shown }) => shown.forEach((chart) => mark(chart, on ? chart.critical : [], "")),
    changed: ({ on, shown }) => shown.forEach((chart) => mark(chart, on ? chart.changed : [], "", false)),
    messages: ({ on, shown }) => shown.forEach(({ messages }) => { messages.visible = on; }),
    unfold: ({ on, shown }) => shown.forEach((chart) => unfold(chart, () => on)),
    device: ({ value, shown }) => unfold(shown[0], (at, was) => was !== (at === Number(value))),
    gap: ({ value, shown: [chart] }) => {
      unfold(chart, (at, was) => was || at === chart.gaps.data.device[value]);
      whyIdle(chart, Number(value), 8);
    },
  };
  function press(button) {
    const [[action, value]] = Object.entries(button.dataset), { chart, group } = button.dataset;
    const section = button.closest("section"), on = button.ariaPressed !== "true" || group === "edge";
    for (const each of group ? section.querySelectorAll(`[data-group=${group}]`) : []) {
      each.ariaPressed = "false";
    }
    if (button.ariaPressed) button.ariaPressed = String(on);
    PRESS[action]({ value, on, shown: chart ? [charts[chart]] : chartsOf(section) });
    if (chart) document.getElementById(chart).scrollIntoView({ block: "nearest" });
  }
  function sort(head) {
    const at = head.cellIndex, body = head.closest("table").tBodies[0];
    const value = (row) => row.cells[at].dataset.value ?? row.cells[at].textContent;
    const order = (one, two) => value(one) - value(two) || value(one).localeCompare(value(two));
    const rows = [...body.rows].sort(order), down = head.ariaSort !== "descending";
    for (const each of head.parentElement.cells) each.ariaSort = null;
    head.ariaSort = down ? "descending" : "ascending";
    body.append(...(down ? rows.reverse() : rows));
  }
  document.addEventListener("click", ({ target }) => {
    const button = target.closest("button"), head = target.closest("th");
    if (button) press(button);
    else if (head) sort(head);
  });

  // -- keys: [pan, zoom] in the figures that one looks at
  const LEFT = [-0.2, 1], RIGHT = [0.2, 1], IN = [0, 0.6], OUT = [0, 1 / 0.6];
  const KEYS = { ArrowLeft: LEFT, ArrowRight: RIGHT, a: LEFT, d: RIGHT, "+": IN, "-": OUT, w: IN, s: OUT };
  document.addEventListener("keydown", (event) => {
    const above = (section) => section.getBoundingClientRect().top < innerHeight / 2;
    const shown = chartsOf([...document.querySelectorAll("section:not([hidden])")].findLast(above));
    if (!shown.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const { x_range } = shown[0].figure, { start, end } = x_range, [by, zoom] = KEYS[event.key] ?? [];
    const middle = (start + end) / 2 + by * (end - start), half = (zoom * (end - start)) / 2;
    if (event.key === "Escape") for (const chart of shown) mark(chart, [], "");
    else if (event.key === "0") x_range.reset();
    else if (zoom) x_range.setv({ start: middle - half, end: middle + half });
    else return;
    event.preventDefault();
  });

  // -- light, dark and paper: figures take their colours from page.css whenever they are drawn
  const repaint = () => { for (const plot of plots) plot.request_paint(); };
  function theme(name) {
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
    repaint();
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  let before; // the theme of the screen, while light pictures that scale stand for the figures
  addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    theme("light");
    for (const plot of plots) plot.el.after(plot.export().canvas);
  });
  addEventListener("afterprint", () => {
    document.querySelectorAll(".lanes > canvas").forEach((each) => each.remove());
    theme(before);
  });

  (async () => {
    const code = document.createElement("script");
    code.textContent = await unpacked(document.body);
    document.head.append(code);
    Bokeh.logger.set_level("warn");
    document.querySelectorAll("section:not([hidden])").forEach(draw);
  })();
  return { charts, tapped, foldAt, open: (at) => open(document.getElementById(`view-${at}`)) };
})();
