// The report: the same views on saved traces, a sentence under each, the training curve, and what was
// measured.

import { App } from "./app.js";
import { ink, isDark, themeRoot } from "./color.js";
import { h, short } from "./dom.js";
import { bindKeys } from "./keyboard.js";
import { lineChart, penLines } from "./lines.js";
import { SvgPen } from "./pen.js";
import { unpack } from "./trace.js";
import { OWN } from "./views/own.js";

const PAPER = 720; // CSS pixels across a page, about; what is drawn for paper is scaled to fit

export async function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const traces = await Promise.all(data.traces.map(unpack));
  const app = new App(document.getElementById("app"), {
    traces,
    python: data.python,
    views: traces.length ? null : [],
    own: OWN,
    captioned: true,
  });
  window.explorer = app;
  const curve = data.training && trainingCurve(document.getElementById("training"), data.training);
  app.store.subscribe((changed) => changed.has("theme") && curve?.draw());
  if (traces.length) {
    chooser(app);
    keys(app);
  }
  forPaper(app, curve);
  document.documentElement.dataset.ready = "yes";
}

function chooser(app) {
  const { traces, store } = app;
  let chosen = 0;
  const other = () => (store.get("against") ? Number(store.get("against").slice("trace:".length)) : null);
  const tabs = traces.map((trace, i) =>
    h(
      "button",
      { type: "button", onclick: () => choose(i) },
      short(trace.manifest.prompt, 34).replaceAll("·", " "),
    ),
  );
  const choose = (i) => {
    tabs.forEach((tab, j) => tab.setAttribute("aria-pressed", String(i === j)));
    if (other() === i) store.set({ against: `trace:${chosen}` });
    chosen = i;
    app.show(traces[i]);
  };
  document.getElementById("tabs").append(...tabs);
  store.set({
    token: Math.min(traces[0].T - 1, 12),
    layer: Math.min(traces[0].L - 1, 2),
    against: traces.length > 1 ? "trace:1" : "",
  });
  choose(0);
}

// The explorer's keys, while the pointer or the focus is among its panels; elsewhere space and arrows scroll,
// as in any document.
function keys(app) {
  addEventListener(
    "keydown",
    (event) => {
      if (!app.host.matches(":hover, :focus-within")) event.stopPropagation();
    },
    { capture: true },
  );
  bindKeys(app, { toggleTheme: () => app.store.set({ theme: isDark() ? "light" : "dark" }) });
}

// Training and validation loss over the steps: on the screen as wide as its place, on paper as SVG.
function trainingCurve(host, training) {
  const measured = training.val.some((value) => value !== null);
  const spec = (theme) => ({
    x: training.step,
    whole: true,
    sparse: true,
    xTitle: "step",
    xName: "step",
    yTitle: `loss, nats per ${training.unit}`,
    series: [
      { label: "training", values: training.loss, color: theme.cool, width: 1.4 },
      ...(measured
        ? [{ label: "validation", values: training.val, color: theme.warm, width: 2, dots: true }]
        : []),
    ],
  });
  host.before(
    h(
      "p",
      { id: "training-legend" },
      spec(ink(host)).series.map(({ label }) => h("span", { class: label }, label)),
    ),
  );
  let plot = null;
  const draw = () => {
    const scale = window.innerWidth >= 3000 ? 1.5 : 1;
    plot?.destroy();
    plot = lineChart(host, spec(ink(host)), {
      width: host.clientWidth,
      height: 220 * scale,
      scale,
      theme: ink(host),
    });
  };
  draw();
  new ResizeObserver(draw).observe(host);
  return {
    host,
    draw,
    height: () => 230,
    render: (pen, width, height, theme) =>
      penLines(pen, { x: 0, y: 0, w: width, h: height }, spec(theme), theme),
  };
}

// Paper is light and narrow, whatever the screen is: before printing every picture is drawn anew in the light
// colours, as SVG of a page's width, and what is folded is opened; afterwards all is as it was.
function forPaper(app, curve) {
  const folded = [];
  const onPaper = (host, { render, height }) => {
    const pen = new SvgPen(PAPER, height(PAPER));
    render(pen, PAPER, pen.height, ink(host));
    const picture = h("div", { class: "paper" });
    picture.innerHTML = pen.toString();
    host.append(picture);
  };
  const clear = () => {
    document.querySelectorAll(".paper").forEach((picture) => picture.remove());
    folded.splice(0).forEach((details) => {
      details.open = false;
    });
  };
  addEventListener("beforeprint", () => {
    clear();
    themeRoot().dataset.theme = "light";
    folded.push(...document.querySelectorAll("details:not([open])"));
    folded.forEach((details) => {
      details.open = true;
    });
    if (curve) onPaper(curve.host, curve);
    if (!app.trace) return;
    for (const panel of app.panels) {
      if (panel.view.eager)
        panel.draw(); // words, which the page sets itself
      else onPaper(panel.body, panel.drawn);
    }
  });
  addEventListener("afterprint", () => {
    clear();
    app.store.touch("theme");
  });
}
