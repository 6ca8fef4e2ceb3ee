// The stream card: one stream in numbers.

import { streamColor } from "../color.js";
import { fine, h, number, range, short } from "../dom.js";
import { argmax, driftClass, driftOf, hubScores, meanOverTokens, quantile, ranking } from "../measures.js";

export const card = {
  name: "card",
  title: "Stream card",
  place: "lower right",
  needs: [
    "routing",
    "hub_score",
    "incoming",
    "self_routing",
    "ablation_kl",
    "write_norm",
    "attribution",
    "drift_cosine",
    "convergence_cosine",
  ],
  shows: "One stream: how much it is read and reads, what ablating it costs, its logit lens and convergence.",
  reading: "Below: the tokens at which it writes most to the output embedding, relative to its mean.",
  terms: ["stream", "hub and sink"],
  uses: ["stream", "threshold", "token"],

  caption(trace) {
    const norms = trace.data("write_norm").subarray((trace.L - 1) * trace.T * trace.S);
    const at = argmax(norms);
    const token = Math.floor(at / trace.S);
    return (
      `The largest write to the output embedding is S${at % trace.S}'s ` +
      `${trace.manifest.puzzle ? "in" : "at token"} ${trace.label(token)}: norm ${norms[at].toFixed(1)} after ` +
      "subtracting the mean, against a median of " +
      `${quantile(norms, 0.5).toFixed(1)}.`
    );
  },

  mount(panel, ctx) {
    const { store } = ctx;
    const step = (by) => store.set({ stream: (store.get("stream") + by + ctx.trace.S) % ctx.trace.S });
    panel.controls.append(
      h("button", { type: "button", "aria-label": "Previous stream", onclick: () => step(-1) }, "‹"),
      h("button", { type: "button", "aria-label": "Next stream", onclick: () => step(1) }, "›"),
    );

    const lensArray = () => (ctx.trace.has("stream_lens_target") ? "stream_lens_target" : "attribution");

    function facts() {
      const { trace } = ctx;
      const { stream: s, threshold } = store.state;
      const hubs = hubScores(trace, threshold);
      const isChange = Boolean(trace.pair);
      const signed = (value, text) => `${isChange && value > 0 ? "+" : ""}${text}`;
      const list = ranking(trace);
      const rank = list.findIndex((entry) => entry.stream === s);
      const share = (values) =>
        `${signed(values[s], number(values[s] * 100, 1))} ${isChange ? "points" : "%"}`;
      const of = (values) =>
        `${ordinal(1 + values.filter((value) => value > values[s]).length)} of ${trace.S}`;
      return [
        [
          "is read",
          share(hubs.hub),
          `of edges to others over ${number(threshold)}${isChange ? "" : `; ${of(hubs.hub)}`}`,
        ],
        ["reads", share(hubs.incoming), "of edges from others"],
        ["itself", share(hubs.self), "of edges to itself"],
        [
          "ablation",
          signed(list[rank].kl, fine(list[rank].kl, 3)),
          isChange ? "bits" : `bits, ${ordinal(rank + 1)} of ${trace.S}`,
        ],
        [
          "converges",
          trace.L > 1
            ? trace.manifest.letters
                .map((letter, g) => {
                  const d = driftOf(trace, "cosine", g);
                  return `${letter} ${driftClass(d.converged[s], d.transitions)}`;
                })
                .join("  ")
            : "–",
          "",
        ],
      ];
    }

    // The tokens at which the stream writes most to the output, less its mean (of a difference, at which that
    // changes most); and the selected one, wherever it stands.
    function writes() {
      const { trace } = ctx;
      const s = store.get("stream");
      return range(trace.T, (t) => [t, trace.at("write_norm", trace.L - 1, t, s)])
        .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]))
        .filter(([t], i) => i < 5 || t === store.get("token"));
    }

    return {
      update() {
        if (ctx.trace) panel.note.textContent = `S${store.get("stream")}`;
      },
      height: () => 314,
      render(pen, width, height, theme) {
        const { trace } = ctx;
        const s = store.get("stream");
        pen.rect(0, 2, 5, 22, { fill: streamColor(s, trace.S) });
        pen.text(`Stream ${s}`, 13, 20, { color: theme.ink, size: 18, weight: 650 });
        facts().forEach(([name, value, about], i) => {
          const y = 44 + i * 17;
          pen.text(name, 0, y, { color: theme.dim, size: 11 });
          const style = { color: theme.ink, size: 12, weight: 600 };
          pen.text(value, 70, y, style);
          pen.text(about, Math.max(128, 78 + pen.measure(value, style)), y, theme.small);
        });
        curve(pen, width, theme);
        const head = trace.pair
          ? "largest changes of its writes to the output"
          : "largest writes to the output";
        pen.text(head, 0, 196, { color: theme.dim, size: 11 });
        pen.text(trace.pair ? "Δ norm" : "norm", width, 196, { ...theme.small, align: "right" });
        if (writes().every(([, value]) => Math.abs(value) < 5e-3))
          pen.text(
            trace.pair ? "none: what it writes is the same" : "none: it writes its mean everywhere",
            0,
            214,
            theme.small,
          );
        else writes().forEach(([t, value], i) => context(pen, t, value, 214 + i * 18, width, theme));
      },
      tip: (hit) =>
        hit.kind === "token"
          ? `${ctx.trace.label(hit.token)}: write norm ${number(hit.value)}, mean subtracted`
          : null,
      click: (hit) => hit.kind === "token" && store.set({ token: hit.token, rangeEnd: null }),
      table: () => ({
        columns: ["fact", "value", "about"],
        rows: [
          ...facts(),
          ...writes().map(([t, value]) => [
            "largest write",
            ctx.trace.strings[t],
            `${ctx.trace.unit} ${t}, ${number(value)}`,
          ]),
        ],
      }),
      python: () =>
        [
          ctx.code.preamble(),
          "from srmlab.analysis.drift import CLASSES, convergence, convergence_class",
          "",
          `stream = ${store.get("stream")}`,
          `frequency = (trace.weights > ${store.get("threshold")}).mean((0, 1, 2))       # [target, source]`,
          "itself, others = frequency[stream, stream], max(1, len(frequency) - 1)",
          "is_read, reads = ((edges.sum() - itself) / others for edges in (frequency[:, stream], frequency[stream]))",
          'ablation = trace["ablation_kl"][:, stream].astype(float).mean()        # bits',
          ...(ctx.trace.L > 1
            ? [
                'curves = trace["drift_cosine"].astype(float).mean(2)[..., stream]      # [transition, group]',
                "converges = [CLASSES[convergence_class(convergence(curve), len(curve))] for curve in curves.T]",
              ]
            : []),
          `lens = trace["${lensArray()}"].astype(float).mean(1)[:, stream]        # [layer]`,
          'writes = trace["write_norm"][-1, :, stream].argsort()[::-1]            # tokens, largest write first',
        ].join("\n"),
    };

    // The stream decoded alone: log-probability of the target after each layer, against the other streams.
    function curve(pen, width, theme) {
      const { trace } = ctx;
      const name = lensArray();
      const label =
        name === "attribution"
          ? "direct logit attribution to the target, by layer"
          : "target logprob, this stream alone, nats";
      const mean = meanOverTokens(trace, name);
      const low = Math.min(...mean),
        high = Math.max(...mean),
        top = 136,
        tall = 42;
      const px = (l) => 70 + (l / Math.max(1, trace.L - 1)) * (width - 116);
      const py = (value) => top + tall - ((value - low) / (high - low || 1)) * tall;
      const point = (l, s) => `${px(l)} ${py(mean[l * trace.S + s]).toFixed(1)}`;
      const line = (s) => `M${range(trace.L, (l) => point(l, s)).join("L")}`;
      for (let s = 0; s < trace.S; s++)
        if (s !== store.get("stream")) pen.path(line(s), { stroke: theme.line, width: 0.8 });
      pen.path(line(store.get("stream")), { stroke: streamColor(store.get("stream"), trace.S), width: 2.2 });
      pen.text("lens", 0, top + 8, { color: theme.dim, size: 11 });
      pen.text(number(high), width, top + 4, { ...theme.small, align: "right" });
      pen.text(number(low), width, top + tall, { ...theme.small, align: "right" });
      pen.text(trace.pair ? `Δ ${label}` : label, width - 46, top - 4, { ...theme.small, align: "right" });
    }

    // A cell by its place: a board in one line would not show where it is.
    function cell(pen, t, value, y, width, theme) {
      const { trace } = ctx;
      const style = { size: 11, color: theme.ink, weight: t === store.get("token") ? 700 : 400 };
      const name = trace.label(t);
      const about = trace.at("given", t) ? `given: ${trace.strings[t]}` : "open";
      pen.rect(0, y - 9, 4, 11, { fill: streamColor(store.get("stream"), trace.S) });
      pen.text(name, 10, y, style);
      pen.text(about, 130, y, theme.small);
      if (t === store.get("token"))
        pen.rect(7, y - 11, pen.measure(name, style) + 6, 15, { stroke: theme.mark, width: 1.5 });
      pen.text(number(value), width, y, { size: 10, color: theme.dim, align: "right" });
      pen.region({ x: 0, y: y - 13, w: width, h: 18, rows: 1, columns: 1, kind: "token", token: t, value });
    }

    function context(pen, t, value, y, width, theme) {
      const { trace } = ctx;
      const style = { size: 11, mono: true };
      const letter = pen.measure("m", style);
      const room = Math.floor((width - 40) / letter);
      const word = short(trace.strings[t], 14);
      if (trace.manifest.puzzle) return cell(pen, t, value, y, width, theme);
      const before = trace.strings
        .slice(0, t)
        .join("")
        .replace(/\s+/g, " ")
        .slice(-Math.floor((room - word.length) * 0.55));
      const after = trace.strings
        .slice(t + 1)
        .join("")
        .replace(/\s+/g, " ")
        .slice(0, Math.max(0, room - word.length - before.length - 1));
      pen.text(before, 0, y, { ...style, color: theme.dim });
      const x = pen.measure(before, style) + 1;
      const w = pen.measure(word, style);
      pen.rect(x - 1, y - 11, w + 2, 15, { fill: streamColor(store.get("stream"), trace.S), opacity: 0.28 });
      if (t === store.get("token")) pen.rect(x - 1, y - 11, w + 2, 15, { stroke: theme.mark, width: 1.5 });
      pen.text(word, x, y, { ...style, color: theme.ink, weight: 700 });
      pen.text(after, x + w + 2, y, { ...style, color: theme.dim });
      pen.text(number(value), width, y, { size: 10, color: theme.dim, align: "right" });
      pen.region({ x: 0, y: y - 13, w: width, h: 18, rows: 1, columns: 1, kind: "token", token: t, value });
    }
  },
};

function ordinal(n) {
  return `${n}${n % 100 >= 11 && n % 100 <= 13 ? "th" : (["th", "st", "nd", "rd"][n % 10] ?? "th")}`;
}
