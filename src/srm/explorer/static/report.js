// The report: the same views on saved traces, a sentence under each, the training curve, and what was measured.

import { App } from "./app.js";
import { ink } from "./color.js";
import { h, short } from "./dom.js";
import { lineChart } from "./lines.js";
import { unpack } from "./trace.js";

export async function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const traces = await Promise.all(data.traces.map((entry) => unpack(entry.trace)));
  trainingCurve(data.training);
  if (traces.length) {
    const app = new App(document.getElementById("app"), { traces, python: data.python });
    window.explorer = app;
    const tabs = traces.map((trace, i) => h("button", { type: "button", onclick: () => choose(i) }, short(trace.manifest.prompt, 34).replaceAll("·", " ")));
    const choose = (i) => {
      tabs.forEach((tab, j) => tab.setAttribute("aria-pressed", String(i === j)));
      app.caption(data.traces[i].captions);
      app.show(traces[i]);
    };
    document.getElementById("tabs").append(...tabs);
    app.store.set({ token: Math.min(traces[0].T - 1, 12), layer: Math.min(traces[0].L - 1, 2), against: traces.length > 1 ? "trace:1" : "" });
    choose(0);
    addEventListener("beforeprint", () => app.panels.forEach((panel) => panel.draw()));
  }
  document.documentElement.dataset.ready = "yes";
}

function trainingCurve(training) {
  const host = document.getElementById("training");
  if (!host || !training) return;
  const theme = ink(host);
  const series = [{ label: "training loss", values: training.loss, color: theme.cool, width: 1.4 }];
  if (training.val.some((value) => value !== null)) series.push({ label: "validation loss", values: training.val, color: theme.warm, width: 2 });
  const plot = lineChart(host, { x: training.step, series, xTitle: "step", xName: "step", whole: true }, { width: host.clientWidth, height: 220, theme });
  plot.setSeries(1, { focus: false });
}
