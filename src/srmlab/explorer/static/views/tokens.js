// The token strip: the prompt, coloured by surprisal, ablation KL or routing entropy.

import { scaleFor } from "../color.js";
import { choice, fine, h, number, short, visible, word } from "../dom.js";
import { colorbar } from "../heatmap.js";
import { argmax, mean, quantile, tokenSpan, tokenValues } from "../measures.js";
import { beginsRow, drawStrip, isGrid, placesOf } from "../strip.js";

const ARRAYS = { surprisal: "surprisal", ablation: "ablation_kl", entropy: "routing_entropy" };
const PYTHON = {
  surprisal: 'trace["surprisal"]                      # bits, [token]',
  ablation_kl: 'trace["ablation_kl"].sum(-1)            # bits, [token]',
  routing_entropy: 'trace["routing_entropy"].mean((0, 2))   # bits, [token]',
};
const HIDDEN = { "aria-hidden": "true" };
const NAMES = {
  surprisal: "surprisal, bits",
  ablation: "ablation KL, bits summed over streams",
  entropy: "routing entropy, bits",
};

export const tokens = {
  name: "tokens",
  title: "Tokens",
  place: "wide",
  needs: ["surprisal", "target", "lens_ids", "lens_logprob"],
  shows: "The prompt, coloured by surprisal, ablation KL or routing entropy.",
  reading: "Click to select a token, shift-click for a range, hover for the next-token distribution.",
  terms: ["token", "surprisal", "KL"],
  uses: ["token", "rangeEnd", "color", "outcome"],
  eager: true, // its height is that of its words, known when they are there

  statistic: (trace) => `mean surprisal ${number(mean(trace.data("surprisal")))} bits`, // of one token there is none

  caption(trace) {
    const surprisal = trace.data("surprisal"); // NaN at the first token
    if (trace.manifest.puzzle) return ofCells(trace, surprisal);
    if (trace.T < 2) return "A prompt of one token has no surprisal.";
    const at = argmax(surprisal);
    return (
      `Mean surprisal over the ${trace.T - 1} predicted tokens is ${mean(surprisal).toFixed(2)} bits; ` +
      `it is highest at “${word(trace.strings[at])}” (token ${at}), ${surprisal[at].toFixed(1)} bits.`
    );
  },

  mount(panel, ctx) {
    const { store } = ctx;
    const kinds = choice(store, "color", ctx.said("Colour tokens by"), {
      surprisal: "surprisal",
      ablation: ["ablation KL", "summed over streams"],
      entropy: "routing entropy",
    });
    panel.controls.append(kinds);
    const kind = () => ctx.trace.choose(ARRAYS, store.get("color"));
    const strip = h("div", {
      class: "strip",
      role: "listbox",
      tabindex: "0",
      "aria-multiselectable": "true",
      "aria-label": ctx.said("Tokens of the prompt: arrows select the next and the previous"),
    });
    panel.canvas.replaceWith(strip);
    let shown = null,
      spans = [];

    const colorsOf = (values) => {
      const finite = Array.from(values).filter(Number.isFinite);
      return scaleFor(ctx.trace, finite, Math.min(0, ...finite), Math.max(quantile(finite, 0.98), 1e-6));
    };

    function build(trace) {
      shown = trace;
      strip.classList.toggle("cells", isGrid(trace));
      spans = trace.strings.map((string, t) => {
        const span = h(
          "span",
          {
            class: "token",
            role: "option",
            id: `token-${t}`,
            "data-token": String(t),
            onmousedown: (event) => event.shiftKey && event.preventDefault(), // no selection over the colours
            onclick: (event) => store.set(event.shiftKey ? { rangeEnd: t } : { token: t, rangeEnd: null }),
            onmousemove: (event) => ctx.tooltip.show(expectation(trace, t, kind()), event),
            onmouseleave: () => ctx.tooltip.show(null),
          },
          visible(string).replace(/⏎/g, "⏎\u200b"),
        );
        return span;
      });
      strip.replaceChildren(...spans.flatMap((span, t) => (beginsRow(trace, t) ? [h("br", HIDDEN), span] : [span])));
    }

    return {
      paint() {
        const { trace } = ctx;
        const state = store.state;
        kinds.show(kind(), (one) => trace.has(ARRAYS[one]));
        if (shown !== trace) build(trace);
        const values = tokenValues(trace, kind());
        const colors = colorsOf(values);
        const [first, last] = tokenSpan(state, trace);
        spans.forEach((span, t) => {
          span.style.background = colors.css(values[t]);
          span.style.color = colors.ink(values[t]);
          span.setAttribute("aria-selected", String(t >= first && t <= last));
          span.setAttribute(
            "aria-label",
            `${ctx.isBoard ? trace.label(t) : `token ${t}`}, ${visible(trace.strings[t])}, ${number(values[t])} bits`,
          );
        });
        strip.setAttribute("aria-activedescendant", `token-${state.token}`);
        const range = `colours ${trace.pair ? "Δ " : ""}${fine(colors.low)} – ${fine(colors.high)} bits`;
        const count = `${trace.T} token${trace.T === 1 ? "" : "s"}`;
        const isColoured = Array.from(values).some(Number.isFinite); // by what the buttons say
        panel.note.textContent = [ctx.isBoard ? "" : count, isColoured ? range : ""].filter(Boolean).join(" · ");
      },
      height: (width) => placesOf(ctx.trace, width).at(-1).y + 34,
      render(pen, width, height, theme) {
        const values = tokenValues(ctx.trace, kind());
        const colors = colorsOf(values);
        const placed = placesOf(ctx.trace, width);
        drawStrip(pen, placed, values, colors, tokenSpan(store.state, ctx.trace), theme);
        colorbar(pen, 4, placed.at(-1).y + 16, Math.min(420, width - 8), colors, NAMES[kind()], theme);
      },
      table() {
        const { trace } = ctx;
        const known = Object.keys(ARRAYS).filter((one) => trace.has(ARRAYS[one]));
        const values = known.map((one) => tokenValues(trace, one));
        return {
          columns: ["position", "token", ...known.map((one) => `${ARRAYS[one]}_bits`)],
          rows: trace.strings.map((s, t) => [t, s, ...values.map((v) => v[t])]),
        };
      },
      python: () =>
        ctx.code.of(
          ...Object.entries(PYTHON)
            .filter(([name]) => ctx.trace.has(name))
            .map(([, line]) => line),
        ),
    };
  },
};

