// The live page: the prompt line, generation, the address, and the app below.

import { App } from "./app.js";
import { Bar } from "./bar.js";
import { isDark } from "./color.js";
import { Client } from "./client.js";
import { h, openDialog, short } from "./dom.js";
import { definitions } from "./glossary.js";
import { toggleAblation } from "./intervention.js";
import { bindKeys, KEYS } from "./keyboard.js";
import { isFirstVisit, startTour } from "./tour.js";
import { fromHash, START, toHash } from "./store.js";

const $ = (id) => document.getElementById(id);
const client = new Client();
const UNDONE = ["prompt", "ids", "ablated", "cuts", "holds", "first", "last"];

function say(text, bad = false, ...offers) {
  $("status").replaceChildren(text, ...offers);
  $("status").title = text;
  $("status").classList.toggle("bad", bad);
}

function showHelp(info) {
  const dialog = openDialog(
    document.body,
    { class: "help" },
    h("h2", {}, "Keys"),
    h(
      "dl",
      {},
      KEYS.flatMap(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]),
    ),
    h(
      "p",
      {},
      "Alt-click an edge in the routing lens to cut it, or a feature to clamp it. Drag over ranked bars to " +
        "select a group. The URL holds the whole state.",
    ),
    h("h2", {}, "Terms"),
    definitions(h),
  );
  const tour = () => {
    dialog.close();
    startTour(info);
  };
  dialog.querySelector("form").prepend(h("button", { type: "button", id: "tour", onclick: tour }, "Tour"));
}

// What the run's saved analyses found, each in a line, with the rest folded away.
async function showResults(names) {
  const found = await Promise.all(
    names.map((name) => client.ask(`result ${name}`, `/api/results/${encodeURIComponent(name)}`)),
  );
  openDialog(
    document.body,
    { class: "results" },
    h("h2", {}, "Measured over evaluation text"),
    names.map((name, i) =>
      h(
        "details",
        {},
        h("summary", {}, h("strong", {}, name.replaceAll("_", " ")), ` ${found[i].headline}`),
        h("pre", {}, found[i].summary),
      ),
    ),
  );
}

// The registered views; a file that does not load is reported, and the page comes up without it.
async function ownViews(problems) {
  try {
    return (await import("./views/own.js")).OWN;
  } catch (error) {
    problems.push(`--view: ${error.message}`);
    return [];
  }
}

