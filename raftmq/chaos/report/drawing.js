// Draws the figures of a page from the JSON object in #data (see drawing.py). No library, no network.
//
// All figures share one span of time, `view`. Dragging across a figure shows that span in all of
// them; a double click shows everything again.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const OUTCOMES = ["unanswered", "ok", "fail", "unknown"];
const GUTTER = 118, RIGHT = 14, ROW = 16, AXIS = 22;
const view = { from: 0, to: data.end_ms };
const tip = document.getElementById("tip");

// -- small tools ---------------------------------------------------------------------------------

function make(name, attributes, parent, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

const seconds = (ms, within = view) => {
  const span = within.to - within.from;
  const digits = span > 20000 ? 1 : span > 2000 ? 2 : span > 20 ? 3 : 4;
  return (ms / 1000).toFixed(digits) + " s";
};

const duration = (ms) => ms >= 1000 ? (ms / 1000).toFixed(2) + " s" : ms.toFixed(ms < 10 ? 2 : 0) + " ms";

// About `count` round numbers within a span.
function ticks(from, to, count) {
  const rough = (to - from) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) || 10 * power;
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}

class Figure {
  constructor(id, height, span = view) {
    this.svg = document.getElementById(id);
    this.svg.replaceChildren();
    this.width = Math.max(this.svg.clientWidth || this.svg.parentElement.clientWidth, 480);
    this.height = height;
    this.span = span;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.svg.setAttribute("height", height);
    this.hatch();
  }
  hatch() {
    const pattern = make("pattern", { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse",
      patternTransform: "rotate(45)" }, make("defs", {}, this.svg));
    make("line", { x1: 0, y1: 0, x2: 0, y2: 5, stroke: "var(--dead)", "stroke-width": 1 }, pattern);
  }
  get plot() { return this.width - GUTTER - RIGHT; }
  x(ms) { return GUTTER + (ms - this.span.from) / (this.span.to - this.span.from) * this.plot; }
  ms(x) { return this.span.from + (x - GUTTER) / this.plot * (this.span.to - this.span.from); }
  sees(start, end) { return end >= this.span.from && start <= this.span.to; }
  // A bar from start to end, cut at the edges, at least `least` wide.
  bar(start, end, y, height, attributes, least = 1) {
    const x1 = Math.max(this.x(start), GUTTER), x2 = Math.min(this.x(end), this.width - RIGHT);
    return make("rect", { x: x1, y, width: Math.max(x2 - x1, least), height, ...attributes }, this.svg);
  }
  line(ms, y1, y2, name, tipText) {
    const attributes = { x1: this.x(ms), x2: this.x(ms), y1, y2, class: name };
    if (tipText) attributes["data-tip"] = tipText;
    return make("line", attributes, this.svg);
  }
  label(y, text, name = "label") { make("text", { x: 4, y, class: name }, this.svg, text); }
  axis(y) {
    for (const at of ticks(this.span.from, this.span.to, Math.max(this.plot / 110, 2))) {
      make("line", { x1: this.x(at), x2: this.x(at), y1: 0, y2: y, class: "grid" }, this.svg);
      const isLast = this.x(at) > this.width - 40;
      make("text", { x: isLast ? this.width : this.x(at), y: y + 15, "text-anchor": isLast ? "end" : "middle",
        class: "label" }, this.svg, seconds(at, this.span));
    }
  }
  // Faults as a faint wash over the whole figure, under what is drawn later.
  shades(height) {
    for (const [, , start, end] of data.bands) {
      if (end > start && this.sees(start, end)) this.bar(start, end, 0, height, { class: "shade" });
    }
  }
  ends(height) {
    if (data.heal_ms >= 0 && this.sees(data.heal_ms, data.heal_ms)) this.line(data.heal_ms, 0, height, "heal");
    for (const one of data.close_ups) {
      if (one.at_ms >= 0 && this.sees(one.at_ms, one.at_ms))
        this.line(one.at_ms, 0, height, "spot", `${one.name} shows here, at ${seconds(one.at_ms)}`);
    }
  }
}

// -- nodes and faults ----------------------------------------------------------------------------

