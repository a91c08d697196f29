// Shared by all pages: requests, elements, colours, jobs, the form of a defence, the table of ε, scripts.

export const $ = (id) => document.getElementById(id);

export function el(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (value === undefined || value === null) continue;
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key in made && key !== "list") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const fill = (where, ...children) => where.replaceChildren(...children.filter((c) => c !== null && c !== undefined));

// --- requests -----------------------------------------------------------------------------------------------------------

export class Refused extends Error {}

export async function ask(path, body, options = {}) {
  const given = { signal: options.signal };
  if (body !== undefined) {
    given.method = "POST";
    const raw = body instanceof Blob;
    given.headers = { "content-type": raw ? "application/octet-stream" : "application/json" };
    given.body = raw ? body : JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, given);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The lab does not respond: is `fedveil lab` still running?");
  }
  const text = await answer.text();
  let told;
  try { told = JSON.parse(text); } catch { told = { error: text.trim() }; }
  if (!answer.ok) throw new Refused(told.error || `The lab responded with status ${answer.status}.`);
  return told;
}

// Debounces: calls `work` after `wait` milliseconds without a new call. A new call aborts the running one.
export function latest(work, wait = 150) {
  let timer, under;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      if (under) under.abort();
      const mine = (under = new AbortController());
      try {
        await work(mine.signal);
      } catch (error) {
        if (error.name !== "AbortError" && !mine.signal.aborted) alertText(error.message);
      }
    }, wait);
  };
}

export function alertText(text) {
  const where = $("alert");
  where.hidden = !text;
  where.textContent = text || "";
}

export function wrong(id, text) {
  const where = $(id);
  where.hidden = !text;
  where.textContent = text || "";
}

// An id of this visit: of its requests for ε only the newest stays in the queue.
export const visit = Array.from(crypto.getRandomValues(new Uint8Array(8)), (b) => b.toString(16)).join("");

// --- numbers and names ------------------------------------------------------------------------------------------------

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e").replace(".0e", "e");
  return Number(value.toPrecision(digits)).toString();
}
export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
// The chance beside an accuracy, and why the training did not learn if it did not.
export const beside = ({ chance, learned, diagnosis }) => (chance === null || chance === undefined ? "" : ` (chance ${percent(chance)}${learned === false ? "; it did not learn" : ""}${diagnosis ? `: ${diagnosis}` : ""})`);

/** What a job that is not begun says of the jobs before it. */
export const waiting = (before) => `waiting: ${before} job${before === 1 ? "" : "s"} ahead`;

export const ADVERSARIES = {
  example: ["Observer inside the client, per example", "sees the gradient of every example (leakage type 2)"],
  client: ["Observer inside the client, per update", "sees the update before it is sent (leakage type 1)"],
  server: ["The server", "sees what each client sends (leakage type 0)"],
  broadcast: ["Other clients", "see the models that the server broadcasts"],
  release: ["Everyone else", "sees the published model"],
};
const STATES = { queued: "waiting", running: "running", done: "done", failed: "failed", cancelled: "cancelled" };

// --- colours ----------------------------------------------------------------------------------------------------------

const THEMES = { system: ["◐", "follow the system"], light: ["☀", "light"], dark: ["☾", "dark"] };
function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  $("theme").textContent = THEMES[name][0];
  $("theme").setAttribute("aria-label", `Colours: ${THEMES[name][1]}; press to change`);
  $("theme").title = `Colours: ${THEMES[name][1]}`;
}
function stored() {
  try { return localStorage.getItem("theme") in THEMES ? localStorage.getItem("theme") : "system"; } catch { return "system"; }
}
export function begin() {
  theme(stored());
  $("theme").addEventListener("click", () => {
    const names = Object.keys(THEMES);
    const next = names[(names.indexOf(stored()) + 1) % names.length];
    try { localStorage.setItem("theme", next); } catch { /* storage is disabled */ }
    theme(next);
  });
  const button = $("jobs-button");
  button.addEventListener("click", () => {
    $("jobs").hidden = !$("jobs").hidden;
    button.setAttribute("aria-expanded", String(!$("jobs").hidden));
    showJobs();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !$("jobs").hidden) { button.click(); button.focus(); }
  });
  showJobs();
  setInterval(showJobs, 3000);
}

