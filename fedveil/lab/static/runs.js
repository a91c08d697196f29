// The Runs page: browse and compare runs, follow a training live, open a report.
import { $, alertText, ask, begin, beside, el, fill, number, percent, showScripts } from "./common.js";
import { lines } from "./chart.js";

const STATES = { done: "done", running: "running", stopped: "stopped", left: "unfinished" };
let all = [], chosen = [], details = new Map(), marked = "";

begin();
const wanted = new URLSearchParams(location.search).getAll("run");
refresh(true).catch((error) => alertText(error.message));
setInterval(() => refresh(false).catch((error) => alertText(error.message)), 1500);
$("find").addEventListener("input", list);
$("clear").addEventListener("click", () => { chosen = []; show(); list(true); });
$("report").addEventListener("click", () => {
  const query = new URLSearchParams();
  for (const name of chosen) query.append("run", name);
  open(`/report?${query}`, "_blank", "noopener");
});

async function refresh(firstTime) {
  const told = await ask("/api/runs");
  alertText("");
  all = told.runs;
  $("folder").textContent = told.folder;
  if (firstTime) chosen = wanted.filter((name) => all.some((r) => r.name === name));
  list();
  const live = chosen.filter((name) => all.find((r) => r.name === name)?.status === "running" || !details.has(name) || details.get(name).status === "running");
  if (firstTime || live.length) await show(live);
}

function list(force) {
  const find = $("find").value.trim().toLowerCase();
  const shown = all.filter((r) => !find || [r.name, r.dataset, r.model, ...r.defense].join(" ").toLowerCase().includes(find));
  const mark = JSON.stringify([shown.map((r) => [r.name, r.status, r.rounds_done, r.accuracy]), force === true ? chosen : 0]);
  if (mark === marked && force !== true) return;
  marked = mark;
  $("state").textContent = all.length ? `${shown.length} of ${all.length} runs` : "";
  if (!all.length) {
    fill($("list"), el("p", {}, "No runs yet. Train one on the ", el("a", { href: "/tradeoff" }, "Trade-off"), " page, or with ", el("code", {}, "fedveil train"), "."));
    return;
  }
  const focus = document.activeElement?.dataset?.run;
  fill($("list"), el("table", {}, el("thead", {}, el("tr", {},
    ...[["Compare", ""], ["Run", ""], ["State", ""], ["Data", ""], ["Defence", ""], ["Rounds", "number"], ["Accuracy", "number"], ["ε, published model, one example", "number"]].map(([t, c]) => el("th", { class: c }, t)))),
    el("tbody", {}, ...shown.map(row))));
  if (focus) document.querySelector(`[data-run="${CSS.escape(focus)}"]`)?.focus();
}
function row(run) {
  const box = el("input", { type: "checkbox", checked: chosen.includes(run.name), "aria-label": `Show ${run.name}` });
  box.dataset.run = run.name;
  box.addEventListener("change", () => { chosen = box.checked ? [...chosen, run.name] : chosen.filter((n) => n !== run.name); show(); });
  const pick = el("button", { type: "button", class: "quiet", onclick: () => { box.checked = !box.checked; box.dispatchEvent(new Event("change")); } }, run.name);
  const done = run.status === "done" ? run.rounds : `${run.rounds_done ?? 0} of ${run.rounds ?? "?"}`;
  const cell = (label, text, kind) => el("td", { class: kind, "data-label": label }, text);
  return el("tr", {}, el("td", {}, box), el("td", {}, pick), cell("State", STATES[run.status] || run.status, `state-${run.status}`),
    cell("Data", `${run.dataset}, ${run.clients} clients`), cell("Defence", run.defense.join(" + ")), cell("Rounds", String(done), "number"),
    cell("Accuracy", run.learned === false ? `${percent(run.accuracy)}, at chance` : percent(run.accuracy), "number"), cell("ε, published model, one example", epsilon(run), "number"));
}
function epsilon(run) {
  if (run.status !== "done") return "–";
  const rows = run.ledger.filter((r) => r.tap === "release" && r.unit === "example" && r.certified && r.epsilon !== null && r.accountant !== "paper");
  rows.sort((a, b) => (a.adjacency === "replace") - (b.adjacency === "replace") || a.epsilon - b.epsilon);
  return rows.length ? `${number(rows[0].epsilon)} (δ ${number(rows[0].delta)})` : "no ε";
}

