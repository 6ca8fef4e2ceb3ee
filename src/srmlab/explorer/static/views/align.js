// Alignment: cosine similarity of the connection to the token input, and of updates to states.

import { scale, scaleFor } from "../color.js";
import { choice, number, percent, range } from "../dom.js";
import { colorbar, heatmap } from "../heatmap.js";
import { mean, meanOverTokens } from "../measures.js";

const ARRAYS = { connection: "connection_cosine", update: "update_cosine", update_in: "update_cosine_in" };
const ABOUT = {
  connection: "cos(c, x): connection against the input",
  update: "cos(update, step output)",
  update_in: "cos(update, state before the step)",
};

export const align = {
  name: "align",
  title: "Alignment",
  place: "lower left",
  needs: ["update_cosine", "update_cosine_in"],
  shows:
    "Cosine similarity of the connection to the token input, and of each update to the step's output and input state.",
  reading: "Colours are means over tokens; click one for its distribution over the prompt.",
  terms: ["update", "connection"],
  uses: ["align", "layer", "step", "stream", "token"],
  stretches: true,

  statistic(trace) {
    const [name, array] = trace.has("connection_cosine")
      ? ["cos(c, x)", "connection_cosine"]
      : ["cos(update, step output)", "update_cosine"];
    return `mean ${name} ${number(mean(trace.data(array)), 3)}`;
  },

  caption(trace) {
    const update = meanOverTokens(trace, "update_cosine");
    const range = `from ${number(Math.min(...update))} to ${number(Math.max(...update))}`;
    const updates = `update and step output have mean cosine ${number(mean(update), 3)} (${range}).`;
    if (!trace.has("connection_cosine")) return updates.replace("update", "Update");
    const connection = meanOverTokens(trace, "connection_cosine");
    const negative = connection.filter((value) => value < 0).length / connection.length;
    return (
      `Connection and input have mean cosine ${number(mean(connection), 3)}, ` +
      `${percent(negative)} of the layer–stream pairs below 0; ${updates}`
    );
  },

  mount(panel, ctx) {
    const { store } = ctx;
    const kind = choice(store, "align", "Map", {
      connection: "connection",
      update: "update – output",
      update_in: "update – state",
    });
    panel.controls.append(kind);
    const shown = () => ctx.trace.choose(ARRAYS, store.get("align"));
    const name = () => ARRAYS[shown()];
    const perTick = () => shown() !== "connection";
    const row = () => (perTick() ? ctx.tick() : store.get("layer"));

    function placeOf(row) {
      const { steps } = ctx.trace;
      if (!perTick()) return `layer ${row}`;
      return `layer ${Math.floor(row / steps)} step ${row % steps} (${ctx.trace.letter(row)})`;
    }

    // The selected cell at every token.
    const chosen = () => range(ctx.trace.T, (t) => ctx.trace.at(name(), row(), t, store.get("stream")));

    function histogram(pen, x, y, w, h, theme) {
      const { stream, token } = store.state;
      const values = chosen();
      const bins = new Array(24).fill(0);
      const low = Math.min(...values),
        high = Math.max(...values),
        span = Math.max(high - low, 0.02);
      const from = (low + high) / 2 - span / 2;
      const bin = (value) => Math.min(23, Math.max(0, Math.floor(((value - from) / span) * 24)));
      for (const value of values) bins[bin(value)]++;
      const most = Math.max(...bins);
      bins.forEach((count, i) =>
        pen.rect(x + (i * w) / 24, y + h - (count / most) * h, w / 24 - 1, (count / most) * h, {
          fill: i === bin(values[token]) ? theme.mark : theme.cool,
        }),
      );
      pen.path(`M${x} ${y + h + 0.5}h${w}`, { stroke: theme.line });
      pen.text(number(from), x, y + h + 12, theme.small);
      pen.text(number(from + span), x + w, y + h + 12, { ...theme.small, align: "right" });
      const where = perTick() ? `L${store.get("layer")} step ${store.get("step")}` : `L${store.get("layer")}`;
      pen.text(`S${stream}, ${where}`, x, y - 22, { color: theme.ink, size: 11, weight: 600 });
      pen.text(`mean ${number(values.reduce((a, b) => a + b, 0) / values.length, 3)}`, x, y - 8, theme.small);
      const isWide = w > 130;
      if (isWide) pen.text(`over ${ctx.trace.unit}s`, x + w, y - 8, { ...theme.small, align: "right" });
      const here = `here: ${number(values[token])}`; // the bar in this colour
      pen.text(here, x + w, isWide ? y - 22 : y + h + 24, {
        ...theme.small,
        color: theme.mark,
        align: "right",
      });
    }

    return {
      update() {
        kind.show(shown(), (one) => ctx.trace.has(ARRAYS[one]));
        panel.note.textContent = ABOUT[shown()];
      },
      height: () => Math.max(234, 60 + 14 * ctx.trace.L),
      render(pen, width, height, theme) {
        const { trace } = ctx;
        const values = meanOverTokens(trace, name());
        const rows = perTick() ? trace.N : trace.L;
        let most = 0.1;
        for (const value of values) most = Math.max(most, Math.abs(value));
        const colors = trace.pair ? scaleFor(trace, values) : scale("diverging", -most, most);
        const side = Math.min(190, width * 0.32);
        heatmap(
          pen,
          { x: 40, y: 6, w: width - side - 70, h: height - 56 },
          {
            values,
            rows,
            columns: trace.S,
            scale: colors,
            theme,
            rowLabels: range(rows, (r) =>
              perTick() ? `${Math.floor(r / trace.steps)}${trace.letter(r)}` : `L${r}`,
            ),
            columnLabels: range(trace.S, (s) => `S${s}`),
            mark: { row: row(), column: store.get("stream") },
            region: {},
          },
        );
        colorbar(pen, 40, height - 20, 220, colors, "cosine", theme);
        histogram(pen, width - side, 46, side - 4, height - 100, theme);
      },
      tip: ({ row, column }) =>
        `S${column}, ${placeOf(row)}   ` +
        `${number(meanOverTokens(ctx.trace, name())[row * ctx.trace.S + column], 3)}`,
      click({ row, column }) {
        if (perTick()) ctx.goto(row);
        else store.set({ layer: row });
        store.set({ stream: column });
      },
      table() {
        const values = meanOverTokens(ctx.trace, name());
        const map = Array.from(values, (value, i) => [
          Math.floor(i / ctx.trace.S),
          i % ctx.trace.S,
          "mean",
          value.toFixed(5),
        ]);
        const cell = chosen().map((value, t) => [row(), store.get("stream"), t, value.toFixed(5)]);
        return {
          columns: [perTick() ? "tick" : "layer", "stream", "token", "cosine"],
          rows: [...map, ...cell],
        };
      },
      python: () =>
        ctx.code.of(
          `trace["${name()}"].mean(1)        # [${perTick() ? "tick" : "layer"}, stream]`,
          `trace["${name()}"][${row()}, :, ${store.get("stream")}]      # its distribution over tokens`,
        ),
    };
  },
};
