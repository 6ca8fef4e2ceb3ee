// The bar that stays in sight: what is ablated, cut and held, what it does at the selected token, and which
// version of the prompt the views show.

import { choice, h } from "./dom.js";
import { MODES, toggleAblation } from "./intervention.js";

export class Bar {
  constructor(host, app) {
    this.app = app;
    const { store } = app;
    this.ablated = h("span", { class: "ablated" });
    this.cuts = h("span", { class: "cuts" });
    this.hint = h("span", { class: "hint" });
    this.effect = h("span", { class: "effect", role: "status", "aria-label": "Effect of the intervention" });
    this.version = choice(store, "version", "Show", {
      baseline: ["baseline", "the prompt without the intervention (b)"],
      intervened: ["intervened", "with it (i)"],
      difference: ["difference", "with it, less without (d)"],
    });
    this.click = choice(store, "click", "A click on an edge or a feature", {
      select: "select",
      change: ["cut / clamp", "a click cuts an edge or clamps a feature, as alt-click always does"],
    });
    this.clear = h(
      "button",
      { type: "button", onclick: () => store.set({ ablated: [], cuts: [], holds: [] }) },
      "clear",
    );
    this.element = h(
      "div",
      { class: "bar", role: "region", "aria-label": "Intervention", hidden: true },
      h("strong", {}, "Intervention"),
      h("span", { class: "chips" }, this.hint, this.ablated, this.cuts),
      this.effect,
      this.version,
      h("label", {}, "click ", this.click),
      this.clear,
    );
    host.append(this.element);
    store.subscribe(() => this.update());
  }

  update() {
    const { app } = this;
    if (!app.base) return;
    this.element.hidden = !app.canIntervene();
    const isOn = app.isIntervening();
    this.hint.textContent = isOn
      ? ""
      : "none yet: press a stream's number in Prediction, or cut an edge in the routing lens";
    this.ablated.replaceChildren(...this.ablations());
    this.cuts.replaceChildren(...this.changes());
    this.version.show(app.version(), () => isOn);
    this.click.show(app.store.get("click"));
    this.clear.disabled = !isOn;
    this.effect.textContent = isOn ? app.effect() : "";
  }

  ablations() {
    const { store } = this.app;
    const [first, last] = this.app.layerRange();
    const layers = first === last ? `L${first}` : `L${first}–L${last}`;
    return store
      .get("ablated")
      .map((code) => [Math.floor(code / 3), code % 3])
      .map(([stream, mode]) =>
        chip(`S${stream} ${MODES[mode]} after ${layers}`, "Restore this stream", () =>
          toggleAblation(store, stream, mode),
        ),
      );
  }

  at(token) {
    return this.app.isBoard ? ` ${this.app.base.place(token)}` : ` @${token}`;
  }

  changes() {
    const { store } = this.app;
    const without = (key, i) => store.set({ [key]: store.get(key).filter((_, j) => j !== i) });
    const cuts = store
      .get("cuts")
      .map(([layer, head, target, source, token], i) =>
        chip(
          `L${layer} H${head} S${target}←S${source}${token === null ? "" : this.at(token)}`,
          "Restore this edge",
          () => without("cuts", i),
        ),
      );
    const holds = store
      .get("holds")
      .map(([stream, feature, value], i) =>
        chip(`S${stream} f${feature} = ${value}`, "Release this feature", () => without("holds", i)),
      );
    return [...cuts, ...holds];
  }
}

function chip(words, title, onclick) {
  return h("button", { type: "button", title, onclick }, `✕ ${words}`);
}
