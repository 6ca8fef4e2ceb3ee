// The routing lens: one layer and head at one token, with numbers. Alt-click cuts an edge and runs the
// model again without it.

import { scaleFor } from "../color.js";
import { number, range } from "../dom.js";
import { colorbar, heatmap } from "../heatmap.js";
import { argmax, listed, meanWeights, patternAt, unravel } from "../measures.js";
import { isSwitch, switchLine } from "../switch.js";

export const routing = {
  name: "routing",
  title: "Routing lens",
  place: "upper right",
  needs: ["routing"],
  shows: "The attention pattern between streams of one layer and head at one token.",
  reading: "Each row sums to 1.",
  asking: "Alt-click cuts an edge at this token (shift-alt-click: at all tokens) and reruns the model.",
  terms: ["routing", "switch", "cut"],
  uses: ["layer", "head", "token", "stream", "source", "cuts", "hover", "checkpoint"],

  caption(trace) {
    const weights = meanWeights(trace);
    const at = argmax(weights);
    const [layer, head, target, source] = unravel(at, [trace.L, trace.H, trace.S, trace.S]);
    const over = trace.manifest.puzzle ? "board" : "prompt";
    return (
      `The strongest edge, averaged over the ${over}, is S${target} ← S${source} in layer ${layer}, head ${head}: ` +
      `${weights[at].toFixed(2)}, ${(weights[at] * trace.S).toFixed(1)} times the uniform weight.`
    );
  },

  mount(panel, ctx) {
    const { store } = ctx;
    const pattern = () => patternAt(ctx.trace, store.get("layer"), store.get("head"), store.get("token"));
    const isCut = ([l, head, target, source, token], row, column) =>
      l === store.get("layer") &&
      head === store.get("head") &&
      target === row &&
      source === column &&
      (token === null || token === store.get("token"));

    const line = ctx.client && ctx.info?.switches?.length ? switchLine(ctx) : null;
    if (line) panel.body.append(line);

    return {
      update() {
        line?.update();
        if (!ctx.trace) return;
        const { layer, head, token } = store.state;
        // of the untouched model: an edge may be cut at one token
        const isConstant = layer === 0 && ctx.trace === ctx.base && ctx.trace.manifest.model.config.z0 !== "input";
        panel.note.textContent =
          `L${layer} H${head} at ${ctx.trace.label(token)}` +
          (isConstant ? ` · identical at every ${ctx.trace.unit}` : "");
      },
      height: (width) => Math.min(width - 44, 300) + 58,
      render(pen, width, height, theme) {
        const { S } = ctx.trace;
        const { stream, source, cuts, hover } = store.state;
        const size = Math.min(width - 50, height - 58),
          left = Math.max(44, (width - size) / 2);
        const values = pattern();
        const colors = scaleFor(ctx.trace, values, 0, Math.max(...values, 0.05), 0.05);
        const names = range(S, (s) => `S${s}`);
        const cell = size / S;
        heatmap(
          pen,
          { x: left, y: 6, w: size, h: size },
          {
            values,
            rows: S,
            columns: S,
            scale: colors,
            theme,
            rowLabels: names,
            columnLabels: names,
            rowTitle: "target (reads)",
            columnTitle: "source (read from)",
            rowGap: 32,
            mark:
              hover?.target !== undefined
                ? { row: hover.target, column: hover.source }
                : { row: stream, column: source },
            text:
              cell >= 19
                ? (value, row, column) =>
                    cuts.some((cut) => isCut(cut, row, column)) ? "✕" : number(value).replace(/^(−?)0/, "$1")
                : (value, row, column) => (cuts.some((cut) => isCut(cut, row, column)) ? "✕" : ""),
            size: cell >= 30 ? 11 : 8,
            region: {},
          },
        );
        if (line && !store.get("checkpoint"))
          for (let i = 0; i < S * S; i++) {
            const [row, column] = [Math.floor(i / S), i % S];
            if (isSwitch(ctx.info, store.get("layer"), store.get("head"), row, column))
              pen.rect(left + (column + 1) * cell - 7, 6 + row * cell + 2, 5, 5, {
                fill: theme.warm,
                stroke: theme.panel,
              });
          }
        colorbar(pen, left, size + 40, Math.min(size, 300), colors, "weight", theme);
      },
      tip: ({ row, column }) =>
        `S${row} ← S${column}   ${number(pattern()[row * ctx.trace.S + column], 3)}` +
        (ctx.client
          ? ctx.said(`\n${ctx.changing} cuts this edge at this token,\nshift-${ctx.changing} at all tokens`)
          : ""),
      hover: (hit) => store.set({ hover: hit ? { target: hit.row, source: hit.column } : null }),
      click({ row, column }, event) {
        const { layer, head, token, cuts } = store.state;
        if (!ctx.isChange(event)) {
          store.set({ stream: row, source: column });
          return;
        }
        const there = cuts.filter((cut) => isCut(cut, row, column));
        const rest = cuts.filter((cut) => !isCut(cut, row, column));
        store.set({
          stream: row,
          source: column,
          cuts: there.length ? rest : [...cuts, [layer, head, row, column, event.shiftKey ? null : token]],
        });
      },
      table: () => ({
        columns: ["target", "source", "weight"],
        rows: listed(pattern(), [ctx.trace.S, ctx.trace.S]),
      }),
      python() {
        const { layer, token, head } = store.state;
        return ctx.code.of(`trace.weights[${layer}, ${token}, ${head}]           # [target, source]`);
      },
    };
  },
};
