// The Leak page: a picture, a client, a defence, an adversary; the live attack without and with the defence, and ε.
import { $, DefenseForm, ADVERSARIES, Refused, accountNote, alertText, ask, begin, el, fill, follow, latest, number, options, seatsTable, showJobs, showScripts, visit, waiting, wholeOf, wrong } from "./common.js";
import { lines } from "./chart.js";

const PACE = 45; // milliseconds for which a step is shown at least
const NAMES = { open: "Without defence", defended: "With defence" };
const FIELDS = ["batch", "local_steps", "iterations"];
const SIZES = ["clients", "per_round", "rounds"];
let choices, defense, picture, chosenPng = null, first = 0, total = 0;
let job = null, stop = null;
let attack = null; // the shown attack: true pictures, frames, settings

begin();
start().catch((error) => alertText(error.message));

async function start() {
  choices = await ask("/api/choices");
  const from = choices.start.leak;
  picture = { ...from.picture };
  const sets = choices.datasets.filter((d) => choices.picture_sets.includes(d.name));
  options($("dataset"), sets.map((d) => ({ value: d.name, disabled: !d.here, title: d.summary, text: d.here ? d.name : `${d.name} (not installed: ${d.get})` })), picture.dataset);
  if (!sets.find((d) => d.name === picture.dataset)?.here) { picture = { ...picture, dataset: "digits" }; $("dataset").value = "digits"; }
  options($("model"), choices.models.filter((m) => choices.leak_models.includes(m.name)).map((m) => ({ value: m.name, title: m.summary })), from.model);
  options($("tap"), choices.taps.map((t) => ({ value: t.name, title: t.summary, text: ADVERSARIES[t.name][0] })), from.tap);
  options($("attack"), choices.attacks.map((a) => ({ value: a.name, title: a.summary })), from.attack);
  for (const id of FIELDS) $(id).value = from[id];
  for (const id of SIZES) $(id).value = from.federation[id];
  defense = new DefenseForm($("defense"), choices.defenses, from.defense, changed);
  for (const id of [...FIELDS, ...SIZES]) $(id).addEventListener("input", changed);
  for (const id of ["model", "tap", "attack"]) $(id).addEventListener("change", changed);
  $("dataset").addEventListener("change", () => { picture = { dataset: $("dataset").value, index: 0, upload: picture.upload ?? null, label: 0 }; first = 0; $("label").value = 0; gallery(); changed(); });
  $("previous").addEventListener("click", () => { first = Math.max(0, first - 24); gallery(); });
  $("next").addEventListener("click", () => { first = first + 24 < total ? first + 24 : first; gallery(); });
  $("form").addEventListener("submit", (event) => { event.preventDefault(); launch(); });
  $("cancel").addEventListener("click", cancel);
  $("frame").addEventListener("input", () => { attack.shown = Number($("frame").value); attack.live = false; draw(); });
  uploads();
  blankSides();
  await gallery();
  changed();
}

function asked() {
  const sizes = Object.fromEntries(SIZES.map((id) => [id, wholeOf(id)]));
  const own = Object.fromEntries(FIELDS.map((id) => [id, wholeOf(id)]));
  return { picture, model: $("model").value, defense: defense.get(), attack: $("attack").value, tap: $("tap").value, ...own, federation: sizes };
}

// --- pictures ---------------------------------------------------------------------------------------------------------

async function gallery() {
  $("which").textContent = "loading…";
  let told;
  try {
    told = await ask(`/api/gallery?dataset=${encodeURIComponent(picture.dataset)}&first=${first}`);
  } catch (error) { $("which").textContent = ""; fill($("gallery"), el("p", { class: "wrong" }, error.message)); return; }
  total = told.total;
  fill($("gallery"), ...told.pictures.map((p) => {
    const input = el("input", { type: "radio", name: "picture", value: p.index, checked: picture.upload ? false : p.index === picture.index, "aria-label": `Picture ${p.index}, class ${p.label}` });
    input.addEventListener("change", () => { picture = { dataset: picture.dataset, index: p.index, upload: null, label: 0 }; $("own").hidden = true; $("file").value = ""; chosenPng = p.png; say(told); changed(); preview(); });
    if (input.checked) chosenPng = p.png;
    return el("label", { title: `Picture ${p.index}, class ${p.label}` }, input, el("img", { src: p.png, alt: "" }));
  }));
  say(told);
  if (picture.upload) resized(); else preview();
  $("previous").disabled = first === 0;
  $("next").disabled = first + 24 >= total;
}
function say(told) {
  const chosen = told.pictures.find((p) => p.index === picture.index);
  const end = Math.min(first + told.pictures.length, told.total);
  const which = picture.upload ? "your picture is selected" : chosen ? `picture ${chosen.index} is selected, class ${chosen.label}` : `picture ${picture.index} is selected`;
  $("which").textContent = `${first}–${end - 1} of ${told.total}; ${which}`;
}

