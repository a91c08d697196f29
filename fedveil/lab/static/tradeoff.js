// The Trade-off page: sliders for noise, clip, rounds and clients; ε at once; accuracy from finished runs or a new training.
import { $, DefenseForm, ADVERSARIES, Refused, accountNote, alertText, ask, begin, beside, el, fill, follow, latest, number, options, percent, seatsTable, showJobs, showScripts, slider, visit, waiting, wrong } from "./common.js";
import { lines, scatter } from "./chart.js";

const SLIDERS = [
  { id: "rounds", label: "Rounds", unit: "T", min: 1, max: 200 },
  { id: "clients", label: "Clients", unit: "K in all", min: 10, max: 1000 },
  { id: "per_round", label: "Per round", unit: "Kt clients", min: 1, max: 100 },
  { id: "local_steps", label: "Local steps", unit: "L per round", min: 1, max: 100 },
  { id: "batch", label: "Batch", unit: "B examples", min: 1, max: 32 },
];
let choices, defense, job = null, known = null, account = null;
const values = {};

begin();
start().catch((error) => alertText(error.message));

async function start() {
  choices = await ask("/api/choices");
  const from = choices.start.trade;
  for (const one of SLIDERS) values[one.id] = from[one.id];
  values.seed = from.seed;
  options($("dataset"), choices.datasets.map((d) => ({ value: d.name, title: d.summary, text: d.here ? d.name : `${d.name} (ε only: not installed)` })), from.dataset);
  models(from.model);
  rate(from.lr);
  sliders();
  defense = new DefenseForm($("defense"), choices.defenses, from.defense, changed, true);
  options($("seat"), ["example", "client", "server", "broadcast", "release"].map((t) => ({ value: t, text: ADVERSARIES[t][0] })), "release");
  $("dataset").addEventListener("change", () => { Object.assign(values, dataset().defaults); delete values.lr; models(); sliders(); rate(null); changed(); });
  $("lr").addEventListener("input", changed);
  $("model").addEventListener("change", changed);
  for (const id of ["seat", "unit"]) $(id).addEventListener("change", drawScatter);
  $("form").addEventListener("submit", (event) => { event.preventDefault(); train(); });
  $("cancel").addEventListener("click", cancel);
  changed();
}
const dataset = () => choices.datasets.find((d) => d.name === $("dataset").value);
// The learning rate: empty means the dataset's own.
function rate(value) { $("lr").value = value ?? ""; $("lr").placeholder = dataset().defaults.lr; $("lr-hint").textContent = `empty: ${dataset().defaults.lr}, the dataset's own`; }
function models(chosen) {
  const fit = choices.models.filter((m) => dataset().kind === "image" || !m.images);
  options($("model"), fit.map((m) => ({ value: m.name, title: m.summary, text: m.name === dataset().model ? `${m.name} (default)` : m.name })), chosen && fit.some((m) => m.name === chosen) ? chosen : dataset().model);
}
function sliders() {
  fill($("sliders"), ...SLIDERS.map((one) => slider({ ...one, step: 1, whole: true, value: values[one.id], set: (value) => { values[one.id] = value; changed(); } })));
}
function asked() {
  const made = { dataset: $("dataset").value, defense: defense.get() };
  for (const one of SLIDERS) made[one.id] = values[one.id];
  if (values.seed) made.seed = values.seed;
  if ($("lr").value !== "") made.lr = Number($("lr").value);
  if ($("model").value !== dataset().model) made.model = $("model").value;
  return made;
}

const accountNow = latest(async (signal) => {
  $("seats").classList.add("waiting");
  try {
    account = await ask("/api/account", { trade: asked(), page: visit }, { signal });
    $("account-note").textContent = accountNote(account);
    fill($("seats"), seatsTable(account, null));
    wrong("form-error", "");
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    account = null;
    $("account-note").textContent = "";
    fill($("seats"), el("p", { class: "wrong" }, error.message));
  }
  $("seats").classList.remove("waiting");
  drawScatter();
}, 60);
const knownNow = latest(async (signal) => {
  try {
    known = await ask("/api/trade", { trade: asked() }, { signal });
    wrong("form-error", "");
    $("start").disabled = job !== null || !dataset().here;
    showScripts($("scripts"), [{ id: "train", text: "Train", script: known.scripts.train }, { id: "ledger", text: "ε", script: known.scripts.ledger }]);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    known = null;
    wrong("form-error", error.message);
    fill($("scripts"), el("p", { class: "hint" }, "These settings are not valid."));
  }
  answer();
  drawScatter();
}, 120);
function changed() { accountNow(); knownNow(); }

