// The same views in a notebook cell, inside a shadow root so that neither styles the other. `render` is what
// anywidget calls.

import { App } from "./app.js";
import { setRoot } from "./color.js";
import { h } from "./dom.js";
import { unpack } from "./trace.js";
import { OWN } from "./views/own.js";

export async function render({ model, el }) {
  const shadow = el.attachShadow({ mode: "open" });
  const style = h("style", {});
  style.textContent = model.get("styles");
  const page = h("div", { class: "page" });
  shadow.append(style, page);
  setRoot(el);
  const trace = await unpack(model.get("trace"));
  const app = new App(page, {
    python: model.get("python"),
    views: model.get("views"),
    own: OWN,
  });
  app.store.set({ token: Math.min(trace.T - 1, 12), layer: Math.min(trace.L - 1, 2) });
  app.show(trace);
  el.dataset.ready = "yes";
}