function uploads() {
  $("file").addEventListener("change", () => { if ($("file").files[0]) upload($("file").files[0]); });
  const drop = $("drop");
  for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
  for (const name of ["dragleave", "drop"]) drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.remove("over"); });
  drop.addEventListener("drop", (event) => { if (event.dataTransfer.files[0]) upload(event.dataTransfer.files[0]); });
  $("label").addEventListener("input", () => { picture = { ...picture, label: wholeOf("label") }; changed(); });
  $("drop-own").addEventListener("click", () => { picture = { dataset: picture.dataset, index: 0, upload: null, label: 0 }; $("own").hidden = true; $("file").value = ""; first = 0; gallery(); changed(); $("file").focus(); });
}
async function upload(file) {
  wrong("upload-error", "");
  if (file.size > 5_000_000) { wrong("upload-error", `upload: got ${file.size.toLocaleString("en")} bytes; takes at most 5,000,000 bytes`); $("file").value = ""; return; }
  let told;
  try { told = await ask("/api/uploads", new Blob([file])); } catch (error) { wrong("upload-error", error.message); $("file").value = ""; return; }
  picture = { dataset: picture.dataset, index: picture.index, upload: told.upload, label: wholeOf("label") };
  $("own").hidden = false;
  for (const input of document.querySelectorAll("#gallery input")) input.checked = false;
  $("which").textContent = "your picture is selected";
  await resized(told.png);
  changed();
}
// Shows the upload as it is attacked: in the size and the colours of the dataset.
async function resized(whole = chosenPng) {
  const asked = picture.upload;
  try {
    const told = await ask(`/api/uploads/${asked}?dataset=${encodeURIComponent(picture.dataset)}`);
    if (picture.upload !== asked) return;
    chosenPng = told.png;
    $("own-size").textContent = `attacked at ${told.size}`;
  } catch (error) { chosenPng = whole; $("own-size").textContent = ""; wrong("upload-error", error.message); }
  $("own-picture").src = chosenPng;
  preview();
}

// --- ε and scripts ----------------------------------------------------------------------------------------------------

const account = latest(async (signal) => {
  $("seats").classList.add("waiting");
  try {
    const told = await ask("/api/account", { leak: asked(), page: visit }, { signal });
    $("account-note").textContent = `A training in which every client uses the settings above. ${accountNote(told)}`;
    showEpsilon(told);
    fill($("seats"), seatsTable(told, $("tap").value));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    $("account-note").textContent = "";
    fill($("epsilon"));
    fill($("seats"), el("p", { class: "wrong" }, error.message));
  }
  $("seats").classList.remove("waiting");
});
function showEpsilon(told) {
  const tap = $("tap").value;
  const entry = told.seats.find((s) => s.tap === tap && s.unit === "example");
  if (!entry || entry.epsilon === null) {
    fill($("epsilon"), el("strong", { class: "none" }, "no ε"), ` is certified against this adversary: ${entry ? entry.reason : "the ledger has no entry for it"}`);
    return;
  }
  fill($("epsilon"), el("strong", {}, `ε = ${number(entry.epsilon)}`), ` for one example against this adversary, δ = ${number(entry.delta)} (${entry.adjacency}${entry.certified ? ", certified" : ", not certified"}). ${entry.means}`);
}
const scripts = latest(async (signal) => {
  try {
    const told = await ask("/api/leak/script", { leak: asked() }, { signal });
    wrong("form-error", "");
    $("start").disabled = job !== null;
    showScripts($("scripts"), [
      { id: "defended", text: "Attack, defended", script: told.defended },
      { id: "open", text: "Attack, no defence", script: told.open },
      { id: "account", text: "ε", script: told.account },
    ]);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    wrong("form-error", error.message);
    fill($("scripts"), el("p", { class: "hint" }, "These settings are not valid."));
  }
});
function changed() {
  $("iterations-hint").textContent = $("attack").value === "inverting" ? "of Adam; the paper uses 4800" : "of L-BFGS, up to 20 steps each";
  stale();
  account();
  scripts();
}

// Tells the user when the settings differ from those of the shown attack.
function stale() {
  if (job || !attack?.ended) return;
  const same = JSON.stringify(asked()) === JSON.stringify(attack.asked);
  $("sides").classList.toggle("waiting", !same);
  state(same ? "" : "the settings have changed since this attack: attack again to see their effect");
}

// --- the attack -------------------------------------------------------------------------------------------------------

