"use strict";
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function element(kind, attributes, text) {
  const made = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function short(value) {
  return value === null || value === undefined ? "–" : Number.isInteger(value) ? value.toLocaleString("en") : value.toPrecision(3);
}

function numbers(state) {
  const refused = Object.values(state.refused).reduce((a, b) => a + b, 0);
  const shown = [["server steps", state.steps], ["arrivals", state.arrivals], ["arrivals per minute", state.per_minute],
    ["mean staleness", state.mean_staleness], ["refused", refused], ["time", state.time]];
  byId("numbers").replaceChildren(...shown.map(([name, value]) => {
    const box = document.createElement("div"), number = document.createElement("b");
    number.textContent = short(value);
    box.append(number, name);
    box.title = name === "refused" ? reasons(state.refused) : "";
    return box;
  }));
}

function curve(rows) {
  const metric = ["accuracy", "gap", "client_loss", "loss"].find((name) => rows.some((row) => Number.isFinite(row[name])));
  const svg = byId("curve");
  svg.setAttribute("viewBox", "0 0 400 160");
  if (!metric) { svg.replaceChildren(element("text", {x: 10, y: 80}, "no evaluation yet")); return; }
  byId("metric").textContent = `${metric} against time`;
  const points = rows.filter((row) => Number.isFinite(row[metric])).map((row) => [row.time ?? row.step, row[metric]]);
  const right = Math.max(1, ...points.map((p) => p[0]));
  let low = Math.min(...points.map((p) => p[1])), high = Math.max(...points.map((p) => p[1]));
  if (low === high) { low -= 0.5; high += 0.5; }
  const place = ([x, y]) => [45 + 345 * x / right, 140 - 130 * (y - low) / (high - low)];
  const line = points.map((p) => place(p).map((v) => v.toFixed(1)).join(",")).join(" ");
  svg.replaceChildren(
    element("line", {x1: 45, y1: 140, x2: 390, y2: 140, class: "axis"}),
    element("line", {x1: 45, y1: 10, x2: 45, y2: 140, class: "axis"}),
    element("text", {x: 2, y: 14}, short(high)), element("text", {x: 2, y: 143}, short(low)),
    element("text", {x: 390, y: 156, "text-anchor": "end"}, short(right)),
    element("polyline", {points: line, class: "curve"}),
    ...points.slice(-1).map((p) => element("circle", {cx: place(p)[0], cy: place(p)[1], r: 4, class: "bar"})));
}

function bars(bins) {
  const svg = byId("bars");
  svg.setAttribute("viewBox", "0 0 400 160");
  if (!bins.length) { svg.replaceChildren(element("text", {x: 10, y: 80}, "no arrival yet")); return; }
  const most = Math.max(...bins.map((bin) => bin[2])), width = 385 / bins.length;
  svg.replaceChildren(
    element("line", {x1: 5, y1: 140, x2: 390, y2: 140, class: "axis"}),
    ...bins.map(([, , count], i) =>
      element("rect", {x: 5 + i * width, y: 140 - 125 * count / most, width: Math.max(1, width - 1), height: 125 * count / most, class: "bar"})),
    element("text", {x: 5, y: 156}, short(bins[0][0])),
    element("text", {x: 390, y: 156, "text-anchor": "end"}, short(bins[bins.length - 1][1])));
}

function clients(state) {
  const active = state.clients.filter((c) => c.active).length, more = state.all_clients - state.clients.length;
  byId("active").textContent = `${active} count in the next step, ${state.clients.length - active} do not` +
    (more > 0 ? `; ${more} more are not shown` : "");
  byId("clients").replaceChildren(...state.clients.map((c) => {
    const box = document.createElement("span");
    box.className = c.active ? "in" : "out";
    box.textContent = c.client;
    box.title = c.arrivals ? `${c.arrivals} arrivals, the last ${Math.round(c.seconds_ago)} s ago` : "not heard of yet";
    return box;
  }));
}

function ago(seconds) {
  if (seconds === null) return "–";
  return seconds < 120 ? `${Math.round(seconds)} s` : seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

function reasons(counts) {
  return Object.entries(counts).map(([why, n]) => `${n} ${why}`).join(", ");
}

function nodes(state) {
  const real = state.clients.some((c) => c.node);
  byId("nodes").hidden = !real;
  byId("refusals").hidden = !Object.keys(state.refused).length;
  byId("refusals").textContent = `refused: ${reasons(state.refused)}`;
  if (!real) return;
  byId("nodes").tBodies[0].replaceChildren(...state.clients.map((c) => {
    const row = document.createElement("tr");
    row.className = `${c.active ? "in" : "out"} ${c.connected ? "there" : "gone"}`;
    row.append(...[c.client, c.name ? `${c.name}, ${c.node}` : c.node, c.arrivals, ago(c.seconds_ago), ago(c.at_work),
      c.model_age ?? "–", ago(c.task_seconds), c.lost, reasons(c.refused) || "–", c.active ? "yes" : `no: ${c.why_not}`,
    ].map((text) => { const cell = document.createElement("td"); cell.textContent = text; return cell; }));
    return row;
  }));
}

async function refresh() {
  try {
    const state = await (await fetch(`/state.json${location.search}`)).json();
    byId("stopped").hidden = true;
    numbers(state); curve(state.evaluations); bars(state.staleness); clients(state); nodes(state);
  } catch (problem) {
    byId("stopped").hidden = false;
  }
  setTimeout(refresh, 1000);
}
refresh();
