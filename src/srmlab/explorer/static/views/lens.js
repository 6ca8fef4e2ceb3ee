// The logit lens: the state decoded after every layer, for every token; for every stream alone, with the
// others at their mean; or as curves of the target token's log-probability.

import { ink, scaleFor, streamColor } from "../color.js";
import { choice, h, number, range, short } from "../dom.js";
import { colorbar, heatmap } from "../heatmap.js";
import { lineChart, penLines } from "../lines.js";
import { mean, meanOverTokens, quantile, unravel } from "../measures.js";

export const lens = {
  name: "lens",
  title: "Logit lens",
  place: "upper left",
  needs: ["lens_ids", "lens_logprob", "lens_target"],
  shows: "The logit lens: the most likely token if the state were decoded after each layer.",
  reading:
    "Colour = its log-probability; “streams” decodes each alone (where they add up, the others at their mean).",
  terms: ["logit lens", "log-probability", "target"],
  uses: ["token", "layer", "stream", "lens"],
  stretches: true,

  statistic(trace) {
    const { T, N } = trace;
    const last = trace.data("lens_target").subarray((N - 1) * T, N * T);
    return `target ${number(mean(last))} nats after the last layer`;
  },

  caption(trace) {
    const { L, steps, open } = trace;
    const top = (l, t) => trace.at("lens_ids", (l + 1) * steps - 1, t, 0);
    const settled = open.map((t) => {
      let from = L - 1; // the first layer from which the top token is the last layer's
      while (from > 0 && top(from - 1, t) === top(L - 1, t)) from--;
      return from;
    });
    const target = (l) => mean(open.map((t) => trace.at("lens_target", (l + 1) * steps - 1, t)));
    const from = quantile(settled, 0.5).toFixed(0);
    const [what, half, right] = trace.manifest.puzzle
      ? ["value", "in half of the open cells", "right value"]
      : ["token", "at half of the tokens", "target"];
    return (
      `The top ${what} is final from layer ${from} on ${half}; the mean log-probability of the ${right} goes ` +
      `from ${number(target(0))} nats after layer 0 to ${number(target(L - 1))} after layer ${L - 1}.`
    );
  },

  mount(panel, ctx) {
    const { store } = ctx;
    const kind = choice(store, "lens", "Columns", {
      tokens: ctx.said("tokens"),
      streams: "streams",
      curves: ["curves", "mean log-probability of the target, per stream"],
    });
    panel.controls.append(kind);
    const chart = h("div", { class: "chart" });
    panel.body.append(chart);
    let plot = null;
    const mode = () => (ctx.trace.has("stream_lens_id") ? store.get("lens") : "tokens");
    // the last tick of a layer, or the output
    const lensRow = (row) => (row < ctx.trace.L ? (row + 1) * ctx.trace.steps - 1 : ctx.trace.N);

    // The tokens that fit, around the selected one; a column of a board's cell is as wide as its name.
    function span(width) {
      const { T } = ctx.trace;
      const wide = ctx.isBoard ? 8 + 6 * ctx.trace.name(T - 1).length : 46;
      const count = Math.max(1, Math.min(T, Math.floor((width - 44) / wide)));
      const first = Math.max(0, Math.min(T - count, store.get("token") - Math.floor(count / 2)));
      return [first, count];
    }

    function grid(width) {
      const { trace } = ctx;
      const { token } = store.state;
      if (mode() === "streams") {
        const cells = [];
        for (let l = 0; l < trace.L; l++)
          for (let s = 0; s < trace.S; s++)
            cells.push([
              trace.at("stream_lens_id", l, token, s),
              trace.at(trace.pair ? "stream_lens_target" : "stream_lens_logprob", l, token, s),
            ]);
        return {
          rows: trace.L,
          columns: trace.S,
          cells,
          names: range(trace.S, (s) => trace.streamName(s)),
          chosen: store.get("stream"),
        };
      }
      const [first, count] = span(width);
      const rows = trace.L + (trace.hasPost ? 1 : 0);
      const cells = [];
      for (let l = 0; l < rows; l++)
        for (let t = first; t < first + count; t++)
          cells.push([
            trace.at("lens_ids", lensRow(l), t, 0),
            trace.pair ? trace.at("lens_target", lensRow(l), t) : trace.at("lens_logprob", lensRow(l), t, 0),
            t,
          ]);
      return {
        rows,
        columns: count,
        cells,
        first,
        names: range(count, (i) => trace.name(first + i, Math.floor((width - 44) / count / 6.1) - 1)),
        chosen: token - first,
      };
    }

    // Mean log-probability of the target token per layer: a line for each stream, and the whole model.
    function curves() {
      const { trace } = ctx;
      const mean = meanOverTokens(trace, "stream_lens_target");
      const x = range(trace.L, (l) => l);
      const whole = x.map((l) => {
        let sum = 0;
        for (let t = 0; t < trace.T; t++) sum += trace.at("lens_target", lensRow(l), t);
        return sum / trace.T;
      });
      const series = range(trace.S, (s) => ({
        label: trace.streamName(s),
        values: x.map((l) => mean[l * trace.S + s]),
        color: streamColor(s, trace.S),
        width: s === store.get("stream") ? 2.5 : 1,
        opacity: s === store.get("stream") ? 1 : 0.6,
      }));
      return {
        x,
        series: [
          ...series,
          { label: "all streams", values: whole, color: ink(panel.element).ink, width: 1.5, dash: [5, 3] },
        ],
        markers: [{ x: store.get("layer"), dash: [] }],
        xTitle: "layer",
        xName: "layer",
        whole: true,
        title: "log-probability of the target, nats",
      };
    }

    const drawn = {
      update() {
        if (!ctx.trace) return;
        kind.show(mode(), (one) => one === "tokens" || ctx.trace.has("stream_lens_id"));
        panel.note.textContent = {
          tokens: "state after each layer, decoded",
          streams: `each stream alone, ${ctx.trace.place(store.get("token"))}`,
          curves: ctx.said("target, mean over the prompt, nats · dashed: all streams"),
        }[mode()];
      },
      height() {
        const rows = ctx.trace.L + (ctx.trace.hasPost ? 1 : 0);
        return 60 + rows * (rows > 16 ? 18 : 27);
      },
      paint(width, height) {
        plot?.destroy();
        plot = null;
        const isChart = mode() === "curves";
        panel.canvas.hidden = isChart;
        if (isChart) {
          plot = lineChart(chart, curves(), {
            width: width * panel.scale,
            height: height * panel.scale,
            scale: panel.scale,
            theme: ink(panel.element),
            onpick: (x, near) =>
              store.set({
                ...(x !== null && x !== undefined ? { layer: x } : {}),
                ...(near !== null && near < ctx.trace.S ? { stream: near } : {}),
              }),
          });
          return;
        }
        panel.drawOnCanvas(width, height);
      },
      render(pen, width, height, theme) {
        if (mode() === "curves") {
          penLines(pen, { x: 0, y: 0, w: width, h: height }, curves(), theme);
          return;
        }
        const { trace } = ctx;
        const { rows, columns, cells, names, chosen } = grid(width);
        const values = cells.map((cell) => cell[1]);
        const colors = scaleFor(trace, values, Math.min(-4, ...values), 0);
        const wide = (width - 44) / columns;
        heatmap(
          pen,
          { x: 40, y: 4, w: width - 44, h: height - 58 },
          {
            values,
            rows,
            columns,
            scale: colors,
            theme,
            rowLabels: range(rows, (l) => (l < trace.L ? `L${l}` : "out")),
            columnLabels: names,
            monoColumns: mode() === "tokens",
            mark: { row: store.get("layer"), column: chosen },
            text:
              wide >= 16
                ? (_, row, column) =>
                    short(
                      trace.string(cells[row * columns + column][0]),
                      Math.max(1, Math.floor((wide - 4) / 6.1)),
                    )
                : null,
            size: 10,
            region: {},
          },
        );
        colorbar(
          pen,
          40,
          height - 16,
          Math.min(300, width - 44),
          colors,
          `${trace.pair ? "target's " : ""}log-probability, nats`,
          theme,
        );
        const places = trace.manifest.puzzle ? "cells, by row and column" : "the prompt";
        const columnsAre = mode() === "streams" ? "streams" : places;
        const inThem = trace.manifest.puzzle ? "the likeliest value" : "the likeliest next token";
        const said = `columns: ${columnsAre}; in them, ${inThem}`;
        if (width > 560) pen.text(said, width - 4, height - 8, { ...theme.small, align: "right" });
      },
      tip({ row, column }) {
        const { trace } = ctx;
        const { cells, columns, names } = grid(panel.size[0]);
        const [id, value, t] = cells[row * columns + column];
        const place = row < trace.L ? `after L${row}` : "output";
        return (
          `${place}, ${mode() === "streams" ? names[column] : trace.label(t)}   ` +
          `${short(trace.string(id), 16)}  ` +
          (trace.pair ? `target Δ ${number(value, 3)} nats` : `${number(Math.exp(value) * 100, 1)} %`)
        );
      },
      click({ row, column }) {
        const layer = Math.min(row, ctx.trace.L - 1);
        store.set(
          mode() === "streams"
            ? { layer, stream: column }
            : { layer, token: grid(panel.size[0]).first + column, rangeEnd: null },
        );
      },
      table() {
        const { trace } = ctx;
        const ofStreams = mode() !== "tokens";
        const names = ofStreams
          ? ["stream_lens_id", "stream_lens_logprob", "stream_lens_target"]
          : ["lens_ids", "lens_logprob", "lens_target"];
        const shape = ofStreams ? [trace.L, trace.T, trace.S] : [trace.L, trace.T];
        const rows = range(
          shape.reduce((a, b) => a * b),
          (i) => {
            const place = unravel(i, shape);
            const at = ofStreams ? place : [lensRow(place[0]), place[1], 0];
            const [id, ...scores] = names.map((name) => trace.at(name, ...at));
            return [...place, trace.string(id), ...scores];
          },
        );
        return {
          columns: ["layer", "token", ...(ofStreams ? ["stream"] : []), "top", "logprob", "target_logprob"],
          rows,
        };
      },
      python: () =>
        ctx.code.of(
          'steps = trace.manifest["axes"]["tick"] // trace.manifest["axes"]["layer"]',
          'trace["lens_ids"][steps - 1 :: steps]             # [layer, token, rank]',
          ...(ctx.trace.has("stream_lens_target")
            ? ['trace["stream_lens_target"].mean(1)               # nats, [layer, stream]']
            : []),
        ),
    };
    return drawn;
  },
};
