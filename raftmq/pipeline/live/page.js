"use strict";
const SLOTS = 60, QUIET_MS = 10000;
const at = id => document.getElementById(id);
const number = new Intl.NumberFormat("en", {maximumFractionDigits: 2});
const short = new Intl.NumberFormat("en", {notation: "compact", maximumFractionDigits: 2});
let data = null, received = 0, age = null, measure = null, pinned = null, isOver = false, isOpen = false;
let wasQuiet = false;

// Text goes in as text: no value of a message is ever read as HTML.
function node(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
function shape(name, attributes = {}, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
const shown = value => value === null ? "–" : number.format(value);
const brief = value => value !== null && Math.abs(value) >= 1e7 ? short.format(value) : shown(value);
const clock = (ms, isFine) => new Date(ms).toISOString().slice(11, isFine ? 23 : 19);
function span(ms) {
  for (const [size, unit] of [[3600000, "h"], [60000, "min"], [1000, "s"]])
    if (ms >= size) return number.format(ms / size) + " " + unit;
  return number.format(ms) + " ms";
}
function when(window) {
  const isFine = data.window_ms % 1000 !== 0, day = new Date(window.start).toISOString().slice(0, 10);
  const time = clock(window.start, isFine) + " – " + clock(window.start + data.window_ms, isFine);
  return (day === new Date().toISOString().slice(0, 10) ? "" : day + " ") + time + " UTC";
}

// How old the picture is, also in a browser that has just come.
const idle = () => data ? Math.max(0, Date.now() - data.drawn) : 0;
const isQuiet = () => idle() > QUIET_MS;

// What the figures are of: what was clicked; else the newest window that is not still filling.
function chosen() {
  const windows = data.windows, found = windows.find(window => window.start === pinned && window.rows);
  return found || windows[Math.max(0, windows.length - (windows.at(-1).open ? 2 : 1))];
}

function tiles(window) {
  const tile = (name, value, more, doubt) => node("div", {class: "panel tile" + (doubt ? " doubt" : "")},
    node("div", {class: "name"}, name), node("div", {class: "value"}, value), node("div", {class: "more"}, more));
  const rate = isQuiet() ? 0 : Math.round(data.rate);
  const made = [tile("messages a second", shown(rate), short.format(data.counted) + " in all")];
  data.measures.slice(0, 4).forEach((name, place) =>
    made.push(tile(name, brief(window.values[place]), "in the window of " + span(data.window_ms).replace(" ", "\u00a0"))));
  made.push(tile("oldest shown", age === null ? "–" : (age / 1000).toFixed(2) + " s", "since it was stored", age > 1500));
  made.push(tile("late", shown(data.late),
    data.unusable ? shown(data.unusable) + " without a usable time" : "after their window closed", data.late > 0));
  at("tiles").replaceChildren(...made);
}

function tabs() {
  at("tabs").replaceChildren(...data.measures.map((name, place) => {
    const made = node("button", {type: "button", "aria-pressed": place === measure}, name);
    made.onclick = () => { measure = place; draw(); };
    return made;
  }));
}

function ceiling(most) {
  const power = 10 ** Math.floor(Math.log10(most || 1));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map(step => step * power).find(step => step >= most) || 1;
}

function chart(window) {
  // As wide as its panel, so that the labels keep their size on a phone.
  const width = at("chart").clientWidth || 1100, height = 190, left = 46, bottom = 20, top = 8, deep = height - bottom - top;
  const svg = shape("svg", {viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": data.measures[measure] + " of the last windows"});
  const last = data.windows.at(-1).start, step = (width - left) / SLOTS;
  const slot = one => SLOTS - 1 - Math.round((last - one.start) / data.window_ms);
  const visible = data.windows.filter(one => slot(one) >= 0);
  const most = ceiling(Math.max(...visible.map(one => one.values[measure] || 0)));
  for (const part of [0, 0.5, 1]) {
    const y = top + deep * (1 - part);
    svg.append(shape("line", {class: "grid", x1: left, x2: width, y1: y, y2: y}),
      shape("text", {x: left - 6, y: y + 4, "text-anchor": "end"}, short.format(most * part)));
  }
  for (const one of visible) {
    const x = left + slot(one) * step, tall = deep * Math.max(0, one.values[measure] || 0) / most;
    svg.append(shape("rect", {x: x + 1, width: step - 2, y: top + deep - tall, height: tall, rx: 1.5,
      class: (one.open ? "open" : "final") + (one === window ? " chosen" : "")}));
    const hit = shape("rect", {x, width: step, y: top, height: deep, class: "hit" + (one.rows ? " can" : "")});
    const lines = data.measures.map((name, place) => name + ": " + shown(one.values[place]));
    hit.append(shape("title", {}, [when(one) + (one.open ? " (open)" : ""), ...lines].join("\n")));
    if (one.rows) hit.onclick = () => { pinned = pinned === one.start ? null : one.start; draw(); };
    svg.append(hit);
  }
  const labelled = width >= 900 ? 15 : 30;
  for (let place = SLOTS - 1; place >= 0; place -= labelled) {
    const start = last - (SLOTS - 1 - place) * data.window_ms;
    svg.append(shape("text", {x: left + (place + 0.5) * step, y: height - 5,
      "text-anchor": place > SLOTS - 3 ? "end" : "middle"}, clock(start, data.window_ms % 1000 !== 0)));
  }
  at("chart").replaceChildren(svg);
}

function trend(group) {
  const name = JSON.stringify(group), detailed = data.windows.filter(one => one.rows);
  const values = detailed.map(one => {
    const row = one.rows.find(([found]) => JSON.stringify(found) === name);
    return row ? row[1][measure] || 0 : 0;
  });
  const most = Math.max(...values, 1e-9), svg = shape("svg", {viewBox: "0 0 104 22"});
  const points = values.map((value, place) =>
    [3 + 98 * place / Math.max(1, values.length - 1), 19 - 16 * Math.max(0, value) / most]);
  svg.append(shape("polyline", {class: "spark", points: points.map(point => point.join(",")).join(" ")}));
  const [x, y] = points.at(-1);
  svg.append(shape("circle", {class: "dot", cx: x, cy: y, r: 2.4}));
  return svg;
}

function groups(window) {
  const heading = node("h2", {}, when(window),
    node("span", {class: "chip"}, window.open ? "open" : "final"));
  if (pinned === window.start) {
    const button = node("button", {type: "button", style: "margin-left: 8px"}, "follow the newest");
    button.onclick = () => { pinned = null; draw(); };
    heading.append(button);
  }
  const rows = (window.rows || []).slice().sort((one, other) => (other[1][measure] || 0) - (one[1][measure] || 0));
  const most = Math.max(...rows.map(row => row[1][measure] || 0), 1e-9);
  const head = node("tr", {}, ...data.groups.map(name => node("th", {}, name)), node("th", {class: "meter"}),
    ...data.measures.map(name => node("th", {class: "number"}, name)), node("th", {class: "trend"}, "trend"));
  const body = rows.map(([group, values]) => {
    const bar = node("div", {style: `width: ${100 * Math.max(0, values[measure] || 0) / most}%`});
    return node("tr", {},
      ...group.map(value => node("td", {class: "group"}, value === null ? node("i", {}, "none") : value === "" ? node("i", {}, "empty") : value)),
      node("td", {class: "meter"}, bar),
      ...values.map(value => node("td", {class: "number"}, shown(value))),
      node("td", {class: "trend"}, trend(group)));
  });
  at("groups").replaceChildren(heading, node("table", {}, node("thead", {}, head), node("tbody", {}, ...body)));
}

function draw() {
  const isEmpty = !data || data.windows.length === 0;
  at("nothing").hidden = !isEmpty;
  at("main").hidden = isEmpty;
  if (data) {
    document.title = data.topics.join(", ") + " · live";
    at("title").textContent = data.topics.join(", ");
    at("about").textContent = `windows of ${span(data.window_ms)}, closed ${span(data.lateness_ms)} after their end`;
  }
  if (isEmpty) return;
  if (measure === null) measure = data.measures.indexOf(data.order);
  const window = chosen();
  tiles(window); tabs(); chart(window); groups(window);
}

function state() {
  const quiet = isQuiet();
  const [name, text] = isOver ? ["", "ended"] : !isOpen ? ["lost", received ? "connection lost" : "connecting"]
    : data === null ? ["", "starting"] : quiet ? ["quiet", "no news for " + Math.round(idle() / 1000) + " s"] : ["live", "live"];
  at("state").className = name;
  at("state").textContent = text;
  if (quiet !== wasQuiet) { wasQuiet = quiet; draw(); }
}

const events = new EventSource("events");
events.onopen = () => { isOpen = true; state(); };
events.onerror = () => { isOpen = false; state(); };
events.onmessage = event => {
  data = JSON.parse(event.data);
  received = Date.now();
  if (data && data.stored) age = Math.max(0, received - data.stored);
  draw(); state();
};
events.addEventListener("over", () => { isOver = true; events.close(); state(); });
setInterval(state, 1000);
addEventListener("resize", () => { if (data) draw(); });
