// SVG charts: lines over rounds or steps, and accuracy against ε as points. Axes have names and units; series differ by
// colour, dash and marker; every chart is also available as a table.
import { el, fill, number } from "./common.js";

const NS = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 3", "4 2"];
const MARKS = [
  "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-3.6-3.6h7.2v7.2h-7.2z", "M0-4.9L4.7 3.5H-4.7z", "M0-5.2L5.2 0L0 5.2L-5.2 0z",
  "M0 4.9L4.7-3.5H-4.7z", "M-1.4-4.8h2.8v3.4h3.4v2.8h-3.4v3.4h-2.8v-3.4h-3.4v-2.8h3.4z",
];
const HEIGHT = 280, LEFT = 62, RIGHT = 14, TOP = 36, BOTTOM = 46;

function s(name, attributes = {}, text) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((m) => m >= raw * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-6; at += step) found.push(Number(at.toPrecision(10)));
  return found;
}
function logTicks(low, high) {
  if (high / low < 8) return ticks(low, high, 4);
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const m of high / low > 300 ? [1] : [1, 3]) { const at = m * 10 ** power; if (at >= low * 0.999 && at <= high * 1.001) found.push(Number(at.toPrecision(6))); }
  }
  return found.length > 1 ? found : [low, high];
}
function scale(axis, values, from, to) {
  let low = axis.min ?? Math.min(...values), high = axis.max ?? Math.max(...values);
  if (!(high > low)) { const room = Math.abs(low) || 1; low = axis.log ? low / 2 : low - room / 2; high = axis.log ? high * 2 : high + room / 2; }
  const f = axis.log ? Math.log10 : (v) => v;
  const at = (value) => from + ((f(value) - f(low)) / (f(high) - f(low))) * (to - from);
  return { at, low, high };
}

function frame(svg, width, title, x, y, sx, sy, right) {
  svg.append(s("text", { x: 0, y: 13, class: "title" }, title));
  const bottom = HEIGHT - BOTTOM;
  for (const tick of ticks(sy.low, sy.high, 5)) {
    const at = sy.at(tick);
    svg.append(s("line", { x1: LEFT, x2: right, y1: at, y2: at, class: "gridline" }), s("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, y.percent ? `${Math.round(tick * 100)}` : number(tick)));
  }
  const marks = x.log ? logTicks(sx.low, sx.high) : ticks(sx.low, sx.high, Math.max(2, Math.floor(width / 90)));
  for (const tick of marks) {
    if (x.whole && !Number.isInteger(tick)) continue;
    const at = sx.at(tick);
    svg.append(s("line", { x1: at, x2: at, y1: bottom, y2: bottom + 5, class: "axis" }), s("text", { x: at, y: bottom + 18, "text-anchor": "middle" }, number(tick)));
  }
  svg.append(s("line", { x1: LEFT, x2: right, y1: bottom, y2: bottom, class: "axis" }), s("line", { x1: LEFT, x2: LEFT, y1: TOP, y2: bottom, class: "axis" }));
  svg.append(s("text", { x: (LEFT + right) / 2, y: HEIGHT - 8, "text-anchor": "middle", class: "soft" }, x.label));
  const middle = (TOP + bottom) / 2;
  svg.append(s("text", { x: 12, y: middle, "text-anchor": "middle", class: "soft", transform: `rotate(-90 12 ${middle})` }, y.label));
}

// Draws now, and again when the width changes.
function mount(where, draw, legend, table) {
  const box = el("div"), made = el("div", { class: "chart" }, box, legend, table);
  let width = 0;
  const look = () => {
    const room = Math.max(260, Math.min(900, Math.floor(where.clientWidth || 600)));
    if (room !== width) { width = room; fill(box, draw(room)); }
  };
  where.seen?.disconnect();
  fill(where, made);
  look();
  where.seen = new ResizeObserver(look);
  where.seen.observe(where);
}

function legendOf(series, kind) {
  if (series.length < 2 && kind === "line") return null;
  return el("ul", { class: "legend" }, ...series.map((one, place) => {
    const svg = s("svg", { viewBox: "0 0 34 12", "aria-hidden": "true" });
    const group = s("g", { class: `c${(one.colour ?? place) % 6}` });
    if (kind === "line") group.append(s("path", { d: "M0 6H34", class: "line chart-line", stroke: "currentColor", "stroke-width": 2, fill: "none", "stroke-dasharray": DASHES[place % 6] || undefined }));
    group.append(s("path", { d: MARKS[place % 6], transform: "translate(17 6)", fill: "currentColor" }));
    svg.append(group);
    return el("li", {}, svg, el("span", { class: "name" }, one.name));
  }));
}

function tableOf(columns, rows) {
  const most = 200, shown = rows.length > most ? rows.filter((_, i) => i % Math.ceil(rows.length / most) === 0) : rows;
  return el("details", {}, el("summary", { class: "hint" }, "As a table"), el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ...columns.map((c) => el("th", { class: "number" }, c)))),
    el("tbody", {}, ...shown.map((row) => el("tr", {}, ...row.map((c) => el("td", { class: "number" }, typeof c === "number" ? number(c, 4) : c ?? "–"))))))));
}

