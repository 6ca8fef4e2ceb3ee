// Ranked ablation: streams by the KL their mean ablation costs, with the cumulative share. Click toggles a
// stream in the board; dragging over bars brushes a group, whose joint effect is set against the sum of its
// members. "by layer" sweeps every stream × layer as a job.

import { scale, streamColor } from "../color.js";
import { choice, fine, h, number, range } from "../dom.js";
import { colorbar, heatmap } from "../heatmap.js";
import { toggleAblation } from "../intervention.js";
import { axis } from "../lines.js";
import { mean, ranking } from "../measures.js";
import { wrapped } from "../pen.js";

export const ranked = {
  name: "ranked",
  title: "Ranked ablation",
  place: "upper right",
  needs: ["ablation_kl"],
  shows: "Streams ranked by KL(full ‖ mean-ablated) of their final state, with the cumulative share.",
  reading: "Bars are means over the prompt; a click selects the stream.",
  asking:
    "It also ablates the stream; drag over bars to compare a group's joint effect with the sum of single ones.",
  terms: ["ablation", "KL"],
  uses: ["stream", "ablated", "rank", "sweep", "layer", "brush"],
  stretches: true,

  statistic(trace) {
    const list = ranking(trace);
    const times = list[0].kl / Math.max(list.at(-1).kl, 1e-9);
    return `largest ${fine(list[0].kl, 3)} bits, ${times.toFixed(1)} × the smallest`;
  },

  caption(trace) {
    const list = ranking(trace);
    const [first, last] = [list[0], list.at(-1)];
    const half = list.findIndex(({ share }) => share >= 0.5) + 1;
    return (
      `Ablating S${first.stream} has the largest effect, ${fine(first.kl, 3)} bits per ${trace.unit}, ` +
      `S${last.stream} the smallest, ${fine(last.kl, 3)} (a factor of ${factor(first.kl, last.kl)}); ` +
      `${half} of ${trace.S} streams ${half === 1 ? "accounts" : "account"} for half of the summed effect.`
    );
  },

  mount(panel, ctx) {
    const { store } = ctx;
    const kind = choice(store, "rank", "Rank", {
      prompt: "final state",
      layers: ["by layer", "sweep: every stream ablated after every layer"],
    });
    const run = h(
      "button",
      { type: "button", onclick: () => (ctx.job ? ctx.stopSweep() : ctx.startSweep()) },
      "sweep",
    );
    if (ctx.client) panel.controls.append(kind, run);
    let drag = null; // { start, from, to, done }: done from when the button is up
    let effect = null; // of the brushed group: { joint, summed }, bits

    const byLayer = () => store.get("rank") === "layers" && Boolean(ctx.client);
    const isDragging = () => drag !== null && !drag.done;
    const brush = () => (isDragging() ? [drag.from, drag.to] : store.get("brush"));
    const isBrushed = (i) => brush().length > 0 && i >= brush()[0] && i <= brush()[1];
    const group = () =>
      ranking(ctx.trace)
        .filter((_, i) => isBrushed(i))
        .map((entry) => entry.stream);

    // A group's effect is known without the intervention only; with it the bars have another order, too.
    const isMeasured = () => store.get("brush").length > 0 && ctx.client !== null && ctx.trace === ctx.base;

    async function measure() {
      const { trace } = ctx;
      const streams = group();
      const last = trace.L - 1;
      const ablations = streams.map((stream) => ({ stream, mode: "mean", first: last, last }));
      const request = ctx.question({ each: true, intervention: { ablations } });
      const found = await ctx.ask("brush", "/api/intervene", request);
      if (!found || ctx.trace !== trace || String(group()) !== String(streams)) return;
      effect = {
        joint: mean(found.kl),
        summed: found.each.reduce((sum, one) => sum + mean(one.kl), 0),
      };
      panel.redraw();
    }

    function bars(pen, width, height, theme) {
      const list = ranking(ctx.trace);
      const { S } = ctx.trace;
      const { pair } = ctx.trace;
      const small = { color: theme.dim, size: 9 };
      const kls = list.map(({ kl }) => kl);
      const { low, high, values, texts } = axis(Math.min(0, ...kls), Math.max(1e-9, ...kls));
      const left = Math.max(38, ...texts.map((text) => pen.measure(text, small) + 6)),
        right = 34,
        top = 26,
        bottom = 30,
        w = width - left - right,
        room = height - top - bottom;
      const bar = w / S;
      const at = (kl) => top + (room * (high - kl)) / (high - low);
      values.forEach((value, i) => {
        pen.path(`M${left} ${at(value)}h${w}`, { stroke: theme.faint });
        pen.text(texts[i], left - 4, at(value) + 3.5, { ...small, align: "right" });
      });
      for (const share of pair ? [] : [0, 50, 100])
        pen.text(`${share}%`, left + w + 4, top + room * (1 - share / 100) + 3.5, small);
      const on = new Set(store.get("ablated").map((code) => Math.floor(code / 3)));
      list.forEach(({ stream, kl }, i) => {
        const x = left + i * bar,
          [above, below] = [at(Math.max(0, kl)), at(Math.min(0, kl))];
        if (isBrushed(i)) pen.rect(x, top, bar, room, { fill: theme.faint });
        pen.rect(x + bar * 0.14, above, bar * 0.72, Math.max(1, below - above), {
          fill: streamColor(stream, S),
          stroke: stream === store.get("stream") ? theme.mark : undefined,
          width: 1.5,
        });
        const label = bar >= 16 || i % Math.ceil(16 / bar) === 0;
        if (label)
          pen.text(`S${stream}`, x + bar / 2, top + room + 12, {
            color: on.has(stream) ? theme.warm : theme.dim,
            weight: on.has(stream) ? 700 : 400,
            size: bar >= 16 ? 10 : 9,
            align: "middle",
          });
      });
      if (!pair)
        pen.path(
          `M${list.map(({ share }, i) => `${left + (i + 0.5) * bar} ${top + room - share * room}`).join("L")}`,
          { stroke: theme.ink, width: 1.2 },
        );
      pen.region({ x: left, y: top, w, h: room + 16, rows: 1, columns: S, kind: "bar" });
      const half = list.findIndex((entry) => entry.share >= 0.5) + 1;
      const settled = effect && !isDragging();
      const line = pair
        ? "change of each stream's KL by the intervention"
        : settled
          ? `${group().length} together ${fine(effect.joint, 3)} bits, sum of each ${fine(effect.summed, 3)}: ` +
            (effect.joint > effect.summed ? "super-additive" : "sub-additive")
          : brush().length && ctx.trace !== ctx.base
            ? "a group is measured in the baseline"
            : `${half} of ${S} streams ${half === 1 ? "makes" : "make"} up half of the sum` +
              (ctx.client ? "; drag over bars to select a group" : `; range ${factor(list[0].kl, list[S - 1].kl)}×`);
      const { unit } = ctx.trace;
      const style = { color: settled ? theme.ink : theme.dim, size: 10 };
      const fits = settled || pen.measure(line, style) < width - left;
      pen.text(fits ? line : line.split("; ")[0], left, 12, { ...style, max: width - left });
      pen.text(
        pair ? `Δ bits per ${unit}` : `bars: bits per ${unit}; line: cumulative share`,
        left,
        height - 4,
        theme.small,
      );
    }

    function swept(pen, width, height, theme) {
      const { L, S } = ctx.trace;
      if (!ctx.sweep) {
        const style = { color: theme.dim, size: 11 };
        const said = ctx.job
          ? `${ctx.job.done} of ${ctx.job.total} ablations`
          : "“sweep” ablates every stream after every layer, one at a time";
        wrapped(said, width - 46, style).forEach((line, i) => pen.text(line, 38, 40 + 15 * i, style));
        if (ctx.job) pen.rect(38, 50, ((width - 80) * ctx.job.done) / ctx.job.total, 6, { fill: theme.warm });
        return;
      }
      const colors = scale("sequential", 0, Math.max(...ctx.sweep, 1e-6));
      heatmap(
        pen,
        { x: 38, y: 10, w: width - 48, h: height - 62 },
        {
          values: ctx.sweep,
          rows: L,
          columns: S,
          scale: colors,
          theme,
          rowLabels: range(L, (l) => `L${l}`),
          columnLabels: range(S, (s) => `S${s}`),
          mark: { row: store.get("layer"), column: store.get("stream") },
          region: { kind: "sweep" },
        },
      );
      colorbar(pen, 38, height - 24, Math.min(280, width - 60), colors, "bits, without intervention", theme);
    }

    document.addEventListener("mouseup", () => {
      if (!isDragging()) return;
      drag.done = true;
      store.set({ brush: drag.to > drag.from && ctx.client ? [drag.from, drag.to] : [] });
      panel.redraw();
    });

    return {
      update(keys) {
        kind.show(store.get("rank"));
        run.hidden = store.get("rank") !== "layers";
        run.textContent = ctx.job ? "stop" : "sweep";
        if (!["base", "trace", "brush"].some((key) => keys.has(key))) return;
        effect = null;
        if (isMeasured()) measure();
      },
      height: () => 232,
      render: (pen, width, height, theme) => (byLayer() ? swept : bars)(pen, width, height, theme),
      tip(hit) {
        if (hit.kind === "sweep")
          return (
            `S${hit.column} after L${hit.row}   ` +
            `${number(ctx.sweep[hit.row * ctx.trace.S + hit.column], 4)} bits`
          );
        const { stream, kl, share } = ranking(ctx.trace)[hit.column];
        return (
          `S${stream}   ${fine(kl, 4)} bits` +
          (ctx.trace.pair
            ? " more or less"
            : `   rank ${hit.column + 1}   cumulative ${number(share * 100, 0)} %`)
        );
      },
      press(hit) {
        drag =
          hit.kind === "bar" ? { start: hit.column, from: hit.column, to: hit.column, done: false } : null;
      },
      drag(hit) {
        if (!isDragging() || !hit) return;
        drag.from = Math.min(drag.start, hit.column);
        drag.to = Math.max(drag.start, hit.column);
        panel.redraw();
      },
      click(hit, event) {
        const isEndOfDrag = event.type === "click" && drag !== null && drag.from !== drag.to;
        if (hit.kind === "sweep") store.set({ stream: hit.column, layer: hit.row });
        else if (!isEndOfDrag) {
          const { stream } = ranking(ctx.trace)[hit.column];
          if (ctx.client) toggleAblation(store, stream);
          else store.set({ stream });
        }
      },
      table() {
        if (byLayer())
          return {
            columns: ["layer", "stream", "kl_bits"],
            rows: Array.from(ctx.sweep ?? [], (value, i) => [
              Math.floor(i / ctx.trace.S),
              i % ctx.trace.S,
              value,
            ]),
          };
        const columns = ["rank", "stream", "kl_bits", "cumulative_share"];
        const rows = ranking(ctx.trace).map(({ stream, kl, share }, i) => [
          i + 1,
          stream,
          kl.toFixed(6),
          share.toFixed(4),
        ]);
        if (!effect) return { columns, rows };
        const both = [
          ["", "together", effect.joint.toFixed(6), "", 1],
          ["", "summed", effect.summed.toFixed(6), "", 1],
        ];
        return {
          columns: [...columns, "in_group"],
          rows: [...rows.map((row, i) => [...row, Number(isBrushed(i))]), ...both],
        };
      },
      python() {
        const { L, S } = ctx.trace;
        const bits = [
          ctx.code.baseline(),
          "",
          "def bits(*ablations):",
          "    return evaluate(model, baseline, Intervention(ablations)).kl.mean().item()",
          "",
        ];
        if (byLayer()) {
          const row = `[bits(AblatedStream(stream, "mean", layer, layer)) for stream in range(${S})]`;
          const sweep = `[${row} for layer in range(${L})]      # [layer][stream]`;
          return [ctx.code.preamble(false), ...bits, sweep].join("\n");
        }
        const ranks = [
          ctx.code.preamble(),
          "",
          'kl = trace["ablation_kl"].astype(float).mean(0)      # bits, [stream]',
          "kl.argsort()[::-1]",
        ];
        if (!isMeasured()) return ranks.join("\n");
        return [
          ...ranks,
          "",
          ...bits,
          `group = [AblatedStream(stream, "mean", ${L - 1}, ${L - 1}) for stream in [${group().join(", ")}]]`,
          "bits(*group), sum(bits(one) for one in group)      # together, summed",
        ].join("\n");
      },
    };
  },
};

// How many times as much; where one of them is next to nothing, no digits of noise.
function factor(most, least) {
  const ratio = most / Math.max(1e-9, least);
  return ratio > 1000 ? "over 1000" : number(ratio, 1);
}