// --- jobs -------------------------------------------------------------------------------------------------------------

let newsSeen = Date.now() / 1000;
export async function showJobs() {
  let told;
  try { told = await ask("/api/jobs"); } catch (error) { alertText(error.message); return; }
  const active = told.jobs.filter((job) => job.state === "queued" || job.state === "running");
  $("jobs-button").textContent = active.length ? `Jobs: ${active.length}` : "Jobs";
  for (const news of told.news) {
    if (news.time > newsSeen) { newsSeen = news.time; if (!/: cancelled;/.test(news.text)) alertText(news.text); }
  }
  if (!$("jobs").hidden) fill($("jobs"), jobTable(told), newsList(told));
}
function jobTable(told) {
  if (!told.jobs.length) return el("p", { class: "hint" }, "No jobs yet.");
  const rows = told.jobs.slice(0, 10).map((job) => el("tr", {},
    el("td", {}, job.title),
    el("td", { class: `state-${job.state}` }, STATES[job.state] + (job.before ? ` (${job.before} ahead of it)` : "")),
    el("td", {}, job.message),
    el("td", {}, job.state === "queued" || job.state === "running"
      ? el("button", { type: "button", class: "quiet", onclick: () => ask(`/api/jobs/${job.id}/cancel`, {}).then(showJobs) }, "Cancel")
      : "")));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {},
    ...["Job", "State", "Message", ""].map((t) => el("th", {}, t)))), el("tbody", {}, ...rows)));
}
function newsList(told) {
  const limits = told.limits;
  const workers = told.workers.map((w) => `${w.pool} ${w.pid}${w.job ? " (busy)" : w.ready ? "" : " (starting)"}`).join(", ");
  return el("div", {},
    el("p", { class: "hint" }, `Workers: ${workers}. Limits: ${Math.round(limits.seconds / 60)} minutes and `
      + `${number(limits.memory / 1e9)} GB per job, ${limits.waiting} waiting jobs.`),
    told.news.length ? el("ul", { class: "hint" }, ...told.news.slice(-5).reverse().map((n) =>
      el("li", {}, `${new Date(n.time * 1000).toLocaleTimeString()}: ${n.text}`))) : null);
}

// Follows a job: calls `event` for every event, `wait` while nothing happens, and `end` once. Returns a function that stops it.
export function follow(id, { event, wait, end }) {
  const source = new EventSource(`/api/jobs/${id}/events`);
  source.onmessage = (message) => event(JSON.parse(message.data));
  source.addEventListener("wait", (message) => wait && wait(JSON.parse(message.data)));
  source.addEventListener("end", (message) => { source.close(); end(JSON.parse(message.data)); showJobs(); });
  let failures = 0;
  source.onopen = () => { failures = 0; };
  source.onerror = () => {
    if (++failures < 5) return;
    source.close();
    end({ id, state: "failed", message: "The lab does not respond any more." });
  };
  return () => source.close();
}

// --- forms ------------------------------------------------------------------------------------------------------------

export function options(select, entries, chosen) {
  fill(select, ...entries.map((e) => el("option", { value: e.value, disabled: e.disabled, title: e.title || "" }, e.text || e.value)));
  if (chosen !== undefined && chosen !== null) select.value = chosen;
}

export const wholeOf = (id) => (/^\s*\d+\s*$/.test($(id).value) ? Number($(id).value) : $(id).value);