// series: [{name, points: [[x, y], …]}]
export function lines(where, { title, x, y, series, guide }) {
  const all = series.flatMap((one) => one.points).filter(([a, b]) => Number.isFinite(a) && Number.isFinite(b) && (!x.log || a > 0));
  if (!all.length) { fill(where, el("p", { class: "hint" }, `${title}: no data yet.`)); return; }
  const draw = (width) => {
    const svg = s("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${y.label} over ${x.label}. ${series.map((one) => { const last = one.points.at(-1); return last ? `${one.name} ends at ${number(last[1])}` : ""; }).join("; ")}` });
    const right = width - RIGHT;
    const sx = scale(x, all.map((p) => p[0]), LEFT, right), sy = scale(y, all.map((p) => p[1]), HEIGHT - BOTTOM, TOP);
    frame(svg, width, title, x, y, sx, sy, right);
    if (guide) svg.append(s("line", { x1: LEFT, x2: right, y1: sy.at(guide.y), y2: sy.at(guide.y), class: "guide" }), s("text", { x: right, y: sy.at(guide.y) + 15, "text-anchor": "end", class: "soft" }, guide.text));
    series.forEach((one, place) => {
      const points = one.points.filter(([a, b]) => Number.isFinite(a) && Number.isFinite(b) && (!x.log || a > 0));
      const group = s("g", { class: `c${(one.colour ?? place) % 6}` });
      group.append(s("path", { d: points.map(([a, b], i) => `${i ? "L" : "M"}${sx.at(a).toFixed(1)} ${sy.at(b).toFixed(1)}`).join(""), class: "line", "stroke-dasharray": DASHES[place % 6] || undefined }));
      const every = Math.max(1, Math.ceil(points.length / 8));
      points.forEach(([a, b], i) => { if (i % every === 0 || i === points.length - 1) group.append(s("path", { d: MARKS[place % 6], class: "dot", transform: `translate(${sx.at(a).toFixed(1)} ${sy.at(b).toFixed(1)}) scale(.8)` })); });
      svg.append(group);
    });
    return svg;
  };
  const rows = series.flatMap((one) => one.points.map(([a, b]) => [one.name, a, b]));
  mount(where, draw, legendOf(series, "line"), tableOf(["series", x.label, y.label], rows));
}

// points: [{x: number or null, y, series, text, same}]; points without x are drawn in a separate lane on the right.
// The frontier joins the runs that no other beats: none has a smaller ε and at least their accuracy.
export function frontier(points) {
  const best = [];
  for (const p of points.filter((q) => q.x !== null && q.x > 0).sort((a, b) => a.x - b.x || b.y - a.y)) if (!best.length || p.y > best.at(-1).y) best.push(p);
  return best;
}
export function scatter(where, { title, x, y, points, names, line, lane, guide = null }) {
  if (!points.length && line === null) { fill(where, el("p", { class: "hint" }, "No runs on this dataset yet: train one.")); return; }
  const known = points.filter((p) => p.x !== null);
  const values = [...known.map((p) => p.x), ...(line === null ? [] : [line])];
  const draw = (width) => {
    const svg = s("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${points.length} runs` });
    const end = width - RIGHT, apart = 74, right = end - apart;
    const axis = { ...x, min: values.length ? Math.min(...values) / 1.5 : 0.1, max: values.length ? Math.max(...values) * 1.5 : 10 };
    const sx = scale(axis, values, LEFT, right), sy = scale(y, points.map((p) => p.y), HEIGHT - BOTTOM, TOP);
    frame(svg, width, title, x, y, sx, sy, right);
    svg.append(s("line", { x1: right + 10, x2: end, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM, class: "axis" }), s("text", { x: (right + 10 + end) / 2, y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, lane));
    if (line !== null) svg.append(s("line", { x1: sx.at(line), x2: sx.at(line), y1: TOP, y2: HEIGHT - BOTTOM, class: "guide" }), s("text", { x: sx.at(line), y: TOP - 6, "text-anchor": sx.at(line) > right - 60 ? "end" : "middle", class: "soft" }, "these settings"));
    if (guide) svg.append(s("line", { x1: LEFT, x2: right, y1: sy.at(guide.y), y2: sy.at(guide.y), class: "guide" }), s("text", { x: right, y: sy.at(guide.y) - 5, "text-anchor": "end", class: "soft" }, guide.text));
    const best = frontier(known);
    if (best.length > 1) svg.append(s("path", { class: "frontier", d: best.map((p, i) => (i ? `H${sx.at(p.x).toFixed(1)}V${sy.at(p.y).toFixed(1)}` : `M${sx.at(p.x).toFixed(1)} ${sy.at(p.y).toFixed(1)}`)).join("") }, s("title", {}, "frontier: no run has a smaller ε and at least this accuracy")));
    for (const point of points) {
      const place = names.indexOf(point.series), at = point.x === null ? (right + 10 + end) / 2 : sx.at(point.x);
      const group = s("g", { class: `c${place % 6}`, transform: `translate(${at.toFixed(1)} ${sy.at(point.y).toFixed(1)})` });
      group.append(s("title", {}, point.text), s("path", { d: MARKS[place % 6], class: "dot" }));
      if (point.same) group.append(s("circle", { r: 9, class: "ring" }));
      svg.append(group);
    }
    return svg;
  };
  const rows = points.map((p) => [p.series, p.x === null ? "no ε" : p.x, p.y, p.text]);
  mount(where, draw, legendOf(names.map((name) => ({ name })), "points"), tableOf(["defence", x.label, y.label, "run"], rows));
}
