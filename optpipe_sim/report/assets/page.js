// All the JavaScript of a report: what neither HTML nor Bokeh does by itself. Callbacks of Bokeh's models
// (report/actions.py) hand these functions the models that they change; what is pressed finds models by name.
const named = (name) => Bokeh.documents.map((each) => each.get_model_by_name(name)).find(Boolean);

// -- the page: Bokeh's code and the figures are compressed; figures are drawn when their view is first open
async function unpacked(parent) {
  const { body } = await fetch(`data:;base64,${parent.querySelector(":scope > .data").textContent}`);
  return new Response(body.pipeThrough(new DecompressionStream("gzip"))).text();
}
const bokeh = unpacked(document.body).then(eval).then(prepare);
const draw = async (view) => (await bokeh, Bokeh.embed.embed_items(...JSON.parse(await unpacked(view))));
for (const view of document.querySelectorAll(".view"))
  if (view.open ?? true) draw(view); else view.addEventListener("toggle", () => draw(view), { once: true });
// columns of whole numbers come as steps (report/columns.py); a click may be held, and the next may come at once, as no
// tool answers to presses and double clicks; a finger scrolls the page up and down, which Bokeh keeps from it where it pans
function prepare() {
  const { Deserializer } = Bokeh.require("core/serialization/deserializer"), { UIGestures } = Bokeh.require("core/ui_gestures");
  Deserializer.register("steps", ({ steps }, _, sum = 0) => Float64Array.from(steps, (step) => (sum += step)));
  Object.assign(UIGestures, { press_threshold: 2 ** 31 - 1, doubletap_threshold: 0 });
  Bokeh.require("models/plots/plot_canvas").PlotView.prototype._update_touch_action = function () {
    this.canvas.touch_action.replace(".bk-events { touch-action: pan-y }");
  };
}
// a link to a view opens it, which newer browsers do by themselves
addEventListener("hashchange", () => (document.querySelector(location.hash).closest(".view").open = true));

// -- clicks and keys: a table is sorted, a switch sets properties of models, a button runs a callback
function sort(head) {
  const [body] = head.closest("table").tBodies, sign = head.ariaSort === "descending" ? 1 : -1;
  const value = ({ cells: { [head.cellIndex]: cell } }) => cell.dataset.value ?? cell.textContent;
  const order = (one, two) => sign * (value(one) - value(two) || value(one).localeCompare(value(two)));
  for (const each of head.parentElement.cells) each.ariaSort = null;
  head.ariaSort = sign < 0 ? "descending" : "ascending";
  body.append(...[...body.rows].sort(order));
}
addEventListener("click", ({ target }) => {
  const { run, at, set = "[]" } = target.dataset, head = target.closest("th");
  if (head) sort(head);
  if (run) named(run).execute(target, Number(at));
  for (const [name, key, ...values] of JSON.parse(set)) named(name)[key] = values[Number(target.checked)];
});
addEventListener("keydown", ({ key, ctrlKey, metaKey, altKey }) => {
  const answers = (each) => each.checkVisibility() && named(`${each.id}-${key}`);
  const figures = [...document.querySelectorAll(".lanes")].filter(answers);
  const figure = figures.findLast((each) => each.getBoundingClientRect().top < innerHeight / 2) ?? figures[0];
  if (figure && !ctrlKey && !metaKey && !altKey) named(`${figure.id}-${key}`).do.emit();
});
// on paper a picture that scales stands for each figure, which would be cut off
addEventListener("beforeprint", () => [...Bokeh.index].forEach((view) => view.el.after(view.export().canvas)));
addEventListener("afterprint", () => document.querySelectorAll("canvas").forEach((each) => each.remove()));

// -- lanes: what an op or an idle interval waited for, back to the start
function mark({ plot, ops, gaps, places, shift }, gap = -1, op = -1) {
  const { by, from, to, level, idle, cause } = gaps.data, { name, waited } = ops.data, chain = [];
  for (let at = by[gap] ?? op; at >= 0; at = ops.data.by[at]) chain.push(at);
  [gaps.selected.indices, ops.selected.indices] = [gap < 0 ? [] : [gap], chain];
  const way = `Marked: its chain of ${chain.length} causes back to the start.`;
  const why = gap < 0 ? `${name[op]} waited: ${waited[op]}. ${way}` : `Idle: ${idle[gap]}. Cause: ${cause[gap]}.`;
  document.getElementById(`${plot.name}-note`).textContent = gap < 0 && op < 0 ? "" : why;
  if (gap < 0) return;
  plot.x_range.setv({ start: from[gap] + shift.value, end: to[gap] + shift.value });
  for (const height of [level[gap], ops.data.level[chain[0]] ?? level[gap]]) show(plot, places.compute(height));
}
// the window is scrolled to a height of a figure that is out of sight
function show({ name, height, y_range }, place) {
  const y = document.getElementById(name).getBoundingClientRect().top + (height / y_range.start) * place;
  if (y < 0 || y > innerHeight) scrollBy(0, y - innerHeight / 2);
}
// lanes that are selected are unfolded; `Layout.placed` adds up the same steps
function toggle({ plot, lanes: { selected }, axis }, at) {
  selected.indices = [...new Set(selected.indices).symmetricDifference(new Set([at]))];
  show(plot, axis.ticker.ticks[at]);
}
function fold({ plot, lanes, places, axis, lane, full, small, levels, pixels, around }) {
  const open = lanes.selected.indices, steps = lane.map((at, knot) => (open.includes(at) ? full : small)[knot]);
  let [bottom] = places.y;
  places.y = [bottom, ...steps.map((step) => (step ? (bottom += step) : NaN))];
  axis.ticker.ticks = levels.map((level) => places.compute(level));
  plot.y_range.start = bottom;
  plot.height = Math.round(pixels * bottom) + around;
}
// names are drawn where they are in sight and have room
function inSight({ plot, shift }, { start, end, room }) {
  const from = plot.x_range.start - shift.value, to = plot.x_range.end - shift.value;
  const pixels = plot.properties.inner_width.is_unset ? 0 : plot.inner_width / (to - from);
  return Array.from(room, (most, at) => most * pixels > 1 && start[at] < to && end[at] > from);
}
