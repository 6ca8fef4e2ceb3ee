// The prediction: the next-token distribution and, where the model can be asked, a board of ablations: a switch
// for every stream × mean, zero or resample, over a range of layers, with the distribution before and after.

import { streamColor } from "../color.js";
import { h, number, percent, range, short } from "../dom.js";
import { describe, MODES, toggleAblation } from "../intervention.js";
import { mean } from "../measures.js";
import { wrapped } from "../pen.js";

const BARS = 8; // at most
const LEAST = 5e-4; // of a probability that has a bar; on a board every value has one

export const board = {
  name: "board",
  title: "Prediction",
  place: "upper right",
  needs: ["lens_ids", "lens_logprob", "target"],
  shows: "What the model expects at the selected token.",
  reading: "A bar is the probability of one of the most likely tokens.",
  asking:
    "A switch ablates a stream (by its mean, zero or another token's state) after the chosen layers; bars compare " +
    "before and after, as they do for cut edges and clamped features.",
  terms: ["ablation", "KL"],
  uses: ["token", "outcome", "ablated", "cuts", "holds", "first", "last"],

  versions: false, // it shows two at once

  caption(trace) {
    const last = trace.arrays.lens_ids.shape[0] - 1;
    const isBoard = Boolean(trace.manifest.puzzle);
    const known = isBoard ? trace.open : trace.open.slice(0, -1); // what comes after the last token is not
    const right = known.filter((t) => trace.at("lens_ids", last, t, 0) === trace.at("target", t)).length;
    if (!known.length)
      return isBoard ? "All cells were given." : "After a prompt of 1 token it is not known what comes next.";
    const [at, unit] = isBoard ? ["in", "open cells"] : ["at", "tokens"];
    const share = percent(right / known.length);
    return `The first choice is right ${at} ${right} of ${known.length} ${unit} (${share}).`;
  },

  mount(panel, ctx) {
    const { store } = ctx;
    const grid = h("div", { class: "board", role: "group", "aria-label": "Ablations" });
    // what was chosen last holds; the other end gives way
    const setRange = (first, last) => store.set({ first, last });
    const first = h("select", {
      "aria-label": "First layer",
      onchange: () => setRange(Number(first.value), Math.max(Number(first.value), ctx.layerRange()[1])),
    });
    const last = h("select", {
      "aria-label": "Last layer",
      onchange: () => setRange(Math.min(Number(last.value), ctx.layerRange()[0]), Number(last.value)),
    });
    const layers = h("label", {}, "ablate after layers ", first, " – ", last);
    panel.controls.append(layers);
    panel.body.prepend(grid);
    let built = null;

    function build(trace) {
      built = trace;
      const buttons = MODES.flatMap((mode, m) => [
        h("span", { class: "mode" }, mode),
        ...range(trace.S, (s) =>
          h(
            "button",
            {
              type: "button",
              "data-ablate": String(s * 3 + m),
              title: `S${s} at ${["its mean", "zero", ctx.said("another token's state")][m]}`,
              "aria-label": `Stream ${s}: ${mode}`,
              style: { "--stream": streamColor(s, trace.S) },
              onclick: () => toggleAblation(store, s, m),
            },
            `${s}`,
          ),
        ),
      ]);
      grid.style.setProperty("--streams", trace.S);
      grid.style.setProperty("--lines", Math.ceil(trace.S / 16)); // on a small screen
      grid.classList.toggle("dense", trace.S > 16);
      grid.replaceChildren(...buttons);
      for (const select of [first, last])
        select.replaceChildren(...range(trace.L, (l) => h("option", { value: String(l) }, String(l))));
    }

    // At the selected token: [id, probability before, after] of tokens likely before or after; without a model to
    // ask, those that the trace has.
    function bars() {
      const { outcome, trace } = ctx;
      if (!ctx.canIntervene()) {
        const row = trace.arrays.lens_ids.shape[0] - 1;
        const ranked = (name) => range(trace.K, (k) => trace.at(name, row, store.get("token"), k));
        const chances = ranked("lens_logprob").map(Math.exp);
        return ranked("lens_ids").map((id, k) => [id, chances[k], chances[k]]);
      }
      if (!outcome) return [];
      const token = Math.min(store.get("token"), outcome.kl.length - 1);
      const rows = new Map();
      for (const { id, before, after } of [...outcome.top_before[token], ...outcome.top_after[token]])
        rows.set(id, [id, before, after]);
      return [...rows.values()]
        .filter(([, before, after]) => ctx.trace.manifest.puzzle || Math.max(before, after) >= LEAST)
        .sort((a, b) => Math.max(b[1], b[2]) - Math.max(a[1], a[2]))
        .slice(0, count());
    }

    // Bars that have room: of a board no more than a cell has values.
    function count() {
      const { puzzle } = ctx.trace.manifest;
      return puzzle ? Math.min(BARS, puzzle.symbols.length - (puzzle.box ? 2 : 1)) : BARS;
    }

    const wordOf = (id) => ctx.outcome?.vocabulary[id] ?? ctx.trace.string(id);

    // Which switches are on, for a picture without them: two lines, whose room is always there, so that nothing
    // moves below when an edge is cut. The bar lists the rest.
    const said = (width) => {
      const lines = wrapped(describe(ctx.intervention()), width - 12, { size: 10 });
      return lines.length > 2 ? [lines[0], `${lines[1]} …`] : lines;
    };

    return {
      update() {
        if (!ctx.trace) return;
        layers.hidden = grid.hidden = !ctx.canIntervene();
        if (!ctx.canIntervene()) return;
        if (built !== ctx.trace) build(ctx.trace);
        const [a, b] = ctx.layerRange();
        first.value = String(a);
        last.value = String(b);
        const on = new Set(store.get("ablated"));
        for (const button of grid.querySelectorAll("button"))
          button.setAttribute("aria-pressed", String(on.has(Number(button.dataset.ablate))));
        panel.note.textContent = !ctx.isIntervening()
          ? "no intervention"
          : ctx.outcome
            ? `KL ${number(ctx.outcome.kl[Math.min(store.get("token"), ctx.outcome.kl.length - 1)], 3)} bits`
            : ctx.failed.has("outcome")
              ? "no answer"
              : "…";
      },
      height: () => (ctx.canIntervene() ? 98 + 18 * count() : 30 + 18 * ctx.trace.K),
      render(pen, width, height, theme) {
        const { outcome, trace } = ctx;
        const token = store.get("token");
        const isOn = ctx.canIntervene() && ctx.isIntervening(); // else there is nothing to set it against
        const head = `${trace.manifest.puzzle ? "value" : "next token"} ${trace.place(token)}`;
        const isKnown = ctx.base.has("target") && (token < trace.T - 1 || Boolean(trace.manifest.puzzle));
        const whole = isKnown ? `${head} (bold: the ${trace.manifest.puzzle ? "right" : "actual"} one)` : head;
        const fits = pen.measure(whole, theme.small) < width - 124;
        pen.text(fits ? whole : head, 0, 12, theme.small);
        if (isOn) {
          pen.rect(width - 118, 5, 8, 8, { fill: theme.dim });
          pen.text("before", width - 106, 12, theme.small);
          pen.rect(width - 56, 5, 8, 8, { fill: theme.warm });
          pen.text("after", width - 44, 12, theme.small);
        }
        said(width).forEach((line, i) => pen.text(line, 0, 82 + 18 * count() + 13 * i, { color: theme.ink, size: 10 }));
        if (!outcome && ctx.canIntervene()) {
          const why = ctx.failed.has("outcome") ? "The model did not answer." : "asking the model …";
          pen.text(why, 0, 34, { color: theme.dim, size: 11 });
          return;
        }
        const rows = bars();
        const right = isKnown ? ctx.base.at("target", token) : null;
        const left = 86,
          room = width - left - 92;
        const most = Math.max(...rows.flatMap((row) => [row[1], row[2]]), 1e-6);
        rows.forEach(([id, before, after], i) => {
          const y = 22 + i * 18;
          pen.text(short(wordOf(id), 10), left - 8, y + 11, {
            color: theme.ink,
            size: 11,
            weight: id === right ? 700 : 400,
            mono: true,
            align: "right",
          });
          pen.rect(left, y + 1, Math.max(1, (before / most) * room), isOn ? 6 : 13, {
            fill: theme.dim,
            opacity: 0.75,
          });
          if (isOn) pen.rect(left, y + 8, Math.max(1, (after / most) * room), 6, { fill: theme.warm });
          const change = isOn ? ` → ${number(after * 100, 1)}` : "";
          pen.text(`${number(before * 100, 1)}${change} %`, width, y + 11, {
            ...theme.small,
            align: "right",
          });
        });
        if (isOn) strip(pen, width, theme);
        else if (ctx.canIntervene())
          wrapped("Press a number above to ablate that stream and see how the prediction changes.", width, {
            size: 10,
          }).forEach((line, i) => pen.text(line, 0, 46 + 18 * count() + 13 * i, theme.small));
      },
      tip: (hit) =>
        hit.kind === "kl" && ctx.outcome
          ? `${ctx.trace.label(hit.column)}   KL ${number(ctx.outcome.kl[hit.column], 3)} bits`
          : null,
      click: (hit) => store.set({ token: hit.column, rangeEnd: null }),
      table: () => ({
        columns: ["token", "before", "after"],
        rows: bars().map(([id, ...chances]) => [wordOf(id), ...chances]),
      }),
      python: () =>
        ctx.canIntervene()
          ? [
              ctx.code.preamble(false),
              ctx.code.intervention(),
              `evaluate(model, baseline, intervention${ctx.code.dictionary()}).kl      # bits, [token]`,
            ].join("\n")
          : ctx.code.of(
              `[trace.string(i) for i in trace["lens_ids"][-1, ${store.get("token")}]]`,
              `trace["lens_logprob"][-1, ${store.get("token")}]      # nats`,
            ),
    };

    // KL at every token, a thin row of bars below.
    function strip(pen, width, theme) {
      const { kl } = ctx.outcome;
      const y = 56 + 18 * count(),
        height = 28,
        most = Math.max(...kl, 1e-6);
      const w = width / kl.length;
      kl.forEach((value, t) =>
        pen.rect(t * w, y - (value / most) * height, Math.max(1, w - 1), (value / most) * height, {
          fill: t === store.get("token") ? theme.mark : theme.warm,
          opacity: t === store.get("token") ? 1 : 0.6,
        }),
      );
      pen.path(`M0 ${y + 0.5}H${width}`, { stroke: theme.line });
      pen.text(
        `KL at every ${ctx.trace.unit}: mean ${number(mean(kl), 3)}, up to ${number(most, 3)} bits`,
        0,
        y + 12,
        theme.small,
      );
      pen.region({ x: 0, y: y - height, w: width, h: height + 4, rows: 1, columns: kl.length, kind: "kl" });
    }
  },
};
