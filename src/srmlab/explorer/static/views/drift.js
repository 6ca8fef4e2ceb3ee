// Drift: how much each step function's contribution changes from one layer to the next, a line for every
// stream, with the median, the quartiles and where it converges.

import { ink, streamColor } from "../color.js";
import { choice, h, number, range } from "../dom.js";
import { lineChart, penLines } from "../lines.js";
import { driftClass, driftOf, mean, quantile } from "../measures.js";

const LOW = 150; // pixels that a chart is high at least
const NARROW = 150; // and wide, with its name
const NONE = "A model of one layer has no transitions.";

export const drift = {
  name: "drift",
  title: "Drift",
  place: "lower right",
  needs: ["drift_cosine", "drift_kl", "convergence_cosine", "convergence_kl"],
  shows:
    "How much each step function's contribution changes between consecutive layers, one line per stream.",
  reading:
    "Bold: median over streams; band: quartiles; dashed: median convergence; upright: transition into the selected " +
    "layer. In brackets, when the selected stream converges: early, in the middle or late.",
  terms: ["drift", "step"],
  uses: ["drift", "stream", "layer"],
  stretches: true,

  statistic(trace) {
    const { transitions } = driftOf(trace, "cosine", 0);
    const last = trace.manifest.letters.flatMap((_, g) =>
      driftOf(trace, "cosine", g).lines.map((line) => line[transitions - 1]),
    );
    return `1 − cos ${number(mean(last), 4)} at the last transition`;
  },

  caption(trace) {
    const groups = trace.manifest.letters.map((_, g) => driftOf(trace, "cosine", g));
    const { transitions } = groups[0];
    if (transitions === 0) return NONE;
    const across = (d) => mean(groups.flatMap(({ lines }) => lines.map((line) => line[d])));
    const [first, last] = [across(0), across(transitions - 1)];
    if (transitions === 1) return `Mean cosine distance is ${first.toFixed(3)} from the first layer to the second.`;
    // gaps: a random order, or a stream that a group does not move
    const converged = groups.flatMap((group) => Array.from(group.converged)).filter(Number.isFinite);
    const classes = converged.map((at) => driftClass(at, transitions));
    const count = (name) => classes.filter((one) => one === name).length;
    return (
      `Mean cosine distance ${last < first ? "falls" : "rises"} from ${first.toFixed(3)} to ` +
      `${last.toFixed(3)} over depth; of ${classes.length} group–stream pairs, ${count("early")} converge ` +
      `early, ${count("middle")} midway, ${count("late")} late.`
    );
  },

  mount(panel, ctx) {
    const { store } = ctx;
    const kind = choice(store, "drift", "Drift", { cosine: "cosine distance", kl: "KL, nats" });
    panel.controls.append(kind);
    panel.canvas.hidden = true;
    const host = h("div", { class: "charts" });
    panel.body.append(host);
    let plots = [];

    function spec(group) {
      const { trace } = ctx;
      const theme = ink(panel.element);
      const { lines, converged, transitions } = driftOf(trace, store.get("drift"), group);
      const x = range(transitions, (d) => d);
      const dots = transitions === 1; // too few for a line
      const at = (q) =>
        x.map((d) =>
          quantile(
            lines.map((line) => line[d]),
            q,
          ),
        );
      const { stream: chosen, layer } = store.state;
      const names = trace.pair
        ? { cosine: "Δ 1−cos", kl: "Δ KL, nats" }
        : { cosine: "1 − cos", kl: "KL, nats" };
      const name = names[store.get("drift")];
      return {
        x,
        whole: true,
        xTitle: "transition",
        xName: "transition",
        title:
          `${trace.manifest.letters[group]}: ${name}` +
          (Number.isFinite(converged[chosen])
            ? ` (${driftClass(converged[chosen], transitions)})`
            : ""),
        band: { low: at(0.25), high: at(0.75), color: theme.band, solid: theme.dim },
        series: [
          ...moved(lines).map((s) => ({
            label: trace.streamName(s),
            values: Array.from(lines[s]),
            color: streamColor(s, trace.S),
            width: s === chosen ? 2.2 : 0.8,
            opacity: s === chosen ? 1 : 0.45,
            dots,
          })),
          { label: "median", values: at(0.5), color: theme.ink, width: 1.6, dots },
        ],
        markers: [
          { x: quantile(converged, 0.5) },
          ...(layer > 0 ? [{ x: layer - 1, color: theme.dim, dash: [] }] : []),
        ], // into the selected layer
      };
    }

    // Where drift falls by powers of ten; not in every model it does, and of a difference it goes both ways.
    const isLog = () => {
      const values = range(ctx.trace.G, (g) => driftOf(ctx.trace, store.get("drift"), g).lines)
        .flatMap((lines) => lines.flatMap((line) => Array.from(line)))
        .filter(Number.isFinite);
      const least = Math.min(...values);
      return !ctx.trace.pair && least > 0 && Math.max(...values) >= 10 * least;
    };
    const streams = (group) => moved(driftOf(ctx.trace, store.get("drift"), group).lines);
    // as many beside one another as have room; in a tall place one below the other, rather than narrow towers
    const perRow = (width, height = 0) => {
      const { G } = ctx.trace;
      const most = Math.max(1, Math.min(G > 3 ? Math.ceil(G / 2) : G, Math.floor(width / NARROW)));
      return height >= G * LOW && height > (2 * width) / most ? 1 : most;
    };
    const rowsIn = (width, height) => Math.ceil(ctx.trace.G / perRow(width, height));
    return {
      update() {
        if (!ctx.trace) return;
        kind.show(store.get("drift"));
        const whose = ctx.trace.S > 1 ? `brackets: ${ctx.trace.streamName(store.get("stream"))} · ` : "";
        panel.note.textContent = `${whose}dashed: median`;
      },
      height: (width) => (rowsIn(width) > 1 ? 180 * rowsIn(width) : 210),
      stretched: () => host,
      paint(width, height) {
        host.style.height = "";
        plots.forEach((plot) => plot.destroy());
        const { G } = ctx.trace;
        if (ctx.trace.L < 2) {
          host.textContent = NONE;
          return;
        }
        const columns = perRow(width, height),
          rows = rowsIn(width, height);
        const cells = range(G, (group) => h("div", { class: "cell" }, h("h3", {}, spec(group).title)));
        host.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
        host.replaceChildren(...cells);
        plots = cells.map((cell, group) =>
          lineChart(cell, spec(group), {
            width: Math.floor((width * panel.scale) / columns) - 6,
            height: Math.floor((height * panel.scale) / rows) - 16 * panel.scale,
            scale: panel.scale,
            theme: ink(panel.element),
            log: isLog(),
            sync: "drift",
            onpick: (x, near) =>
              store.set({
                ...(near !== null && near < streams(group).length ? { stream: streams(group)[near] } : {}),
                ...(x !== null && x !== undefined ? { layer: Math.min(ctx.trace.L - 1, x + 1) } : {}),
              }),
          }),
        );
      },
      render(pen, width, height, theme) {
        if (ctx.trace.L < 2) {
          pen.text(NONE, 8, 24, { color: theme.dim, size: 11 });
          return;
        }
        const columns = perRow(width, height),
          rows = rowsIn(width, height);
        for (let g = 0; g < ctx.trace.G; g++)
          penLines(
            pen,
            {
              x: ((g % columns) * width) / columns,
              y: Math.floor(g / columns) * (height / rows),
              w: width / columns,
              h: height / rows,
            },
            spec(g),
            theme,
            { log: isLog() },
          );
      },
      table() {
        const { trace } = ctx;
        const rows = [];
        for (let g = 0; g < trace.G; g++) {
          const { lines, converged, transitions } = driftOf(trace, store.get("drift"), g);
          moved(lines).forEach((s) =>
            lines[s].forEach((value, d) =>
              rows.push([
                trace.manifest.letters[g],
                s,
                d,
                number(value, 6).replace("−", "-"),
                converged[s],
                driftClass(converged[s], transitions),
              ]),
            ),
          );
        }
        return {
          columns: ["group", "stream", "transition", store.get("drift"), "converges_at", "class"],
          rows,
        };
      },
      python: () =>
        ctx.code.of(
          `trace["drift_${store.get("drift")}"].mean(2)              # [transition, group, stream], mean over tokens`,
        ),
    };
  },
};

// The streams that a group moves.
function moved(lines) {
  return lines.map((_, s) => s).filter((s) => lines[s].some(Number.isFinite));
}
