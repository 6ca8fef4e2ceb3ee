// The same views in a notebook cell, inside a shadow root so that neither styles the other. `render` is what
// anywidget calls.

import { App } from "./app.js";
import { Bar } from "./bar.js";
import { setRoot } from "./color.js";
import { h } from "./dom.js";
import { unpack } from "./trace.js";
import { OWN } from "./views/own.js";

// Questions to the kernel, as client.js asks a server. A newer one of the same kind takes the place of the older.
class Kernel {
  constructor(model) {
    this.model = model;
    this.running = new Map(); // by kind: { id, settle }
    this.count = 0;
    model.on("msg:custom", (reply, buffers) => {
      const [kind, asked] = [...this.running].find(([, one]) => one.id === reply.id) ?? [];
      if (!asked) return;
      this.running.delete(kind);
      if (reply.error) asked.fail(new Error(reply.error));
      else asked.settle(reply.json ?? new Uint8Array(buffers[0].buffer ?? buffers[0]).slice().buffer);
    });
  }

  cancel(kind) {
    this.running.get(kind)?.fail(new DOMException("", "AbortError"));
    this.running.delete(kind);
  }

  ask(kind, path, body) {
    this.cancel(kind);
    const id = ++this.count;
    const answer = new Promise((settle, fail) => this.running.set(kind, { id, settle, fail }));
    this.model.send({ id, path, body });
    return answer;
  }
}

export async function render({ model, el }) {
  const shadow = el.attachShadow({ mode: "open" });
  const style = h("style", {});
  style.textContent = model.get("styles");
  const bar = h("div", {});
  const page = h("div", { class: "page" }, bar);
  shadow.append(style, page);
  setRoot(el);
  const trace = await unpack(model.get("trace"));
  const info = model.get("info");
  const client = info?.name ? new Kernel(model) : null;
  const app = new App(page, {
    client,
    info: client && info,
    python: model.get("python"),
    views: model.get("views"),
    own: OWN,
    isBoard: Boolean(trace.manifest.puzzle),
  });
  app.store.set({ token: Math.min(trace.T - 1, 12), layer: Math.min(trace.L - 1, 2) });
  if (client) new Bar(bar, app);
  app.show(trace);
  el.dataset.ready = "yes";
}
