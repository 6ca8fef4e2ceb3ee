// The prompt line: what is typed, traced, and continued by Generate.

import { h } from "./dom.js";
import { fromHash, START } from "./store.js";

const $ = (id) => document.getElementById(id);

export class Prompt {
  // say(text, isBad, ...offers) writes the line of status.
  constructor(app, info, say) {
    Object.assign(this, { app, info, say });
    this.opening = null; // the link that is being opened: meanwhile nothing can be undone
    this.line = $("prompt");
    this.line.addEventListener("input", () => this.mark());
    this.line.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.trace();
    });
    $("trace").addEventListener("click", () => this.trace());
    const shortened = (prompt) => {
      const line = prompt.replace(/\s+/g, " ");
      return line.length > 60 ? `${line.slice(0, 59)}…` : line;
    };
    $("examples").append(
      ...info.prompts.map((prompt, i) => h("option", { value: String(i) }, shortened(prompt))),
    );
    $("examples").addEventListener("change", () => {
      this.line.value = info.prompts[Number($("examples").value)];
      $("examples").value = "";
      this.trace();
    });
  }

  weights() {
    return { checkpoint: this.app.store.get("checkpoint") };
  }

  async run(request, changes) {
    const { app, say } = this;
    app.client.cancel("generate"); // or its text would take the place of this one
    say("tracing …");
    const began = performance.now();
    app.grid.classList.add("stale"); // what the views show is not what was asked for
    const isLoaded = await app.load(request, changes);
    if (isLoaded) say(`traced in ${Math.round(performance.now() - began)} ms`);
    else if (!app.isAsking("trace")) app.grid.classList.toggle("stale", this.isEdited());
    this.mark();
    return isLoaded;
  }

  trace(more = {}) {
    const prompt = this.line.value;
    // past the end: the last token
    const changes = { prompt, token: this.info.max_tokens, rangeEnd: null, brush: [] };
    return this.run({ prompt, ...this.weights(), ...more }, changes);
  }

  // After a refusal: the same prompt, as far as it can be shown.
  offerCut(limit) {
    const cut = async () => {
      await this.trace({ cut: true });
      const { prompt } = this.app.trace.manifest;
      this.app.store.set({ prompt });
      this.write(prompt);
    };
    return h("button", { type: "button", id: "cut", onclick: cut }, `trace the first ${limit}`);
  }

  // What a link says, and the start for what it does not name.
  async open(hash) {
    const next = { ...START, ...fromHash(hash) };
    next.prompt ||= this.info.prompts[0];
    this.line.value = next.prompt;
    const link = (this.opening = { isAwaited: true });
    const { ids, prompt, checkpoint } = next;
    await this.run({ ...(ids.length ? { tokens: ids } : { prompt }), checkpoint }, next);
    link.isAwaited = false;
    requestAnimationFrame(() => {
      if (this.opening === link) this.opening = null; // after the store has said what changed
    });
  }

  write(text) {
    this.line.value = text;
    this.mark();
  }

  isEdited() {
    return this.line.value !== this.app.store.get("prompt");
  }

  mark() {
    this.line.classList.toggle("edited", this.isEdited());
  }

  // What the line says, if it was changed since; else the trace's tokens, which its text may not give again.
  given() {
    return this.isEdited() ? { prompt: this.line.value } : { tokens: this.app.tokens() };
  }
}
