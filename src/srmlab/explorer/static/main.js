// The live page: the head with its controls, the address, and the app below.

import { App } from "./app.js";
import { Bar } from "./bar.js";
import { isDark } from "./color.js";
import { Client } from "./client.js";
import { h, openDialog } from "./dom.js";
import { generation } from "./generation.js";
import { definitions } from "./glossary.js";
import { toggleAblation } from "./intervention.js";
import { bindKeys, KEYS } from "./keyboard.js";
import { Prompt } from "./prompt.js";
import { fromHash, toHash } from "./store.js";
import { isFirstVisit, startTour } from "./tour.js";

const $ = (id) => document.getElementById(id);
const client = new Client();
const UNDONE = ["prompt", "ids", "ablated", "cuts", "holds", "first", "last"];

let complaint = null; // { kind, isGone }: the question whose failure the line of status is about

function say(text, bad = false, ...offers) {
  complaint = null;
  $("status").replaceChildren(text, ...offers);
  $("status").title = text;
  $("status").classList.toggle("bad", bad);
}

function showHelp(app, info) {
  const dialog = openDialog(
    document.body,
    { class: "help" },
    h(
      "section",
      {},
      h("h2", {}, "Keys"),
      h(
        "dl",
        {},
        KEYS.flatMap(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, app.said(what))]),
      ),
      h(
        "p",
        {},
        "Alt-click an edge in the routing lens to cut it, or a feature to clamp it. Drag over ranked bars to " +
          "select a group. The URL holds the whole state.",
      ),
    ),
    h("section", {}, h("h2", {}, "Terms"), definitions(h, app.isBoard)),
  );
  const tour = () => {
    dialog.close();
    startTour(info);
  };
  dialog.querySelector("form").prepend(h("button", { type: "button", id: "tour", onclick: tour }, "Tour"));
}