// The form of a defence: its name, the keys of its strength, and all others under "More keys". `get()` returns its config section.
export class DefenseForm {
  constructor(where, defenses, start, changed, sliders = false) {
    this.where = where; this.defenses = defenses; this.changed = changed; this.sliders = sliders;
    this.values = { ...start };
    this.draw();
  }
  get() {
    const info = this.info();
    const made = { name: info.name };
    for (const key of info.keys) {
      const value = this.values[key.key];
      if (value === undefined || value === null || value === "" || value === key.default) continue;
      made[key.key] = value;
    }
    return made;
  }
  info() { return this.defenses.find((d) => d.name === this.values.name) || this.defenses[0]; }
  draw() {
    const info = this.info();
    const pick = el("select", { id: "defense-name" });
    options(pick, this.defenses.map((d) => ({ value: d.name, title: d.summary, text: d.name + (d.private ? "" : d.name === "none" ? "" : " (no ε)") })), info.name);
    pick.addEventListener("change", () => { this.values = { name: pick.value }; this.draw(); $("defense-name").focus(); this.changed(); });
    const main = info.keys.filter((k) => k.main), more = info.keys.filter((k) => !k.main);
    const rows = this.sliders ? el("div", {}, ...main.map((k) => this.slider(k))) : el("div", { class: "grid" }, ...main.map((k) => this.field(k)));
    fill(this.where,
      el("label", {}, "Defence ", pick), el("p", { class: "hint" }, info.summary), rows,
      more.length ? el("details", {}, el("summary", {}, "More keys"), el("div", { class: "grid" }, ...more.map((k) => this.field(k)))) : null);
  }
  slider(key) {
    if (key.type !== "number" || !["noise", "clip", "epsilon", "scale", "share", "server_noise"].includes(key.key)) return this.field(key);
    const high = { noise: 20, clip: 20, epsilon: 50, scale: 1, share: 0.99, server_noise: 20 }[key.key];
    return slider({ id: `defense-${key.key}`, label: key.key, unit: key.unit, min: key.gt !== undefined ? high / 100 : 0, max: high, step: high / 100,
      value: this.values[key.key] ?? key.default, set: (value) => { this.values[key.key] = value; this.changed(); } });
  }
  field(key) {
    const id = `defense-${key.key}`, value = this.values[key.key] ?? key.default;
    let input;
    if (key.type === "choice") {
      input = el("select", { id });
      options(input, key.choices.map((c) => ({ value: c })), value);
      input.addEventListener("change", () => this.set(key, input.value));
    } else if (key.type === "switch") {
      input = el("input", { id, type: "checkbox", checked: value });
      input.addEventListener("change", () => this.set(key, input.checked));
    } else {
      input = el("input", { id, type: "number", step: key.type === "whole" ? "1" : "any", value: value ?? "", placeholder: key.optional ? "unset" : "",
        min: key.ge ?? key.gt, max: key.le ?? key.lt });
      input.addEventListener("input", () => this.set(key, input.value === "" ? null : Number(input.value)));
    }
    return el("label", { class: "field" }, key.key.replaceAll("_", " "), " ", input, key.unit ? el("span", { class: "hint" }, key.unit) : null);
  }
  set(key, value) { this.values[key.key] = value; this.changed(); }
}

// A slider with a number field; the field accepts values beyond the ends of the slider.
export function slider({ id, label, unit, min, max, step, value, set, whole = false }) {
  const range = el("input", { type: "range", min, max, step, id: `${id}-range`, "aria-label": `${label}, slider` });
  const field = el("input", { type: "number", id, min: whole ? min : undefined, step: whole ? 1 : "any" });
  range.value = value; field.value = value;
  range.addEventListener("input", () => { field.value = range.value; set(Number(range.value)); });
  field.addEventListener("input", () => { if (field.value !== "") { range.value = field.value; set(Number(field.value)); } });
  return el("div", { class: "slider" }, el("label", { htmlFor: id }, label, unit ? el("span", { class: "hint" }, unit) : null), range, field);
}

// --- ε ------------------------------------------------------------------------------------------------------

export function accountNote(told) {
  const sampling = told.sampling === "poisson" ? "Poisson" : told.sampling;
  return `After ${told.rounds} rounds, δ = ${number(told.delta)}. Sampling of clients: ${sampling}; of batches: ${told.batching}. The smallest client has ${told.smallest} examples.`;
}

function epsilonCell(entry) {
  if (!entry) return el("td", { class: "number" }, "–");
  if (entry.epsilon === null) return el("td", { class: "number none" }, "no ε");
  return el("td", { class: "number" }, el("span", { class: "big" }, number(entry.epsilon)),
    el("div", { class: "hint", title: entry.means }, entry.certified ? entry.adjacency : `${entry.adjacency}, not certified`),
    entry.weak ? el("div", { class: "weak", title: entry.means }, "hardly any protection") : null);
}