// Bands in as few rows as their bars and names need. A name stands behind its bar, or before it
// where the figure ends.
function stacked(figure) {
  const rows = [], placed = [];
  for (const band of data.bands) {
    const [name, nodes, start, end] = band;
    if (!figure.sees(start, end)) continue;
    const text = name + (nodes.length ? " " + nodes.join(",") : "");
    const x1 = Math.max(figure.x(start), GUTTER);
    const bar = Math.max(Math.min(figure.x(end), figure.width - RIGHT) - x1, 4);
    const wide = text.length * 6.2 + 8, fits = x1 + bar + wide < figure.width;
    const from = fits ? x1 : x1 - wide, to = fits ? x1 + bar + wide : x1 + bar + 4;
    let row = rows.findIndex((taken) => taken.every(([left, right]) => right <= from || to <= left));
    if (row < 0) row = rows.push([]) - 1;
    rows[row].push([from, to]);
    placed.push({ band, text, row, x1, bar, fits });
  }
  return { placed, count: rows.length };
}

function drawFaults() {
  const probe = new Figure("faults", 10);
  const { placed, count } = stacked(probe);
  const figure = new Figure("faults", Math.max(count, 1) * ROW + 6);
  figure.label(13, "faults", "title");
  if (!placed.length) make("text", { x: GUTTER, y: 13, class: "label" }, figure.svg, "none in this span");
  for (const { band, text, row, x1, bar, fits } of placed) {
    const [, , start, end, what] = band;
    const when = end > start ? `${seconds(start)} to ${seconds(end)}` : seconds(start);
    make("rect", { x: x1, y: row * ROW + 4, width: bar, height: ROW - 6, rx: 2, class: "band",
      "data-tip": `${what}\n${when}` }, figure.svg);
    make("text", { x: fits ? x1 + bar + 4 : x1 - 4, y: row * ROW + 13, "text-anchor": fits ? "start" : "end",
      "pointer-events": "none" }, figure.svg, text);
  }
  figure.ends(figure.height);
}

function drawNodes() {
  const rows = [], places = new Map();
  for (const [node, group] of data.spans) {
    const key = `${node}/${group}`;
    if (!places.has(key)) { places.set(key, rows.length); rows.push([node, group]); }
  }
  // A node that is dead as a whole is so in each of its groups: no row of its own if it has any.
  const grouped = new Set(rows.filter(([, group]) => group >= 0).map(([node]) => node));
  const kept = rows.filter(([node, group]) => group >= 0 || !grouped.has(node));
  const nodes = [...new Set(kept.map(([node]) => node))];
  const gap = 6, top = new Map();
  // Room for the upper half of a mark.
  let y = 5;
  for (const node of nodes) {
    for (const [, group] of kept.filter(([one]) => one === node)) { top.set(`${node}/${group}`, y); y += ROW; }
    y += gap;
  }
  const figure = new Figure("nodes", y + AXIS);
  figure.axis(y);
  for (const node of nodes) {
    const mine = kept.filter(([one]) => one === node);
    const first = top.get(`${node}/${mine[0][1]}`), height = mine.length * ROW;
    make("rect", { x: GUTTER, y: first, width: figure.plot, height, class: "frame" }, figure.svg);
    figure.label(first + 12, `node ${node}`, "title");
    if (mine.length > 1 || mine[0][1] >= 0)
      for (const [, group] of mine)
        make("text", { x: GUTTER - 6, y: top.get(`${node}/${group}`) + 12, "text-anchor": "end", class: "label" },
          figure.svg, `group ${group}`);
  }
  for (const [node, group, role, term, start, end] of data.spans) {
    if (!figure.sees(start, end)) continue;
    const groups = group < 0 && grouped.has(node) ? kept.filter(([one]) => one === node) : [[node, group]];
    for (const [, one] of groups) drawRole(figure, top.get(`${node}/${one}`), { node, one, role, term, start, end });
  }
  for (const node of nodes) shadeNode(figure, node, kept, top);
  for (const [at, node, text] of data.marks) {
    if (!figure.sees(at, at)) continue;
    const mine = kept.find(([one]) => one === node);
    const middle = mine ? top.get(`${node}/${mine[1]}`) : y - 2;
    make("circle", { cx: figure.x(at), cy: middle, r: 3, class: "mark",
      "data-tip": `${node ? "node " + node + ": " : ""}${text}\n${seconds(at)}` }, figure.svg);
  }
  figure.ends(y);
}