async function launch() {
  if (job) return;
  const what = asked();
  wrong("form-error", "");
  try {
    job = await ask("/api/leak", { leak: what });
  } catch (error) { wrong("form-error", error.message); job = null; return; }
  $("sides").classList.remove("waiting");
  attack = { truth: null, labels: null, frames: [], shown: -1, live: true, asked: what, ended: null, seen: { open: [], defended: [] } };
  if (what.defense.name === "none") attack.only = true;
  buttons();
  blankSides();
  $("replay").hidden = true;
  fill($("chart"));
  state(job.before ? waiting(job.before) : "starting");
  stop = follow(job.id, { event: heard, wait: (told) => { if (told.state === "queued") state(waiting(told.before)); }, end: ended });
  showJobs();
}
async function cancel() {
  if (!job) return;
  state("cancelling…");
  try { await ask(`/api/jobs/${job.id}/cancel`, {}); } catch (error) { wrong("form-error", error.message); }
}
function buttons() { $("start").disabled = job !== null; $("cancel").disabled = job === null; }
// What the job is doing; a step that says nothing for a while, such as compiling, counts its seconds.
let said = { text: "", since: 0 };
function state(text) { said = { text, since: Date.now() }; $("state").textContent = text; }
setInterval(() => {
  const seconds = Math.floor((Date.now() - said.since) / 1000);
  if (job && said.text && !attack?.frames.length && seconds > 0) $("state").textContent = `${said.text} · ${seconds} s`;
}, 1000);

function heard(event) {
  if (event.stage === "truth") { attack.truth = event.pictures; attack.labels = event.labels; blankSides(); }
  if (event.text) state(event.text);
  if (event.stage !== "step") return;
  attack.frames.push(event);
  if (!attack.playing) { attack.playing = true; play(); }
}
// Steps arrive in bursts. Each is shown for a moment; a long backlog is skipped, so that the picture stays live.
function play() {
  const behind = attack.frames.length - 1 - attack.shown;
  if (behind > 0 && attack.live) {
    attack.shown += behind > 120 ? Math.ceil(behind / 120) : 1;
    draw();
  }
  if (attack.live && attack.shown < attack.frames.length - 1) setTimeout(play, PACE);
  else { attack.playing = false; if (attack.ended && attack.live) finish(); }
}
function ended(told) {
  attack.ended = told;
  job = null;
  buttons();
  if (!attack.playing) finish();
}
function finish() {
  const told = attack.ended;
  const words = { done: "done", cancelled: "cancelled", failed: "failed" };
  state(told.state === "done" ? `done: attack ${number(told.result.seconds)} s, compilation ${number(told.result.compile_seconds)} s` : `${words[told.state]}${told.message && told.message !== told.state ? `: ${told.message}` : ""}`);
  if (told.state === "failed") wrong("form-error", told.message);
  draw();
}

// Shows the selected picture before an attack. A running attack keeps its own.
function preview() {
  if (job) return;
  attack = null;
  $("sides").classList.remove("waiting");
  $("replay").hidden = true;
  fill($("chart"));
  $("state").textContent = "";
  blankSides();
}
function sideOf(side) { return document.querySelector(`.side[data-side="${side}"]`); }
function blankSides() {
  const sides = ["open", "defended"].map((side, place) => {
    const name = side === "open" ? NAMES.open : attack ? (attack.only ? "No defence chosen" : `With ${attack.asked.defense.name}`) : NAMES.defended;
    const made = el("div", { class: `side side${place}` }, el("h2", {}, name));
    made.dataset.side = side;
    const truth = attack?.truth;
    const pairs = el("div", { class: truth && truth.flat().length > 1 ? "pairs" : "pairs single" });
    (truth || [[chosenPng]]).forEach((one, a) => one.forEach((png, e) => {
      const figure = el("figure", { class: "pair" },
        el("div", {}, png ? el("img", { src: png, alt: truth ? `True picture, class ${attack.labels[a][e]}` : "The selected picture" }) : el("div", { class: "blank" }), el("span", {}, "truth")),
        el("div", {}, el("img", { class: "found", alt: "Reconstructed picture", hidden: true }), el("div", { class: "blank" }), el("span", {}, "reconstructed")),
        el("figcaption"));
      figure.dataset.place = `${a}-${e}`;
      pairs.append(figure);
    }));
    made.append(pairs, el("p", { class: "verdict", role: "status" }), el("dl", { class: "figures" }));
    return made;
  });
  fill($("sides"), ...sides);
}