function answer() {
  const where = $("accuracy");
  if (!known) { fill(where, "No accuracy: these settings are not valid."); return; }
  const same = known.same[0];
  if (same) { fill(where, el("strong", {}, percent(same.accuracy)), ` on the ${same.split} data, measured by run ${same.name} with exactly these settings, learning rate ${same.settings.lr}${beside(same)}.`); return; }
  const near = nearest();
  fill(where, dataset().here ? "Not measured yet: train with these settings." : `Not measured: ${dataset().name} is not installed (${dataset().get}).`,
    near ? el("span", { class: "hint" }, ` Nearest run: ${percent(near.run.accuracy)} with ${near.differs.join(", ")} (${near.run.name}).`) : null);
}
// The run whose settings are closest.
function nearest() {
  const want = { ...values, ...Object.fromEntries(Object.entries(fullDefense()).map(([k, v]) => [`defense.${k}`, v])) };
  let best = null;
  for (const run of known.runs) {
    if (run.settings["defense.name"] !== want["defense.name"] || (run.model && run.model !== $("model").value)) continue;
    const differs = [];
    let apart = 0;
    for (const key of Object.keys(want)) {
      const mine = want[key], its = run.settings[key];
      if (its === undefined || its === null || mine === its || mine === undefined) continue;
      differs.push(`${key.replace("defense.", "")} ${its}`);
      apart += typeof its === "number" && typeof mine === "number" ? Math.min(1, Math.abs(Math.log((its + 1e-9) / (mine + 1e-9)))) : 1;
    }
    if (differs.length && (!best || apart < best.apart)) best = { run, differs, apart };
  }
  return best;
}
function fullDefense() {
  const info = defense.info(), made = { name: info.name };
  for (const key of info.keys) { const value = defense.values[key.key] ?? key.default; if (value !== null && value !== undefined) made[key.key] = value; }
  return made;
}

function epsilonOf(rows, tap, unit) {
  const here = rows.filter((r) => r.tap === tap && r.unit === unit && r.epsilon !== null && r.certified && r.accountant !== "paper");
  here.sort((a, b) => (a.adjacency === "replace") - (b.adjacency === "replace") || a.epsilon - b.epsilon);
  return here.length ? here[0].epsilon : null;
}
// The accuracy of a constant guess, where the runs know it.
function guideOf(runs) {
  const held = runs.filter((run) => run.chance !== null && run.chance !== undefined);
  return held.length ? { y: held[0].chance, text: `chance ${percent(held[0].chance)}` } : null;
}
function drawScatter() {
  if (!known) { fill($("scatter")); return; }
  const tap = $("seat").value, unit = $("unit").value;
  const points = known.runs.map((run) => ({ x: epsilonOf(run.ledger, tap, unit), y: run.accuracy, series: run.defense.join(" + "), same: run.same, text: `${run.name}: accuracy ${percent(run.accuracy)}, ${run.settings.rounds} rounds, ${run.settings.clients} clients, learning rate ${run.settings.lr}${beside(run)}${run.settings["defense.noise"] !== undefined ? `, noise ${run.settings["defense.noise"]}` : ""}` }));
  const names = [...new Set(points.map((p) => p.series))].sort();
  const line = account ? epsilonOf(account.seats, tap, unit) : null;
  scatter($("scatter"), { title: `Runs on ${$("dataset").value}`, x: { label: `ε for one ${unit}, ${ADVERSARIES[tap][0].toLowerCase()} (log scale)`, log: true }, y: { label: "accuracy (%)", min: 0, max: 1, percent: true }, points, names, line, lane: "no ε", guide: guideOf(known.runs) });
}

// --- training ---------------------------------------------------------------------------------------------------------

async function train() {
  if (job) return;
  wrong("form-error", "");
  try { job = await ask("/api/train", { trade: asked() }); } catch (error) { wrong("form-error", error.message); return; }
  const rows = [], run = job.run;
  let rounds = values.rounds;
  buttons();
  say(job.before ? waiting(job.before) : "starting: compilation takes some seconds", !job.before);
  follow(job.id, {
    event: (event) => {
      if (event.text) say(event.text, true);
      if (event.stage === "training") say("compiling and training the first round", true);
      if (event.rounds) rounds = event.rounds;
      if (event.stage !== "round") return;
      rows.push(event);
      say(`round ${event.round + 1} of ${rounds}`);
      live(rows, run, rounds);
    },
    wait: (told) => { if (told.state === "queued") say(waiting(told.before)); },
    end: (told) => {
      job = null;
      buttons();
      say(told.state === "done" ? `done: accuracy ${percent(told.result.accuracy)} on the ${told.result.split} data${beside(told.result)}` : `${told.state}: ${told.message}`);
      if ($("live-chart")) $("live").firstChild.textContent = `Last training: ${run}`;
      knownNow();
    },
  });
  showJobs();
}
async function cancel() {
  if (!job) return;
  say("cancelling…");
  try { await ask(`/api/jobs/${job.id}/cancel`, {}); } catch (error) { wrong("form-error", error.message); }
}
function buttons() { $("start").disabled = job !== null; $("cancel").disabled = job === null; }
// What the training is doing; until its first round, which compiles, the seconds are counted.
let said = { text: "", since: 0, compiling: false };
function say(text, compiling = false) { said = { text, since: Date.now(), compiling }; $("state").textContent = text; }
setInterval(() => {
  const seconds = Math.floor((Date.now() - said.since) / 1000);
  if (job && said.compiling && seconds > 0) $("state").textContent = `${said.text} · ${seconds} s`;
}, 1000);
function live(rows, run, rounds) {
  if (!$("live-chart")) fill($("live"), el("h3", {}, `Training now: ${run}`), el("progress", { id: "live-bar" }), el("div", { id: "live-chart" }));
  $("live").firstChild.textContent = `Training now: ${run}`;
  $("live-bar").max = rounds; $("live-bar").value = rows.at(-1).round + 1;
  const accuracy = rows.filter((r) => r.accuracy !== null && r.accuracy !== undefined).map((r) => [r.round + 1, r.accuracy]);
  lines($("live-chart"), { title: "Accuracy so far", x: { label: "round (number)", whole: true, min: 0, max: rounds }, y: { label: "accuracy (%)", min: 0, max: 1, percent: true }, series: [{ name: run, points: accuracy }] });
}