// What the run's saved analyses found, each in a line with how much text it is of; the rest is folded away.
async function showResults(names) {
  const found = await Promise.all(
    names.map((name) => client.ask(`result ${name}`, `/api/results/${encodeURIComponent(name)}`)),
  );
  openDialog(
    document.body,
    { class: "results" },
    h("h2", {}, "Measured over evaluation text"),
    names.map((name, i) => {
      const { headline, evidence, summary } = found[i];
      const said = ` ${headline} (${evidence.split(" in ")[0]})`;
      const title = h("summary", {}, h("strong", {}, name.replaceAll("_", " ")), said);
      return h("details", {}, title, h("pre", {}, summary));
    }),
    h(
      "p",
      { class: "dim" },
      "Each opens: all its numbers with their standard errors and, if measured, untrained twins.",
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

// What the model is, and which of several runs it is.
function showModel(info) {
  document.title = `${info.name} – SRM explorer`;
  $("model").textContent = `${info.name}`;
  $("model").title =
    `${info.parameters.toLocaleString("en")} parameters, config ${info.config_hash}, ` +
    `tokenizer ${info.tokenizer}`;
  $("shape").textContent =
    `${info.shape.join(" · ")} · ` + `${(info.parameters / 1e6).toFixed(info.parameters < 1e7 ? 2 : 0)}M`;
  $("runs").hidden = !info.runs.length;
  $("model").hidden = info.runs.length > 0;
  $("runs").append(...info.runs.map((name) => h("option", { value: name }, name)));
  $("runs").value = info.name;
  $("runs").addEventListener("change", () => {
    const { ids, checkpoint, ...kept } = fromHash(location.hash); // the prompt, but no ids of this tokenizer
    location.href = `../${encodeURIComponent($("runs").value)}/#${toHash(kept)}`;
  });
}

// Checkpoints as a time axis, whose last is the model as it was opened; and an untrained twin beside it.
function otherWeights(app, info, prompt) {
  const { store } = app;
  const steps = info.checkpoints;
  const slider = $("time").querySelector("input");
  $("time").hidden = steps.length < 2;
  slider.max = String(steps.length - 1);
  slider.addEventListener("input", () => {
    const at = Number(slider.value);
    app.goToCheckpoint(at === steps.length - 1 ? "" : steps[at]);
  });
  app.goToCheckpoint = (checkpoint) =>
    prompt.run({ tokens: app.tokens(), checkpoint }, { checkpoint }).then(show);
  const twin = $("twin").querySelector("input");
  $("twin").hidden = !info.twin;
  twin.addEventListener("change", () => {
    store.set({ twin: twin.checked });
    store.touch("twin wanted");
  });
  // without an answer the slider goes back to the weights that are shown
  function show() {
    if (app.isAsking("trace")) return;
    const checkpoint = store.get("checkpoint");
    const at = checkpoint ? steps.indexOf(checkpoint) : steps.length - 1;
    slider.value = String(at);
    $("time").querySelector("span").textContent = (steps[at] ?? "").replace("step-", "step ");
    twin.checked = store.get("twin");
  }
  store.subscribe(show);
}

// The whole state in the address, and the selection in words.
function follow(app, prompt) {
  app.store.subscribe((changed, now) => {
    if (!app.trace) return;
    $("under").style.visibility = app.isIntervening() ? "visible" : "hidden"; // its room stays
    const hash = toHash(now);
    // a new prompt or intervention is a step that the browser's back undoes
    const isStep = !prompt.opening && UNDONE.some((key) => changed.has(key));
    // until a link's trace is there, the address is of what comes, and the page of what was
    if (!prompt.opening?.isAwaited)
      history[isStep ? "pushState" : "replaceState"](null, "", hash ? `#${hash}` : location.pathname);
    const range = now.rangeEnd === null ? "" : ` to ${app.trace.label(now.rangeEnd)}`;
    const weights = now.checkpoint && $("time").hidden ? `${now.checkpoint.replace("-", " ")} · ` : "";
    $("selection").textContent =
      `${weights}${app.trace.manifest.puzzle ? "" : "token "}${app.trace.label(now.token)}${range} · ` +
      `${app.trace.streamName(now.stream)} · L${now.layer}${app.trace.H ? ` · H${now.head}` : ""}`;
  });
  // by the event's own address: the answer to the link before may just have been written to the page's
  addEventListener("hashchange", (event) => prompt.open(new URL(event.newURL).hash));
}

// The buttons at the end of the head, and the keys.
function controls(app, info) {
  const { store } = app;
  const toggleTheme = () => store.set({ theme: isDark() ? "light" : "dark" });
  $("theme").addEventListener("click", toggleTheme);
  $("help").addEventListener("click", () => showHelp(app, info));
  $("results").hidden = !info.results.length;
  $("results").addEventListener("click", () =>
    showResults(info.results).catch((error) => say(error.message, true)),
  );
  bindKeys(app, {
    help: () => showHelp(app, info),
    focusPrompt: () => $("prompt").select(),
    toggleTheme,
    ablate: (stream) => app.canIntervene() && toggleAblation(store, stream),
  });
}

async function start() {
  const info = await client.ask("model", "/api/model");
  client.mark = info.mark;
  const problems = [];
  const own = await ownViews(problems);
  document.documentElement.dataset.theme = fromHash(location.hash).theme ?? "";
  let prompt = null;
  const app = new App($("app"), {
    client,
    info,
    python: info.python,
    own,
    onerror(error, kind) {
      if (!prompt) problems.push(error.message); // while the views are mounted
      const isPrompts = ["trace", "generate"].includes(kind); // and not that of another prompt
      const offers = error.limit && isPrompts ? [prompt.offerCut(error.limit)] : [];
      say(kind === "other" ? `B: ${error.message}` : error.message, true, ...offers);
      complaint = { kind, isGone: error.isGone };
    },
    onanswer(kind) {
      if (complaint?.kind === kind || complaint?.isGone) say("");
    },
  });
  window.explorer = app; // for the curious, and for the tests
  prompt = new Prompt(app, info, say);
  new Bar($("bar"), app);
  showModel(info);
  generation(app, info, prompt, say);
  otherWeights(app, info, prompt);
  controls(app, info);
  follow(app, prompt);
  const isFirst = isFirstVisit();
  await prompt.open(location.hash);
  if (!app.trace && location.hash && !$("cut")) {
    problems.push(`${$("status").textContent} (shown instead: an example)`); // a link of another model, perhaps
    await prompt.open("");
  }
  if (problems.length) say(problems.join("; "), true);
  document.documentElement.dataset.ready = "yes";
  if (isFirst) startTour(info);
}

start().catch((error) => say(error.message, true));