async function start() {
  const info = await client.ask("model", "/api/model");
  const problems = [];
  const own = await ownViews(problems);
  document.documentElement.dataset.theme = fromHash(location.hash).theme ?? "";
  let app = null;
  app = new App($("app"), {
    client,
    info,
    python: info.python,
    own,
    onerror(error) {
      if (!app) problems.push(error.message); // while the views are mounted
      say(error.message, true, ...(error.limit ? [offerCut(error.limit)] : []));
    },
  });
  window.explorer = app; // for the curious, and for the tests
  const { store } = app;
  new Bar($("bar"), app);
  document.title = `${info.name} – SRM explorer`;
  $("model").textContent = `${info.name}`;
  $("model").title =
    `${info.parameters.toLocaleString("en")} parameters, config ${info.config_hash}, ` +
    `tokenizer ${info.tokenizer}`;
  $("shape").textContent =
    `${info.shape.join(" · ")} · ` + `${(info.parameters / 1e6).toFixed(info.parameters < 1e7 ? 2 : 0)}M`;

  const weights = () => ({ checkpoint: store.get("checkpoint") });
  const run = async (request, changes) => {
    say("tracing …");
    const began = performance.now();
    if (await app.load(request, changes)) say(`traced in ${Math.round(performance.now() - began)} ms`);
    else app.grid.classList.toggle("stale", isEdited()); // they are about another prompt than the line
    markEdited();
  };
  const trace = (more = {}) => {
    const prompt = $("prompt").value;
    // past the end: the last token
    return run(
      { prompt, ...weights(), ...more },
      { prompt, token: info.max_tokens, rangeEnd: null, brush: [] },
    );
  };
  const offerCut = (limit) =>
    h(
      "button",
      {
        type: "button",
        id: "cut",
        onclick: async () => {
          await trace({ cut: true });
          $("prompt").value = app.trace.manifest.prompt;
          store.set({ prompt: app.trace.manifest.prompt });
          markEdited();
        },
      },
      `trace the first ${limit}`,
    );
  // What a link says, and the start for what it does not name.
  let opening = false;
  const open = async (hash) => {
    const next = { ...START, ...fromHash(hash) };
    next.prompt ||= info.prompts[0];
    $("prompt").value = next.prompt;
    opening = true;
    const { ids, prompt, checkpoint } = next;
    await run({ ...(ids.length ? { tokens: ids } : { prompt }), checkpoint }, next);
    requestAnimationFrame(() => {
      opening = false; // after the store has said what changed
    });
  };

  // What the line says, if it was changed since; else the trace's tokens, which its text may not give again.
  const isEdited = () => $("prompt").value !== store.get("prompt");
  const markEdited = () => $("prompt").classList.toggle("edited", isEdited());
  const given = () => (isEdited() ? { prompt: $("prompt").value } : { tokens: app.tokens() });
  let last = null; // { from, made }: what the last generation continued, and the tokens it made of it

  const generate = async (from = given()) => {
    if (app.isAsking("generate")) return client.cancel("generate");
    $("generate").textContent = "Stop";
    say("generating …");
    const began = performance.now();
    const made = await app.ask("generate", "/api/generate", {
      ...from,
      count: Math.max(1, Math.min(64, Number($("count").value) || 8)),
      temperature: Math.max(0, Number($("temperature").value) || 0),
      seed: seed(),
      ...(tolerance() ? { exit: tolerance() } : {}),
      ...weights(),
      ...($("intervened").checked && app.isIntervening() ? { intervention: app.intervention() } : {}),
    });
    $("generate").textContent = "Generate";
    if (made === undefined) say("stopped");
    if (!made) return;
    if (!made.added) return say(`the prompt has reached the limit of ${info.max_tokens} tokens`, true);
    const changes = { prompt: made.text, token: made.tokens.length - 1, rangeEnd: null, brush: [] };
    if (!(await app.load({ tokens: made.tokens, ...weights() }, changes))) return;
    last = { from, made: String(made.tokens) };
    $("prompt").value = made.text;
    markEdited();
    const levels =
      made.mean_levels === null
        ? ""
        : ` · ${made.mean_levels.toFixed(1)} of ${info.layers} ${info.level_name} used`;
    say(`${made.added} tokens in ${Math.round(performance.now() - began)} ms${levels}`);
  };
  const tolerance = () => (info.exits ? Math.max(0, Number($("exit").querySelector("input").value)) || 0 : 0);
  const seed = () => Math.max(0, Math.floor(Number($("seed").value)) || 0);
  // The same again by the next seed, in place of what was made last.
  const reroll = () => {
    $("seed").value = String(seed() + 1);
    return generate(last && !isEdited() && last.made === String(app.tokens()) ? last.from : given());
  };

  $("runs").hidden = !info.runs.length;
  $("model").hidden = info.runs.length > 0;
  $("runs").append(...info.runs.map((name) => h("option", { value: name }, name)));
  $("runs").value = info.name;
  $("runs").addEventListener("change", () => {
    location.href = `../${encodeURIComponent($("runs").value)}/${location.hash}`; // with prompt and selection
  });
  // Checkpoints as a time axis: the last is the model as it was opened.
  const steps = info.checkpoints;
  const slider = $("time").querySelector("input");
  $("time").hidden = steps.length < 2;
  slider.max = String(steps.length - 1);
  slider.addEventListener("input", () => {
    const at = Number(slider.value);
    const checkpoint = at === steps.length - 1 ? "" : steps[at];
    run({ tokens: app.tokens(), checkpoint }, { checkpoint });
  });
  const twin = $("twin").querySelector("input");
  $("twin").hidden = !info.twin;
  twin.addEventListener("change", () => {
    store.set({ twin: twin.checked });
    store.touch("twin wanted");
  });

  const toggleTheme = () => store.set({ theme: isDark() ? "light" : "dark" });
  $("trace").addEventListener("click", () => trace());
  $("generate").addEventListener("click", () => generate());
  $("reroll").addEventListener("click", reroll);
  $("theme").addEventListener("click", toggleTheme);
  $("help").addEventListener("click", () => showHelp(info));
  $("examples").append(
    ...info.prompts.map((prompt, i) => h("option", { value: String(i) }, shortened(prompt))),
  );
  $("examples").addEventListener("change", () => {
    $("prompt").value = info.prompts[Number($("examples").value)];
    $("examples").value = "";
    trace();
  });
  $("exit").hidden = !info.exits;
  $("results").hidden = !info.results.length;
  document.querySelector(".generate").style.display = info.generates ? "" : "none";
  $("results").addEventListener("click", () =>
    showResults(info.results).catch((error) => say(error.message, true)),
  );
  $("prompt").addEventListener("input", markEdited);
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    trace();
  });
  bindKeys(app, {
    help: () => showHelp(info),
    focusPrompt: () => $("prompt").select(),
    toggleTheme,
    ablate: (stream) => app.canIntervene() && toggleAblation(store, stream),
  });

  store.subscribe((changed, now) => {
    if (!app.trace) return;
    $("under").style.visibility = app.isIntervening() ? "visible" : "hidden"; // its room stays
    const hash = toHash(now);
    // a new prompt or intervention is a step that the browser's back undoes
    const isStep = !opening && UNDONE.some((key) => changed.has(key));
    history[isStep ? "pushState" : "replaceState"](null, "", hash ? `#${hash}` : location.pathname);
    const at = now.checkpoint ? steps.indexOf(now.checkpoint) : steps.length - 1;
    slider.value = String(at);
    $("time").querySelector("span").textContent = (steps[at] ?? "").replace("step-", "step ");
    twin.checked = now.twin;
    const range = now.rangeEnd === null ? "" : `–${now.rangeEnd}`;
    $("selection").textContent =
      `token ${now.token}${range} “${short(app.trace.strings[now.token], 14)}” · ` +
      `${app.trace.streamName(now.stream)} · L${now.layer}${app.trace.H ? ` · H${now.head}` : ""}`;
  });
  addEventListener("hashchange", () => open(location.hash));

  const isFirst = isFirstVisit();
  await open(location.hash);
  if (problems.length) say(problems.join("; "), true);
  document.documentElement.dataset.ready = "yes";
  if (isFirst) startTour(info);
}

function shortened(prompt) {
  const line = prompt.replace(/\s+/g, " ");
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

start().catch((error) => say(error.message, true));