function ofCells(trace, surprisal) {
  const { open } = trace;
  if (!open.length) return "All cells were given.";
  const bits = open.map((t) => surprisal[t]);
  const most = argmax(bits);
  return (
    `Mean surprisal of the right value in the ${open.length} open cells is ${fine(mean(bits))} bits; it is ` +
    `highest in ${trace.label(open[most])}, ${fine(bits[most])} bits.`
  );
}

// What the model expects after a token, as the lines of a tooltip.
function expectation(trace, t, kind) {
  const [before, now] = trace.pair ?? [null, trace];
  const row = now.arrays.lens_ids.shape[0] - 1;
  const chance = (one, k) => `${number(Math.exp(one.at("lens_logprob", row, t, k)) * 100, 1)} %`;
  const value = tokenValues(trace, kind)[t];
  const lines = [
    `${trace.label(t)}   ${before ? "Δ " : ""}${NAMES[kind].split(",")[0]} ${number(value)} bits`,
    trace.manifest.puzzle ? "value, most likely first" : "next token, most likely first",
  ];
  for (let k = 0; k < trace.K; k++) {
    const id = trace.at("lens_ids", row, t, k);
    const mark = id === trace.at("target", t) ? " ←" : "";
    const was = before
      ? `   instead of ${chance(before, k)} ${short(before.string(before.at("lens_ids", row, t, k)), 12)}`
      : "";
    lines.push(`${chance(now, k).padStart(7)}  ${short(trace.string(id), 16)}${mark}${was}`);
  }
  return lines.join("\n");
}