function drawRole(figure, y, { node, one, role, term, start, end }) {
  const group = one >= 0 ? `, group ${one}` : "";
  const bar = figure.bar(start, end, y + 1, ROW - 2, { class: role,
    "data-tip": `node ${node}${group}: ${role}${term ? ", term " + term : ""}\n${seconds(start)} to ${seconds(end)}` });
  const width = +bar.getAttribute("width"), x = +bar.getAttribute("x");
  const texts = [`${role}${term ? ", term " + term : ""}`, term ? `t${term}` : "", ];
  const text = texts.find((words) => words && words.length * 6 + 6 < width);
  if (text) make("text", { x: x + 4, y: y + 12, class: `on-${role}`, "pointer-events": "none" }, figure.svg, text);
}

function shadeNode(figure, node, kept, top) {
  const mine = kept.filter(([one]) => one === node);
  const y = top.get(`${node}/${mine[0][1]}`), height = mine.length * ROW;
  for (const [name, nodes, start, end, what] of data.bands) {
    if (!figure.sees(start, end) || !nodes.includes(node)) continue;
    if (end > start) figure.bar(start, end, y, height, { class: "shade" });
    else figure.line(start, y - 2, y + height + 2, "moment", `${what}\n${seconds(start)}`);
  }
}

// -- operations ----------------------------------------------------------------------------------

function drawOperations() {
  if (!data.sample) return;
  const { bars, lanes } = data.sample;
  const depths = lanes.map(() => 1);
  for (const [, lane, depth] of bars) depths[lane] = Math.max(depths[lane], depth + 1);
  const step = 7, tops = [];
  let y = 4;
  for (const depth of depths) { tops.push(y); y += Math.max(depth * step + 5, 14); }
  const figure = new Figure("operations", y + AXIS);
  figure.axis(y);
  figure.shades(y);
  lanes.forEach((process, lane) => {
    figure.label(tops[lane] + 9, `process ${process}`);
    make("line", { x1: GUTTER, x2: figure.width - RIGHT, y1: tops[lane] - 2, y2: tops[lane] - 2, class: "grid" }, figure.svg);
  });
  // What matters is drawn last, above the rest.
  const order = [...bars].sort((a, b) => (a[7] - b[7]) || (a[6] === 1 ? 0 : 1) - (b[6] === 1 ? 0 : 1));
  for (const [operation, lane, depth, start, end, , outcome, anomalous, text] of order) {
    if (!figure.sees(start, end)) continue;
    figure.bar(start, end, tops[lane] + depth * step, step - 1, { class: `op${outcome}${anomalous ? " core" : ""}`,
      "data-tip": `${text}\noperation ${operation}, process ${lanes[lane]}\n${seconds(start)}, took ${duration(end - start)}` +
        (anomalous ? "\npart of what was broken" : "") }, 1.5);
  }
  figure.ends(y);
}

// -- latency and rates ---------------------------------------------------------------------------

function drawLatency(id, curve) {
  const height = 110, figure = new Figure(id, height + AXIS);
  const width = data.end_ms / curve.ok.length;
  const known = curve.max_ms.filter((ms) => ms > 0).concat(curve.median_ms.filter((ms) => ms > 0));
  const low = Math.log10(Math.max(Math.min(...known, 1e4), 1e-3)), high = Math.log10(Math.max(...known, 1e-2) * 1.2);
  const share = (ms) => (Math.log10(Math.max(ms, 1e-3)) - low) / Math.max(high - low, 0.3);
  const y = (ms) => height - 4 - Math.max(share(ms), 0) * (height - 14);
  figure.axis(height);
  figure.shades(height);
  figure.label(13, curve.function, "title");
  figure.label(27, "latency");
  // Of less than two decades the steps between are named too.
  for (let power = Math.floor(low); power <= high; power++) {
    for (const step of high - low < 2 ? [1, 2, 5] : [1]) {
      const ms = step * 10 ** power;
      if (Math.log10(ms) < low || Math.log10(ms) > high) continue;
      make("line", { x1: GUTTER, x2: figure.width - RIGHT, y1: y(ms), y2: y(ms), class: "grid" }, figure.svg);
      make("text", { x: GUTTER - 6, y: y(ms) + 4, "text-anchor": "end", class: "label" }, figure.svg, duration(ms));
    }
  }
  const path = (values) => {
    let text = "", pen = "M";
    values.forEach((ms, bucket) => {
      const at = (bucket + 0.5) * width;
      if (ms < 0 || !figure.sees(at, at)) { pen = "M"; return; }
      // A lone point is drawn too: a line back to itself.
      text += `${pen}${figure.x(at).toFixed(1)} ${y(ms).toFixed(1)}` + (pen === "M" ? "h0.1" : "");
      pen = "L";
    });
    return text;
  };
  make("path", { d: path(curve.p99_ms), class: "p99" }, figure.svg);
  make("path", { d: path(curve.median_ms), class: "median" }, figure.svg);
  curve.max_ms.forEach((ms, bucket) => {
    const at = (bucket + 0.5) * width;
    if (ms < 0 || !figure.sees(at, at)) return;
    make("circle", { cx: figure.x(at), cy: y(ms), r: 2.2, class: "max",
      "data-tip": `${curve.function}, ${seconds(bucket * width)} to ${seconds((bucket + 1) * width)}\n` +
        `median ${duration(curve.median_ms[bucket])}, 99 % ${duration(curve.p99_ms[bucket])}, longest ${duration(ms)}` }, figure.svg);
  });
  figure.ends(height);
}

