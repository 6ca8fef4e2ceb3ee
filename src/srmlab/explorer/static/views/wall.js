// The routing wall: for every layer and head a map of which stream (row, target) reads which (column,
// source).

import { scaleFor } from "../color.js";
import { choice, h, number, percent, range } from "../dom.js";
import { colorbar } from "../heatmap.js";
import { argmax, hubScores, listed, mean, thresholdOf, tokenSpan, wallMaps } from "../measures.js";

const LEAST = 32; // pixels of a map
const BELOW = 20; // pixels of what is below the maps

export const wall = {
  name: "wall",
  title: "Routing wall",
  place: "upper left",
  needs: ["routing", "hub_score", "incoming", "self_routing"],
  shows: "The connection's attention patterns between streams, one map for each layer and head.",
  reading: "Row = target (reads), column = source (read from); click a map to open it in the routing lens.",
  terms: ["routing", "connection", "threshold", "hub and sink"],
  uses: ["wall", "scope", "threshold", "layer", "head", "stream", "source", "token", "rangeEnd", "hover"],

  statistic(trace, { threshold }) {
    const { hub } = hubScores(trace, threshold);
    return `most-read stream ${percent(Math.max(...hub))}, mean ${percent(mean(hub))} over ${number(threshold)}`;
  },

  caption(trace) {
    const { hub, self } = hubScores(trace, thresholdOf(trace));
    const [most, least] = [argmax(hub), argmax(hub.map((value) => -value))];
    const all = mean(wallMaps(trace, "frequency", thresholdOf(trace), 0, trace.T - 1));
    return (
      `S${most} is read most: ${percent(hub[most])} of its edges to other streams exceed ` +
      `${number(thresholdOf(trace))} (S${least}, the weakest: ${percent(hub[least])}). So do ` +
      `${percent(mean(self))} of self-edges and ${percent(all)} of all edges.`
    );
  },

  mount(panel, ctx) {
    const { store } = ctx;
    const kind = choice(store, "wall", "Show", {
      frequency: ["frequency", ctx.said("share of tokens with weight above the threshold")],
      mean: "mean weight",
    });
    const scope = choice(store, "scope", "Over", {
      prompt: ctx.said("prompt"),
      selection: ["selection", ctx.said("only the selected token or range")],
    });
    const slider = h("input", {
      type: "range",
      min: "0",
      max: "0.6",
      step: "0.01",
      "aria-label": "Threshold",
      oninput: () => store.set({ threshold: Number(slider.value) }),
    });
    const value = h("output", {});
    panel.controls.append(kind, scope, h("label", { class: "slider" }, "> ", slider, value));
    let kept = { key: "", maps: null };

    function maps() {
      const { trace } = ctx;
      const { wall, threshold, scope } = store.state;
      const [first, last] = scope === "selection" ? tokenSpan(store.state, trace) : [0, trace.T - 1];
      const key = `${wall} ${wall === "mean" ? "" : threshold} ${first} ${last}`;
      if (kept.trace !== trace || kept.key !== key)
        kept = { trace, key, maps: wallMaps(trace, wall, threshold, first, last) };
      return kept.maps;
    }

    // Layers run along x, in several lines where they would be too small for one, or would leave much of the
    // height empty; heads are rows.
    function layout(width, height = 0) {
      const { L, H } = ctx.trace;
      const left = 30,
        gap = 6;
      const room = width - left - 1; // the last frame is whole
      const across = (lines) => Math.floor((room + gap) / Math.ceil(L / lines)) - gap;
      const down = (lines) => Math.floor(((height - BELOW) / lines - 18) / H) - gap;
      const fits = (lines) => Math.min(across(lines), down(lines)); // the size of a map
      const fewest = Math.ceil(L / Math.max(1, Math.floor((room + gap) / (LEAST + gap))));
      const tried = range(height ? L - fewest + 1 : 1, (more) => fewest + more);
      const lines = tried.reduce((best, one) => (fits(one) > fits(best) ? one : best));
      const columns = Math.ceil(L / lines);
      const size = height ? fits(lines) : across(lines);
      const tall = 18 + H * (size + gap); // of a line, with the names of its layers
      return {
        left,
        size,
        lines,
        x: (layer) => left + (layer % columns) * (size + gap),
        y: (layer, head) => Math.floor(layer / columns) * tall + 18 + head * (size + gap),
        bottom: lines * tall,
      };
    }

    return {
      update() {
        kind.show(store.get("wall"));
        scope.show(store.get("scope"));
        slider.value = String(store.get("threshold"));
        value.textContent = number(store.get("threshold"));
      },
      height(width) {
        return layout(width).bottom + BELOW;
      },
      render(pen, width, height, theme) {
        const { trace } = ctx;
        const { S, L, H } = trace;
        const state = store.state;
        const { left, size, lines, ...place } = layout(width, height);
        const values = maps();
        let high = 0;
        for (const v of values) if (v > high) high = v;
        const colors = scaleFor(trace, values, 0, state.wall === "frequency" ? 1 : Math.max(high, 1e-6));
        const cell = size / S;
        for (let l = 0; l < L; l++) {
          const x = place.x(l);
          pen.text(`L${l}`, x + size / 2, place.y(l, 0) - 6, {
            color: l === state.layer ? theme.ink : theme.dim,
            weight: l === state.layer ? 700 : 400,
            align: "middle",
            size: 10,
          });
          for (let head = 0; head < H; head++) {
            const y = place.y(l, head);
            const at = (l * H + head) * S * S;
            pen.cells(x, y, size, size, S, S, colors.paint(values.subarray(at, at + S * S)));
            const chosen = l === state.layer && head === state.head;
            pen.rect(x, y, size, size, { stroke: chosen ? theme.mark : theme.line, width: chosen ? 2 : 1 });
            crosshair(pen, x, y, size, cell, state, theme);
            pen.region({ x, y, w: size, h: size, rows: S, columns: S, layer: l, head });
          }
        }
        for (let i = 0; i < lines * H; i++) {
          const head = i % H;
          const first = Math.floor(i / H) * Math.ceil(L / lines); // of its line
          pen.text(`H${head}`, left - 6, place.y(first, head) + size / 2 + 4, {
            color: head === state.head ? theme.ink : theme.dim,
            weight: head === state.head ? 700 : 400,
            align: "right",
            size: 10,
          });
        }
        const bottom = place.bottom + 5;
        const side = width > 460 ? left + 170 : left; // a narrow picture has no room for both
        if (side > left) pen.text("row = target, column = source", left, bottom + 8, theme.small);
        const name =
          state.wall === "frequency"
            ? `share of ${ctx.trace.unit}s with weight > ${number(state.threshold)}`
            : "mean weight";
        colorbar(pen, side, bottom, Math.min(360, width - side), colors, name, theme);
      },
      tip({ layer, head, row, column }) {
        const value = maps()[((layer * ctx.trace.H + head) * ctx.trace.S + row) * ctx.trace.S + column];
        return `L${layer} H${head}   S${row} ← S${column}   ${number(value, 3)}`;
      },
      hover(hit) {
        store.set({ hover: hit ? { target: hit.row, source: hit.column } : null });
      },
      click({ layer, head, row, column }) {
        store.set({ layer, head, stream: row, source: column });
      },
      table: () => ({
        columns: ["layer", "head", "target", "source", store.get("wall")],
        rows: listed(maps(), [ctx.trace.L, ctx.trace.H, ctx.trace.S, ctx.trace.S]),
      }),
      python() {
        const { wall, threshold, scope } = store.state;
        const [a, b] = tokenSpan(store.state, ctx.trace);
        const cut = scope === "selection" ? `[:, ${a}:${b + 1}]` : "";
        return ctx.code.of(
          `weights = trace.weights${cut}            # [layer, token, head, target, source]`,
          `${wall === "mean" ? "weights" : `(weights > ${threshold})`}.mean(1)     # [layer, head, target, source]`,
        );
      },
    };
  },
};

function crosshair(pen, x, y, size, cell, state, theme) {
  const hover = state.hover?.target !== undefined ? state.hover : null;
  const target = hover ? hover.target : state.stream,
    source = hover ? hover.source : state.source;
  const style = { stroke: theme.mark, width: 1, opacity: hover ? 0.8 : 0.4 };
  pen.path(`M${x} ${y + target * cell}h${size}M${x} ${y + (target + 1) * cell}h${size}`, style);
  pen.path(`M${x + source * cell} ${y}v${size}M${x + (source + 1) * cell} ${y}v${size}`, style);
}
