// The live page: the prompt line, generation, the address, and the app below.

import { App } from "./app.js";
import { isDark } from "./color.js";
import { Client } from "./client.js";
import { h, short } from "./dom.js";
import { toggleAblation } from "./intervention.js";
import { bindKeys, KEYS } from "./keyboard.js";
import { fromHash, START, toHash } from "./store.js";

const $ = (id) => document.getElementById(id);
const client = new Client();

function say(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

function showHelp() {
  const dialog = h(
    "dialog",
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
    h("form", { method: "dialog" }, h("button", {}, "Close")),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

// What the run's saved analyses found, each in a line, with the rest folded away.
async function showResults(names) {
  const found = await Promise.all(
    names.map((name) => client.ask(`result ${name}`, `/api/results/${encodeURIComponent(name)}`)),
  );
  const dialog = h(
    "dialog",
    { class: "results" },
    h("h2", {}, "Measured over evaluation text"),
    names.map((name, i) =>
      h(
        "details",
        {},
        h("summary", {}, h("strong", {}, name), ` ${found[i].headline}`),
        h("pre", {}, found[i].summary),
      ),
    ),
    h("form", { method: "dialog" }, h("button", {}, "Close")),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
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
      say(error.message, true);
    },
  });
  window.explorer = app; // for the curious, and for the tests
  const { store } = app;
  document.title = `${info.name} – SRM explorer`;
  $("model").textContent = `${info.name}`;
  $("model").title =
    `${info.parameters.toLocaleString("en")} parameters, config ${info.config_hash}, ` +
    `tokenizer ${info.tokenizer}`;
  $("shape").textContent =
    `${info.shape.join(" · ")} · ` +
    `${(info.parameters / 1e6).toFixed(info.parameters < 1e7 ? 2 : 0)}M`;

  const run = async (request, changes) => {
    say("tracing …");
    const began = performance.now();
    if (await app.load(request, changes)) say(`traced in ${Math.round(performance.now() - began)} ms`);
  };
  const trace = () => {
    const prompt = $("prompt").value;
    // past the end: the last token
    return run({ prompt }, { prompt, token: info.max_tokens, rangeEnd: null, brush: [] });
  };
  // What a link says, and the start for what it does not name.
  const open = (hash) => {
    const next = { ...START, ...fromHash(hash) };
    next.prompt ||= info.prompts[0];
    $("prompt").value = next.prompt;
    return run(next.ids.length ? { tokens: next.ids } : { prompt: next.prompt }, next);
  };

  let generating = false;
  const generate = async () => {
    if (generating) {
      generating = false;
      return;
    }
    generating = true;
    $("generate").textContent = "Stop";
    const count = Math.max(1, Math.min(64, Number($("count").value) || 8));
    const room = Math.max(0, info.max_tokens - app.trace.T);
    if (!room) say(`the prompt has reached the limit of ${info.max_tokens} tokens`, true);
    for (let i = 0; i < Math.min(count, room) && generating; i++) {
      const made = await app.ask("generate", "/api/generate", {
        tokens: app.tokens(),
        count: 1,
        temperature: Math.max(0, Number($("temperature").value) || 0),
        seed: app.trace.T,
        ...($("intervened").checked && app.isIntervening() ? { intervention: app.intervention() } : {}),
      });
      if (
        !made ||
        !(await app.load(
          { tokens: made.tokens },
          { prompt: made.text, token: made.tokens.length - 1, rangeEnd: null, brush: [] },
        ))
      )
        break;
      $("prompt").value = made.text;
      say(`${i + 1} of ${count} tokens`);
    }
    generating = false;
    $("generate").textContent = "Generate";
  };

  const toggleTheme = () => store.set({ theme: isDark() ? "light" : "dark" });
  $("trace").addEventListener("click", trace);
  $("generate").addEventListener("click", generate);
  $("theme").addEventListener("click", toggleTheme);
  $("help").addEventListener("click", showHelp);
  $("results").hidden = !info.results.length;
  $("results").addEventListener("click", () =>
    showResults(info.results).catch((error) => say(error.message, true)),
  );
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    trace();
  });
  bindKeys(app, {
    help: showHelp,
    focusPrompt: () => $("prompt").select(),
    toggleTheme,
    ablate: (stream) => app.canIntervene() && toggleAblation(store, stream),
  });

  store.subscribe((_, now) => {
    if (!app.trace) return;
    $("under").hidden = !app.isIntervening();
    const hash = toHash(now);
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname);
    const range = now.rangeEnd === null ? "" : `–${now.rangeEnd}`;
    $("selection").textContent =
      `token ${now.token}${range} “${short(app.trace.strings[now.token], 14)}” · ` +
      `${app.trace.streamName(now.stream)} · L${now.layer}${app.trace.H ? ` · H${now.head}` : ""}`;
  });
  addEventListener("hashchange", () => open(location.hash));

  await open(location.hash);
  if (problems.length) say(problems.join("; "), true);
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => say(error.message, true));