function drawRate(id, curve) {
  const height = 64, figure = new Figure(id, height + AXIS), width = data.end_ms / curve.ok.length;
  const totals = curve.ok.map((count, bucket) => count + curve.fail[bucket] + curve.unknown[bucket]);
  const most = Math.max(...totals, 1), perSecond = 1000 / width;
  figure.axis(height);
  figure.shades(height);
  figure.label(13, curve.function, "title");
  figure.label(27, "per second");
  for (const at of ticks(0, most * perSecond, 2)) {
    const y = height - at / perSecond / most * (height - 10);
    make("text", { x: GUTTER - 6, y: y + 3, "text-anchor": "end", class: "label" }, figure.svg, at.toLocaleString("en"));
  }
  totals.forEach((total, bucket) => {
    const start = bucket * width, end = start + width;
    if (!total || !figure.sees(start, end)) return;
    let y = height;
    for (const [outcome, counts] of [[1, curve.ok], [2, curve.fail], [3, curve.unknown]]) {
      const tall = counts[bucket] / most * (height - 10);
      if (!tall) continue;
      y -= tall;
      figure.bar(start, end, y, tall, { class: `op${outcome}`,
        "data-tip": `${curve.function}, ${seconds(start)} to ${seconds(end)}\n` +
          `ok ${curve.ok[bucket]}, fail ${curve.fail[bucket]}, unknown ${curve.unknown[bucket]}` });
    }
  });
  figure.ends(height);
}

// -- close-ups of findings -----------------------------------------------------------------------

function drawCloseUp(index) {
  const one = data.close_ups[index], id = `close-${index}`;
  const holder = document.getElementById(id);
  // One that is folded away is drawn when it is unfolded.
  if (!holder || !holder.parentElement.clientWidth) return;
  const first = Math.min(...one.steps.map((step) => step[2])), last = Math.max(...one.steps.map((step) => step[3]));
  const pad = Math.max((last - first) * 0.04, 0.5), height = one.steps.length * 19 + 4;
  const figure = new Figure(id, height + AXIS, { from: first - pad, to: last + pad });
  figure.axis(height);
  figure.shades(height);
  one.steps.forEach(([operation, process, start, end, outcome, core, text], row) => {
    const y = row * 19 + 4;
    figure.label(y + 11, `process ${process}`);
    const bar = figure.bar(start, end, y, 14, { class: `op${outcome}${core ? " core" : " pale"}`,
      "data-tip": `${text}\noperation ${operation}\n${seconds(start, figure.span)}, took ${duration(end - start)}` }, 3);
    const x = +bar.getAttribute("x"), width = +bar.getAttribute("width"), wide = text.length * (core ? 6.8 : 6);
    const isRight = x + width + wide + 8 < figure.width, isLeft = x - wide > GUTTER;
    const place = isRight || !isLeft ? { x: x + width + 5 } : { x: x - 5, "text-anchor": "end" };
    make("text", { ...place, y: y + 11, class: core ? "title" : "label", "pointer-events": "none" }, figure.svg, text);
  });
}