async function show(which = chosen) {
  $("detail").hidden = !chosen.length;
  $("report").disabled = !chosen.length;
  $("clear").disabled = !chosen.length;
  $("report").textContent = chosen.length > 1 ? "Open a report of the selected runs" : "Open the report";
  const missing = which.filter((name) => chosen.includes(name));
  for (const name of missing) {
    const before = details.get(name), first = before ? before.metrics.length : 0;
    const told = await ask(`/api/runs/${encodeURIComponent(name)}?first=${first}`);
    told.metrics = before ? [...before.metrics, ...told.metrics] : told.metrics;
    details.set(name, told);
  }
  const runs = chosen.map((name) => details.get(name)).filter(Boolean);
  if (!runs.length) return;
  $("detail-title").textContent = runs.length > 1 ? `${runs.length} runs compared` : runs[0].name;
  charts(runs);
  settings(runs);
  const last = runs.at(-1);
  if (last.scripts) showScripts($("scripts"), runs.filter((r) => r.scripts).map((r) => ({ id: r.name, text: r.name, script: r.scripts, saved: true })));
  else fill($("scripts"), el("pre", {}, last.config));
}
function charts(runs) {
  const where = $("charts");
  if (where.children.length !== 4) fill(where, el("p", { class: "hint", id: "progress", role: "status" }), el("div"), el("div"), el("div"));
  const live = runs.filter((r) => r.status === "running");
  where.children[0].textContent = live.length ? `Live: ${live.map((r) => `${r.name} is at round ${r.metrics.length} of ${r.rounds}`).join("; ")}.` : runs.map((r) => `${r.name}: ${r.status === "done" ? `accuracy ${percent(r.accuracy)} on the ${r.split} data after ${r.rounds} rounds${beside(r)}` : `${STATES[r.status]} after ${r.metrics.length} of ${r.rounds} rounds; resume with: fedveil train --resume ${r.path}`}`).join(". ");
  const pick = (key) => runs.map((r) => ({ name: r.name, points: r.metrics.filter((m) => m[key] !== null && m[key] !== undefined).map((m) => [m.round + 1, m[key]]) }));
  const x = { label: "round (number)", whole: true, min: 0, max: Math.max(1, ...runs.map((r) => r.metrics.length)) };
  lines(where.children[1], { title: "Accuracy on held-out data", x, y: { label: "accuracy (%)", min: 0, max: 1, percent: true }, series: pick("accuracy") });
  lines(where.children[2], { title: "Loss on held-out data", x, y: { label: "cross-entropy (nats)", min: 0 }, series: pick("loss") });
  lines(where.children[3], { title: "Training loss of the clients", x, y: { label: "cross-entropy (nats)", min: 0 }, series: pick("train_loss") });
}
function settings(runs) {
  const flat = runs.map((r) => flatten(r.config));
  const keys = [...new Set(flat.flatMap((f) => Object.keys(f)))];
  const differ = keys.filter((k) => new Set(flat.map((f) => f[k])).size > 1);
  const shown = runs.length > 1 ? differ : keys;
  $("settings-title").textContent = runs.length > 1 ? "Settings that differ" : "Settings";
  if (!shown.length) { fill($("settings"), el("p", { class: "hint" }, "None: all settings are the same.")); return; }
  fill($("settings"), el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "key"), ...runs.map((r) => el("th", {}, r.name)))),
    el("tbody", {}, ...shown.map((k) => el("tr", {}, el("th", { scope: "row" }, el("code", {}, k)), ...flat.map((f) => el("td", {}, f[k] ?? "–")))))));
}
// Keys and values of a config.toml: one key per line, or a list over several lines; an inline table has keys of its own.
function flatten(text) {
  const made = {};
  const put = (section, key, value) => { made[section ? `${section}.${key}` : key] = value.replace(/^"(.*)"$/, "$1"); };
  let section = "", count = {};
  for (const line of text.replace(/\[\n([^\]]*?),?\n\]/g, (_, inside) => `[${inside.split("\n").map((l) => l.trim()).join(" ")}]`).split("\n")) {
    const head = line.match(/^\[+([\w.-]+)\]+$/);
    if (head) { count[head[1]] = (count[head[1]] || 0) + 1; section = count[head[1]] > 1 ? `${head[1]}.${count[head[1]] - 1}` : head[1]; continue; }
    const item = line.match(/^(\w+) = (.*)$/);
    if (!item) continue;
    const tables = item[2].match(/\{[^}]*\}/g);
    if (tables) tables.forEach((table, n) => [...table.matchAll(/(\w+) = ("[^"]*"|[^,}]+)/g)].forEach((m) => put(n ? `${item[1]}.${n}` : item[1], m[1], m[2].trim())));
    else put(section, item[1], item[2]);
  }
  return made;
}
