"use strict";
// What neither HTML nor Bokeh does by itself: unpack the page, press its buttons and keys, sort its tables.
// What a button or a key does is a callback or a tool of Bokeh's that has its name (report/actions.py).
const optpipe = (() => {
  const named = (name) => Bokeh.documents.map((each) => each.get_model_by_name(name)).find(Boolean);
  async function unpacked(parent) {
    const { body } = await fetch(`data:;base64,${parent.querySelector(":scope > .data").textContent}`);
    return new Response(body.pipeThrough(new DecompressionStream("gzip"))).text();
  }
  const bokeh = unpacked(document.body).then((textContent) => {
    document.head.append(Object.assign(document.createElement("script"), { textContent }));
  });

  // -- figures are drawn when their part of the page is first open
  async function draw(view) {
    if (!view.matches(".view") || view.dataset.drawn || view.open === false) return;
    view.dataset.drawn = "soon";
    const { docs, items } = JSON.parse(await unpacked(view));
    await bokeh;
    await Bokeh.embed.embed_items(docs, items);
    view.dataset.drawn = "yes";
  }
  document.querySelectorAll(".view").forEach(draw);
  document.addEventListener("toggle", ({ target }) => draw(target), true);

  async function press(button) {
    const { run, to, ...data } = button.dataset, on = button.ariaPressed !== "true";
    const place = document.getElementById(to);
    for (const name of run?.split(" ") ?? []) await named(name).execute(button, { ...data, on });
    if (button.ariaPressed) button.ariaPressed = String(on);
    if (place?.matches("details")) place.open = true;
    place?.scrollIntoView({ block: place.open ? "start" : "nearest" });
  }
  function sort(head) {
    const body = head.closest("table").tBodies[0], down = head.ariaSort !== "descending";
    const value = ({ cells: { [head.cellIndex]: cell } }) => cell.dataset.value ?? cell.textContent;
    const order = (one, two) => value(one) - value(two) || value(one).localeCompare(value(two));
    for (const each of head.parentElement.cells) each.ariaSort = null;
    head.ariaSort = down ? "descending" : "ascending";
    body.append(...[...body.rows].sort((one, two) => (down ? order(two, one) : order(one, two))));
  }
  document.addEventListener("click", ({ target }) => {
    const pressed = target.closest("button, th");
    if (pressed) (pressed.matches("th") ? sort : press)(pressed);
  });
  document.addEventListener("keydown", ({ key, ctrlKey, metaKey, altKey }) => {
    const seen = (each) => each.checkVisibility() && each.getBoundingClientRect().top < innerHeight / 2;
    const figure = [...document.querySelectorAll(".lanes")].findLast(seen);
    if (figure && !ctrlKey && !metaKey && !altKey) named(`${figure.id}-${key}`)?.do.emit();
  });
  // on paper a picture that scales stands for each figure, which would be cut off
  addEventListener("beforeprint", () => {
    for (const view of Bokeh.index) view.el.after(view.export().canvas);
  });
  addEventListener("afterprint", () => document.querySelectorAll(".lanes > canvas").forEach((each) => each.remove()));
  return { named };
})();