// -- the page ------------------------------------------------------------------------------------

function draw() {
  if (document.getElementById("faults")) drawFaults();
  if (document.getElementById("nodes")) drawNodes();
  if (document.getElementById("operations")) drawOperations();
  data.curves.forEach((curve, index) => {
    if (document.getElementById(`latency-${index}`)) drawLatency(`latency-${index}`, curve);
    if (document.getElementById(`rate-${index}`)) drawRate(`rate-${index}`, curve);
  });
  data.close_ups.forEach((_, index) => drawCloseUp(index));
  const shown = document.getElementById("shown");
  if (shown) shown.textContent = `${seconds(view.from)} to ${seconds(view.to)} of ${seconds(data.end_ms)}`;
}

function show(from, to) {
  view.from = Math.max(Math.min(from, to), 0);
  view.to = Math.min(Math.max(from, to), data.end_ms);
  if (view.to - view.from < 0.01) view.to = view.from + 0.01;
  draw();
}

function listen() {
  const figures = document.getElementById("figures"), cursor = document.getElementById("cursor");
  let drag = null;
  const at = (svg, event) => {
    const box = svg.getBoundingClientRect(), width = svg.viewBox.baseVal.width;
    const x = (event.clientX - box.left) / box.width * width;
    const share = (x - GUTTER) / (width - GUTTER - RIGHT);
    return { x, ms: view.from + Math.min(Math.max(share, 0), 1) * (view.to - view.from) };
  };
  if (figures) {
    figures.addEventListener("pointermove", (event) => {
      const svg = event.target.closest("svg");
      if (!svg) return;
      const place = at(svg, event);
      cursor.style.display = "block";
      cursor.style.left = `${event.clientX - figures.getBoundingClientRect().left}px`;
      cursor.firstChild.textContent = seconds(place.ms);
      if (drag && drag.svg === svg) {
        drag.mark.setAttribute("x", Math.min(drag.x, place.x));
        drag.mark.setAttribute("width", Math.abs(place.x - drag.x));
      }
    });
    figures.addEventListener("pointerleave", () => { cursor.style.display = "none"; });
    figures.addEventListener("pointerdown", (event) => {
      const svg = event.target.closest("svg");
      if (!svg || event.button) return;
      const place = at(svg, event);
      const mark = make("rect", { x: place.x, y: 0, width: 0, height: svg.viewBox.baseVal.height, class: "selection" }, svg);
      drag = { svg, mark, ...place };
    });
    window.addEventListener("pointerup", (event) => {
      if (!drag) return;
      const { svg, ms, x, mark } = drag, place = at(svg, event);
      drag = null;
      mark.remove();
      if (Math.abs(place.x - x) > 4) show(ms, place.ms);
    });
    figures.addEventListener("dblclick", () => show(0, data.end_ms));
  }
  document.addEventListener("pointermove", (event) => {
    const target = event.target.closest ? event.target.closest("[data-tip]") : null;
    tip.style.display = target ? "block" : "none";
    if (!target) return;
    tip.textContent = target.dataset.tip;
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 16 + tip.offsetHeight < window.innerHeight;
    tip.style.left = `${left}px`;
    tip.style.top = `${below ? event.clientY + 16 : event.clientY - tip.offsetHeight - 10}px`;
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.copy) copy(button);
    if (button.dataset.all !== undefined) show(0, data.end_ms);
    if (button.dataset.finding !== undefined) zoom(data.close_ups[+button.dataset.finding]);
  });
  document.querySelectorAll("details.finding").forEach((one) => one.addEventListener("toggle", draw));
  let timer = 0;
  window.addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(draw, 120); });
}

// The timeline around one finding: its operations, or two seconds before the moment it showed.
function zoom(one) {
  const starts = one.steps.map((step) => step[2]), ends = one.steps.map((step) => step[3]);
  const from = Math.min(...starts, one.at_ms), to = Math.max(...ends, one.at_ms);
  const pad = Math.max((to - from) * 0.1, 1000);
  show(from - pad, to + pad);
  document.getElementById("figures").scrollIntoView({ behavior: "smooth" });
}

function copy(button) {
  const text = document.getElementById(button.dataset.copy).textContent;
  const done = () => { button.textContent = "copied"; };
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, () => {});
}

draw();
listen();
