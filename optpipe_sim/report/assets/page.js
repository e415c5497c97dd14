"use strict";
// The glue between the page and Bokeh's figures. Drawing, zooming, hovering and selecting are Bokeh's;
// all texts, boxes and numbers are made in Python (see report/page.py, which packs them).
const optpipe = (() => {
  const PIXELS = 0.27; // of a hundredth of a lane (report/layout.py)
  const PARTS = ["ops", "gaps", "arrows", "messages", "places", "inside", "causes", "names"];
  const charts = {}, plots = []; // figures of lanes by name; the views of all figures
  const chartsOf = (section) => Object.values(charts).filter((chart) => chart.section === section);

  // -- figures come to life when their part of the page is first opened
  async function unpacked(parent) {
    const { body } = await fetch(`data:;base64,${parent.querySelector(":scope > .data").textContent}`);
    return new Response(body.pipeThrough(new DecompressionStream("gzip"))).text();
  }
  async function draw(section) {
    const { docs, items, known } = JSON.parse(await unpacked(section));
    for (const view of (await Bokeh.embed.embed_items(docs, items))[0]) {
      const figure = view.model, { name: title, document: models } = figure;
      if (figure.type === "Figure") plots.push(view);
      if (!known[title]) continue;
      const chart = (charts[title] = { ...known[title], section, figure, shift: 0 });
      for (const part of PARTS) chart[part] = models.get_model_by_name(`${title}-${part}`);
      const renamed = () => [chart.names, chart.causes].forEach(({ view }) => view.filter.change.emit());
      const later = () => { clearTimeout(chart.later); chart.later = setTimeout(renamed, 60); };
      const { x_range, properties: { inner_width } } = figure;
      for (const each of [x_range, inner_width, chart.places]) each.change.connect(later);
      x_range.change.connect(() => chartsOf(section).forEach((other) => other !== chart && follow(chart, other)));
      layout(chart);
    }
    section.dataset.drawn = "yes";
  }
  function open(at) {
    const section = document.getElementById(`view-${at}`);
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
  function mark(chart, rows, text = "") {
    chart.ops.selected.indices = [...rows].sort((one, two) => one - two);
    chart.arrows.visible = rows.length > 0 && rows !== chart.changed; // those follow from one another
    chart.gaps.selected.indices = [];
    chart.section.querySelector(".note").textContent = text;
  }
  function chain({ ops }, row) { // from an op back through what each op waited for
    const found = [];
    for (; row >= 0; row = ops.data.by[row]) found.push(row);
    return found;
  }
  function why(chart, source, row, share) { // of an idle interval: `share` times its length is shown
    const { by, name, waited, from, to, idle, cause } = source.data, { ops, gaps, makespan } = chart;
    const found = chain(chart, source === ops ? row : by[row]);
    const way = `Marked: its chain of ${found.length} causes back to the start.`;
    if (source === ops) return mark(chart, found, `${name[row]} waited: ${waited[row]}. ${way}`);
    mark(chart, found, `Idle: ${idle[row]}. Cause: ${cause[row]}.`);
    gaps.selected.indices = [row];
    const room = Math.max(share * (to[row] - from[row]), makespan / 200);
    const start = Math.max(-0.02 * makespan, (from[row] + to[row] - room) / 2);
    chart.figure.x_range.setv({ start, end: Math.min(1.02 * makespan, start + room) });
  }
  function tapped(name, source) {
    const [row] = source.selected.indices;
    if (row === undefined) mark(charts[name], []);
    else why(charts[name], source, row, 3);
  }

  // -- two schedules on one axis
  function align([one, two], edge) {
    one.shift = edge === "end" ? two.makespan - one.makespan : 0; // of the other's times against its own
    two.shift = -one.shift;
    const start = Math.min(0, two.shift), end = start + Math.max(one.makespan, two.makespan);
    one.figure.x_range.setv({ reset_start: start, reset_end: end, start, end });
  }
  function follow({ figure: { x_range: own }, shift }, { figure: { x_range: its } }) {
    const start = own.start + shift, end = own.end + shift;
    if (Math.abs(its.start - start) + Math.abs(its.end - end) > 1e-6 * (end - start)) its.setv({ start, end });
  }

  // -- buttons: the first data attribute says what one does; of a group one is pressed at most
  const PRESS = {
    colours: () => theme(getComputedStyle(document.body).colorScheme === "dark" ? "light" : "dark"),
    open: ({ value }) => open(value),
    align: ({ value, shown }) => align(shown, value),
    mark: ({ value, on, shown }) => shown.forEach((chart) => mark(chart, on ? chart[value] : [])),
    messages: ({ on, shown }) => shown.forEach(({ messages }) => { messages.visible = on; }),
    unfold: ({ on, shown }) => shown.forEach((chart) => unfold(chart, () => on)),
    device: ({ value, shown }) => unfold(shown[0], (at, was) => was !== (at === Number(value))),
    gap: ({ value, shown: [chart] }) => {
      unfold(chart, (at, was) => was || at === chart.gaps.data.device[value]);
      why(chart, chart.gaps, Number(value), 8);
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
  const KEYS = { ArrowLeft: [-0.2, 1], ArrowRight: [0.2, 1], "+": [0, 0.6], "-": [0, 1 / 0.6] };
  document.addEventListener("keydown", (event) => {
    const above = (section) => section.getBoundingClientRect().top < innerHeight / 2;
    const shown = chartsOf([...document.querySelectorAll("section:not([hidden])")].findLast(above));
    if (!shown.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const { x_range } = shown[0].figure, { start, end } = x_range, [by, zoom] = KEYS[event.key] ?? [];
    const middle = (start + end) / 2 + by * (end - start), half = (zoom * (end - start)) / 2;
    if (event.key === "Escape") for (const chart of shown) mark(chart, []);
    else if (event.key === "0") x_range.reset();
    else if (zoom) x_range.setv({ start: middle - half, end: middle + half });
    else return;
    event.preventDefault();
  });

  // -- light, dark and paper: figures take their colours from page.css whenever they are drawn
  const repaint = () => { for (const plot of plots) plot.request_paint(); };
  function theme(name = "") { // that of the system, if it has no name
    document.documentElement.dataset.theme = name;
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
  return { charts, tapped, foldAt, open };
})();
