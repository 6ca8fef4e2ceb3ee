// The explorer itself: the views around one store and one trace. It is the same in the live page,
// the report and the notebook; only the live page has a client, a way to ask the model. Without one, the
// views that need the model are left out.

import { cancelled } from "./client.js";
import { themeRoot } from "./color.js";
import { h, number, short } from "./dom.js";
import { ofBoards } from "./glossary.js";
import { MODES } from "./intervention.js";
import { THRESHOLD, thresholdOf } from "./measures.js";
import { Panel, Tooltip } from "./panel.js";
import { Python } from "./python.js";
import { Store } from "./store.js";
import { difference, Trace } from "./trace.js";
import { REQUIRED, VIEWS } from "./views.js";

export class App {
  // host: where the panels go. options: client, info, traces (saved ones), python (how to get model and
  // tokenizer), state, views (names; all by default), own (registered views), captioned (whether each panel
  // has a sentence under it), isBoard (whether the model fills boards), onerror and onanswer
  // (told of every question that got none or one).
  constructor(
    host,
    {
      client = null,
      info = null,
      traces = [],
      python = "",
      state = {},
      views = null,
      own = [],
      captioned = false,
      isBoard = info ? !info.generates : traces.some(({ manifest }) => manifest.puzzle),
      onerror = reportError,
      onanswer = () => {},
    } = {},
  ) {
    Object.assign(this, { host, client, info, traces, python, captioned, isBoard, onerror, onanswer });
    this.base = null; // the prompt's trace
    this.trace = null; // what the views show: it, the one with the intervention, or their difference
    this.other = null; // compare's B
    this.outcome = null; // of the board's intervention; null while it is asked for, and when that failed
    this.twin = null; // the prompt's trace by an untrained twin, if that is wanted
    this.failed = new Set(); // "outcome", "other", "version": what was asked for last and not answered
    this.sweep = null;
    this.job = null;
    this.code = new Python(this);
    this.store = new Store(state);
    this.tooltip = new Tooltip(host);
    this.grid = h("div", { class: "grid" });
    host.append(this.grid);
    const isWanted = (view) => views === null || views.includes(view.name);
    const isAvailable = (view) => view.available?.(this) ?? true;
    this.mounted = [
      ...VIEWS.filter((view) => isWanted(view) && isAvailable(view)).map((view) => new Panel(view, this)),
      ...own.filter(isWanted).flatMap((view) => this.mountOwn(view)),
    ];
    this.panels = []; // those of `mounted` that the trace has the arrays for
    this.store.subscribe((changed) => this.changed(changed));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.store.touch("theme"));
  }

  // The panel of a registered view; a view with a fault is reported and left out.
  mountOwn(view) {
    try {
      const missing = REQUIRED.filter((name) => view[name] === undefined);
      if (missing.length) throw new Error(`declares no ${missing.join(", ")}`);
      return (view.available?.(this) ?? true) ? [new Panel(view, this)] : [];
    } catch (error) {
      this.onerror(new Error(`view ${view.name}: ${error.message}`));
      return [];
    }
  }

  // Put up the panels whose arrays the trace has; those of one place stand in one column.
  arrange() {
    const panels = this.mounted.filter(({ view }) => view.needs.every((name) => this.trace.has(name)));
    if (String(panels.map(nameOf)) === String(this.panels.map(nameOf))) return;
    this.panels = panels;
    // A board's cells need no line of their own, with the board above; nor does Compare by itself a column.
    const isAlone = !panels.some(({ view }) => view.place === "lower left" && view.name !== "compare");
    const moved = { tokens: this.isBoard && "upper right", compare: isAlone && "lower right" };
    const placeOf = ({ name, place }) => moved[name] || place;
    const taken = new Set(panels.map(({ view }) => placeOf(view)));
    const columns = new Map();
    const column = (place) => {
      if (!taken.has(place) || columns.has(place)) return;
      columns.set(place, h("div", { class: "column" }));
      this.grid.append(columns.get(place));
    };
    this.grid.replaceChildren();
    for (const [i, { view, element }] of panels.entries()) {
      element.style.setProperty("--place", i); // on a telephone, where there is one column
      const place = placeOf(view);
      if (place !== "wide") ["left", "right"].forEach((side) => column(place.replace(/left|right/, side)));
      (columns.get(place) ?? this.grid).append(element);
    }
    for (const [place, { classList }] of columns) {
      const beside = place.endsWith("left") ? place.replace("left", "right") : place.replace("right", "left");
      classList.toggle("alone", !columns.has(beside));
    }
    // on a large screen wide ones stand in pairs
    const wide = panels.filter(
      ({ view }) => view.place === "wide" && !["puzzle", "tokens"].includes(view.name),
    );
    wide.forEach(({ element }, i) => element.classList.toggle("half", i < wide.length - (wide.length % 2)));
    const why = this.client ? absences(this.mounted, this.trace, this.info) : "";
    if (why) this.grid.append(h("p", { class: "absent" }, why));
  }

  // A sentence of the page, of tokens or of cells.
  said(sentence) {
    return this.isBoard ? ofBoards(sentence) : sentence;
  }

  panel(name) {
    return this.panels.find((panel) => nameOf(panel) === name);
  }

  // The selected step of the recursion, counted through the whole pass.
  tick() {
    return Math.min(this.trace.N - 1, this.store.get("layer") * this.trace.steps + this.store.get("step"));
  }

  goto(tick) {
    const at = Math.max(0, Math.min(this.trace.N - 1, tick));
    this.store.set({ layer: Math.floor(at / this.trace.steps), step: at % this.trace.steps });
  }

  // --- the trace ----------

  show(trace) {
    if (!this.trace && this.store.get("threshold") === THRESHOLD)
      this.store.set({ threshold: thresholdOf(trace) });
    this.base = this.trace = trace;
    this.arrange();
    this.sweep = null;
    if (this.job) this.stopSweep(); // it is about another prompt
    const { T, S, L, H } = trace;
    const isIndex = (value, size) => Number.isInteger(value) && value >= 0 && value < size;
    const bounded = (value) => Math.max(-1e6, Math.min(1e6, value));
    const inside = (value, size) => Math.max(0, Math.min((size || 1) - 1, value));
    const state = this.store.state;
    const [from, to] = state.brush;
    this.store.set({
      ids: trace.manifest.exact ? [] : Array.from(trace.data("tokens")),
      token: inside(state.token, T),
      rangeEnd: state.rangeEnd === null ? null : inside(state.rangeEnd, T),
      stream: inside(state.stream, S),
      source: inside(state.source, S),
      layer: inside(state.layer, L),
      head: inside(state.head, H),
      step: inside(state.step, trace.steps),
      part: Math.max(0, state.part),
      tokenHead: Math.max(0, state.tokenHead),
      ablated: trace.has("ablation_kl") ? state.ablated.filter((code) => code >= 0 && code < 3 * S) : [],
      brush: state.brush.length === 2 && from >= 0 && from < to && to < S ? [from, to] : [],
      holds: state.holds
        .filter(
          ([stream, feature]) =>
            trace.has("features") &&
            isIndex(stream, S) &&
            isIndex(feature, trace.manifest.dictionary.features),
        )
        .map(([stream, feature, value]) => [stream, feature, bounded(value)])
        .slice(0, 256),
      hold: bounded(state.hold),
      cuts: state.cuts.filter(
        (cut) =>
          cut.length === 5 &&
          [L, H, S, S].every((size, i) => isIndex(cut[i], size)) &&
          (cut[4] === null || isIndex(cut[4], T)),
      ),
    });
    this.store.touch("base");
    this.store.touch("trace");
    this.caption();
  }

  // What the views show: "baseline", "intervened" or "difference"; without an intervention there is one only.
  version() {
    return this.canIntervene() && this.isIntervening() ? this.store.get("version") : "baseline";
  }

  // Put up the trace of the chosen version. Until it is there the views show nothing, rather than another one.
  async showVersion() {
    const { base } = this;
    const version = this.version();
    let shown = base;
    this.failed.delete("version");
    if (version !== "baseline") {
      this.wait("asking the model …");
      const changed = await this.intervenedTrace();
      if (changed === undefined || this.version() !== version || this.base !== base) return;
      if (changed === null) {
        this.failed.add("version");
        this.wait("The model did not answer.");
        return;
      }
      shown =
        version === "intervened" ? changed : changed.once("difference", () => difference(base, changed));
    }
    delete this.grid.dataset.waiting;
    this.grid.dataset.version = version;
    if (shown === this.trace) return;
    this.trace = shown;
    this.store.touch("trace");
  }

  // Hide what the views show, and say why.
  wait(why) {
    this.grid.dataset.waiting = why;
    this.grid.style.setProperty("--waiting", JSON.stringify(why));
  }

  // The prompt's trace with the intervention, asked for once for all who want it; null if there is no answer,
  // undefined if a newer one took its place.
  async intervenedTrace() {
    if (!this.isIntervening()) return this.base;
    const request = this.question({ intervention: this.intervention() });
    const key = JSON.stringify(request);
    if (this.asked?.key !== key) {
      const answer = this.ask("intervened", "/api/trace", request);
      this.asked = { key, trace: answer.then((bytes) => bytes && Trace.read(bytes)) };
    }
    const { asked } = this;
    const trace = await asked.trace;
    if (!trace && this.asked === asked) this.asked = null; // to be asked again
    return trace;
  }

  // In a report: one sentence under each panel, about the trace or the two that are compared.
  caption() {
    for (const { view, caption } of this.captioned ? this.panels : []) {
      caption.textContent = view.caption?.(this.trace, this.other) ?? "";
      caption.hidden = !caption.textContent;
    }
  }

  tokens() {
    return Array.from(this.base.data("tokens"));
  }

  // What every question to the model says: the prompt, the weights, and more.
  question(more = {}) {
    return { tokens: this.tokens(), checkpoint: this.base.manifest.note.checkpoint, ...more };
  }

  // --- questions to the model ----------

  // The answer; null if there is none, undefined if a newer question took the place of this one.
  async ask(kind, path, body, method) {
    try {
      const answer = await this.client.ask(kind, path, body, method);
      this.onanswer(kind);
      return answer;
    } catch (error) {
      if (cancelled(error)) return undefined;
      this.onerror(error, kind);
      return null;
    }
  }

  isAsking(kind) {
    return Boolean(this.client?.running.has(kind));
  }

  // Take down what was said before: while an answer is awaited, no older number is on the screen.
  forget(name) {
    this[name] = null;
    this.failed.delete(name);
    this.store.touch(name);
  }

  // Put up the answer, or that there is none.
  settle(name, answer) {
    this[name] = answer;
    if (answer === null) this.failed.add(name);
    this.store.touch(name);
  }

  // Trace a prompt or token ids, and show it with these changes of the state.
  async load(request, changes = {}) {
    const bytes = await this.ask("trace", "/api/trace", request);
    if (!bytes) return false;
    this.store.set(changes);
    this.show(Trace.read(bytes));
    this.grid.classList.remove("stale");
    return true;
  }

  layerRange() {
    const depth = this.base.L;
    const fix = (value) => (value < 0 || value >= depth ? depth - 1 : value);
    const a = fix(this.store.get("first")),
      b = fix(this.store.get("last"));
    return [Math.min(a, b), Math.max(a, b)];
  }

  // Only where streams add up to the output, and there is a model to ask.
  canIntervene() {
    return this.client !== null && this.base.has("ablation_kl");
  }

  // Whether a click is to change the model: with alt, or by the switch in the bar, which a finger can reach.
  isChange(event) {
    return this.client !== null && (event.altKey || this.store.get("click") === "change");
  }

  // How that click is called.
  get changing() {
    return this.store.get("click") === "change" ? "click" : "alt-click";
  }

  isIntervening() {
    return (
      this.store.get("ablated").length + this.store.get("cuts").length + this.store.get("holds").length > 0
    );
  }

  intervention() {
    const [first, last] = this.layerRange();
    return {
      ablations: this.store
        .get("ablated")
        .map((code) => ({ stream: Math.floor(code / 3), mode: MODES[code % 3], first, last })),
      cuts: this.store
        .get("cuts")
        .map(([layer, head, target, source, token]) => ({ layer, head, target, source, token })),
      holds: this.store.get("holds").map(([stream, feature, value]) => ({ stream, feature, value })),
    };
  }

  async intervene() {
    const began = performance.now();
    this.forget("outcome");
    const request = this.question({ intervention: this.intervention() });
    const outcome = await this.ask("intervene", "/api/intervene", request);
    if (outcome === undefined) return;
    this.settle("outcome", outcome);
    this.interveneTook = performance.now() - began;
  }

  // What the intervention does at the selected token, in words; never what another one did.
  effect() {
    const { outcome, failed, store } = this;
    if (failed.has("outcome")) return "no answer";
    if (!outcome) return "asking the model …";
    const token = Math.min(store.get("token"), outcome.kl.length - 1);
    const [before, after] = [outcome.top_before[token][0], outcome.top_after[token][0]];
    const percent = (share) => `${number(share * 100, 1)} %`;
    const word = ({ id }) => `“${short(outcome.vocabulary[id], 12)}”`;
    return (
      `KL ${number(outcome.kl[token], 3)} bits ${this.base.place(token)} · ` +
      `top ${word(before)} ${percent(before.before)} → ${word(after)} ${percent(after.after)}`
    );
  }

  async loadOther() {
    const against = this.store.get("against");
    const [kind, rest] = [against.split(":")[0], against.slice(against.indexOf(":") + 1)];
    const chosen = (this.chosen = {}); // an answer to what was chosen before comes too late
    this.forget("other");
    if (kind === "trace") this.other = this.traces[Number(rest)] ?? null;
    else if (this.client && kind === "intervention") {
      const changed = await this.intervenedTrace();
      if (changed === undefined || this.chosen !== chosen) return;
      this.settle("other", changed);
    } else if (this.client && (kind === "checkpoint" || (["prompt", "run"].includes(kind) && rest))) {
      const requests = {
        prompt: { prompt: rest, checkpoint: this.base.manifest.note.checkpoint },
        run: { prompt: this.base.manifest.prompt }, // by its own tokenizer
        checkpoint: this.question({ checkpoint: rest }),
      };
      const path = kind === "run" ? `../${encodeURIComponent(rest)}/api/trace` : "/api/trace";
      const bytes = await this.ask("other", path, requests[kind]);
      if (bytes === undefined || this.chosen !== chosen) return;
      this.settle("other", bytes && Trace.read(bytes));
    }
    this.caption();
  }

  async loadTwin() {
    this.forget("twin");
    if (!this.store.get("twin") || !this.info?.twin) return;
    const bytes = await this.ask("twin", "/api/trace", this.question({ checkpoint: "untrained" }));
    if (bytes !== undefined) this.settle("twin", bytes && Trace.read(bytes));
  }

  async startSweep() {
    const trace = this.base;
    this.forget("sweep");
    const started = await this.ask("sweep", "/api/sweep", this.question());
    if (!started) return;
    this.job = started;
    if (this.base !== trace) await this.stopSweep(); // another prompt came first
    while (this.job?.status === "running") {
      this.store.touch("sweep");
      await new Promise((resolve) => setTimeout(resolve, 300));
      if (this.job?.id !== started.id) return;
      const state = await this.ask("job", `/api/jobs/${started.id}`);
      if (this.job?.id !== started.id) return;
      this.job = state;
    }
    if (this.job?.status === "failed") this.onerror(new Error(this.job.error));
    if (this.job?.status === "done") {
      const { L, S } = trace;
      this.sweep = new Float32Array(L * S);
      for (const { layer, stream, kl } of this.job.pieces)
        this.sweep[layer * S + stream] = kl.reduce((sum, value) => sum + value, 0) / kl.length;
    }
    this.job = null;
    this.store.touch("sweep");
  }

  async stopSweep() {
    const { id } = this.job;
    this.job = null;
    await this.ask("job", `/api/jobs/${id}`, undefined, "DELETE");
    this.store.touch("sweep");
  }

  // --- changes ----------

  changed(keys) {
    const has = (...names) => names.some((name) => keys.has(name));
    if (has("theme")) themeRoot().dataset.theme = this.store.get("theme");
    if (has("big")) {
      const big = this.store.get("big");
      this.grid.classList.toggle("maximised", Boolean(this.panel(big)));
      for (const column of this.grid.querySelectorAll(".column"))
        column.classList.toggle("big", Boolean(column.querySelector(`#panel-${big || "none"}`)));
      for (const panel of this.panels) panel.element.classList.toggle("big", nameOf(panel) === big);
      if (big && this.client) window.scrollTo({ top: 0 });
    }
    if (!this.trace) return;
    for (const panel of this.panels) {
      try {
        panel.changed(keys);
      } catch (error) {
        reportError(error); // a fault in one view leaves the others alone
        panel.note.textContent = error.message;
      }
    }
    const isChanged = has("base", "ablated", "cuts", "holds", "first", "last");
    if (this.canIntervene() && isChanged) this.intervene();
    if (isChanged || has("version")) this.showVersion();
    if (this.client && has("base", "twin wanted")) this.loadTwin();
    if (has("against", "base") || (this.store.get("against") === "intervention" && isChanged)) {
      if (this.store.get("against") || this.other) this.loadOther();
    }
  }
}

const REASONS = {
  routing: "its streams do not attend to one another",
  ablation_kl: "its streams do not add up to the output",
  features: "it has no dictionary; srmlab dictionary RUN trains one",
  step_change: "its steps do not update all streams at once",
  update_cosine: "its streams receive no update between layers",
  drift_cosine: "it names no calls that move its state and in which every token takes part",
};

// One line on the views that this model does not have.
function absences(mounted, trace, info) {
  const missing = new Map();
  for (const { view, title } of mounted) {
    const lacks = view.needs.find((name) => !trace.has(name));
    const reason = lacks && (reasonOf(lacks, info) ?? `its trace has no ${lacks}`);
    if (reason) missing.set(reason, [...(missing.get(reason) ?? []), title]);
  }
  const lines = [...missing].map(([reason, titles]) => `${titles.join(", ")}: ${reason}`);
  return lines.length ? `Not shown for this model. ${lines.join(". ")}.` : "";
}

function reasonOf(lacks, { dictionary, generates }) {
  if (lacks === "features" && dictionary) return "the dictionary is of other weights"; // a checkpoint is shown
  if (lacks === "features" && !generates) return "dictionaries are for text";
  return REASONS[lacks];
}

function nameOf(panel) {
  return panel.view.name;
}