export function seatsTable(told, here) {
  const find = (tap, unit) => told.seats.find((s) => s.tap === tap && s.unit === unit);
  const taps = ["example", "client", "server", "broadcast", "release"];
  const rows = taps.map((tap) => el("tr", { class: tap === here ? "here" : "" },
    el("th", { scope: "row" }, ADVERSARIES[tap][0], el("div", { class: "hint" }, ADVERSARIES[tap][1])),
    epsilonCell(find(tap, "example")), epsilonCell(find(tap, "client"))));
  return el("div", {},
    el("div", { class: "scroll" }, el("table", { class: "seats" },
      el("thead", {}, el("tr", {}, el("th", {}, "Adversary"), el("th", { class: "number" }, "ε, one example"), el("th", { class: "number" }, "ε, one client"))),
      el("tbody", {}, ...rows))),
    why(told, taps), claims(told));
}
function why(told, taps) {
  const lines = [], assumed = [];
  for (const tap of taps) for (const unit of ["example", "client"]) {
    const entry = told.seats.find((s) => s.tap === tap && s.unit === unit);
    if (!entry) continue;
    lines.push(el("li", {}, `${ADVERSARIES[tap][0]}, one ${unit}: ${entry.epsilon === null ? "no ε" : `ε = ${number(entry.epsilon)}`} – ${entry.reason}`));
    for (const text of entry.assumptions) if (!assumed.includes(text)) assumed.push(text);
  }
  return el("details", {}, el("summary", {}, "Reasons and assumptions"), el("ul", {}, ...lines),
    assumed.length ? el("h3", {}, "Assumptions of the certified values") : null, el("ul", {}, ...assumed.map((text) => el("li", {}, text))));
}
function claims(told) {
  if (!told.claims.length) return null;
  return el("details", {}, el("summary", {}, "What the papers claim (not certified)"),
    el("ul", {}, ...told.claims.map((c) => el("li", {}, `${ADVERSARIES[c.tap]?.[0] || c.tap}, one ${c.unit}, rule ${c.rule}: ${c.epsilon === null ? "no ε" : `ε = ${number(c.epsilon)}`}${c.reason ? ` – ${c.reason}` : ""}`))));
}

// --- scripts ----------------------------------------------------------------------------------------------------------

let tab = null;
export function showScripts(where, entries) {
  if (!entries.some((e) => e.id === tab)) tab = entries[0]?.id;
  const body = el("div");
  const draw = () => {
    const entry = entries.find((e) => e.id === tab);
    if (!entry) return;
    fill(body, copyBox("Command line", entry.script.cli, "cli", "cli"), copyBox(entry.saved ? `TOML: ${entry.script.file}; repeat the run with ${entry.script.with_file}` : `TOML: save as ${entry.script.file}, then ${entry.script.with_file}`, entry.script.toml, "toml", "toml"));
    for (const button of tabs.children) button.setAttribute("aria-selected", String(button.dataset.id === tab));
  };
  const tabs = el("div", { class: "tabs", role: "tablist" }, ...entries.map((e) => {
    const made = el("button", { type: "button", role: "tab", class: "quiet", onclick: () => { tab = e.id; draw(); } }, e.text);
    made.dataset.id = e.id;
    return made;
  }));
  fill(where, entries.length > 1 ? tabs : null, body);
  draw();
}
function copyBox(title, text, id, kind) {
  const button = el("button", { type: "button", class: "quiet", "aria-label": `Copy: ${title}` }, "Copy");
  const pre = el("pre", { class: kind, id: `script-${id}`, tabIndex: 0 }, text);
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch {
      const range = document.createRange(); range.selectNodeContents(pre);
      getSelection().removeAllRanges(); getSelection().addRange(range);
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected: press Ctrl-C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return el("div", { class: "script" }, el("div", { class: "head" }, el("span", { class: "hint" }, title), button), pre);
}