// Shows the newest step of each attack up to the chosen one.
function draw() {
  if (!attack || !attack.truth) return;
  const upto = attack.frames.slice(0, attack.shown + 1), last = {};
  for (const frame of upto) last[`${frame.side}/${frame.attack}`] = frame;
  for (const side of ["open", "defended"]) drawSide(side, Object.values(last).filter((f) => f.side === side));
  $("replay").hidden = attack.frames.length < 2;
  $("frame").max = attack.frames.length - 1;
  $("frame").value = attack.shown;
  const now = upto.at(-1);
  $("frame-text").textContent = now ? `${attack.shown + 1} of ${attack.frames.length}: ${now.evaluations} gradient evaluations` : "";
  const whole = attack.ended && attack.shown >= attack.frames.length - 1;
  if (whole || !attack.drawn || Date.now() - attack.drawn > 400) { attack.drawn = Date.now(); chart(upto); }
}
function drawSide(side, frames) {
  const where = sideOf(side);
  if (!where || !frames.length) { if (where && attack.ended) verdict(where, side); return; }
  for (const frame of frames) frame.pictures.forEach((png, e) => {
    const figure = where.querySelector(`[data-place="${frame.attack}-${e}"]`);
    if (!figure) return;
    const image = figure.querySelector("img.found");
    image.src = png; image.hidden = false;
    image.alt = `Reconstructed picture, SSIM ${frame.ssim[e].toFixed(2)}`;
    figure.querySelector(".blank")?.remove();
    figure.querySelector("figcaption").textContent = `SSIM ${frame.ssim[e].toFixed(2)}; label ${frame.labels[e]} (true: ${attack.labels[frame.attack][e]})`;
  });
  const scores = frames.flatMap((f) => f.ssim);
  const lead = frames.reduce((a, b) => (a.evaluations > b.evaluations ? a : b));
  fill(where.querySelector(".figures"),
    el("dt", {}, scores.length > 1 ? "mean SSIM" : "SSIM"), el("dd", {}, `${(scores.reduce((a, b) => a + b, 0) / scores.length).toFixed(3)} (1 = identical)`),
    el("dt", {}, "gradient distance"), el("dd", {}, `${number(lead.distance)} (squared)`),
    el("dt", {}, "iteration"), el("dd", {}, `${lead.iteration}, ${lead.evaluations} gradient evaluations`));
  verdict(where, side);
}
function verdict(where, side) {
  const line = where.querySelector(".verdict"), told = attack.ended;
  line.className = "verdict";
  if (!told || attack.shown < attack.frames.length - 1) { line.textContent = ""; return; }
  if (told.state !== "done") { line.textContent = told.state === "cancelled" ? "Cancelled." : "Failed: see the message above."; return; }
  const result = told.result[side];
  if (!result) { line.textContent = "Choose a defence to see the difference."; return; }
  const rate = result.success_rate, count = result.pictures;
  if (rate > 0) {
    line.classList.add("leaks");
    line.textContent = count > 1 ? `Leaks: ${Math.round(rate * count)} of ${count} pictures were reconstructed.` : "Leaks: the picture was reconstructed.";
    if (side === "defended") line.textContent += " The defence does not protect against this adversary.";
  } else {
    line.classList.add(side === "defended" ? "holds" : "none");
    line.textContent = side === "defended" ? "This attack failed. A failed attack proves nothing; a certified ε does." : "This attack failed; another may succeed.";
  }
  if (rate > 0 || !(result.label_success_rate > 0)) return;
  const right = Math.round(result.label_success_rate * count), guess = `a guess is right 1 time in ${Math.round(1 / result.label_guess_rate)}`;
  line.textContent += result.labels_found ? ` It did find ${count > 1 ? `${right} of ${count} labels` : "the label"} (${guess}).` : ` ${count > 1 ? `${right} of ${count} labels are` : "The label is"} right, which a guess may be too (${guess}).`;
}
function chart(upto) {
  const series = ["open", "defended"].filter((s) => !(s === "defended" && attack.only)).map((side) => {
    const best = {}, points = [];
    for (const f of upto) if (f.side === side) {
      best[f.attack] = f.ssim.reduce((a, b) => a + b, 0) / f.ssim.length;
      points.push([f.evaluations, Object.values(best).reduce((a, b) => a + b, 0) / Object.values(best).length]);
    }
    return { name: side === "open" ? NAMES.open : `With ${attack.asked.defense.name}`, points: points.sort((a, b) => a[0] - b[0]) };
  });
  lines($("chart"), { title: "Similarity of the reconstructed picture", x: { label: "gradient evaluations (log scale)", log: true }, y: { label: "SSIM (1 = identical)", min: Math.min(0, ...series.flatMap((s) => s.points.map((p) => p[1]))), max: 1 }, series, guide: { y: 0.9, text: "counts as reconstructed from 0.9" } });
}
