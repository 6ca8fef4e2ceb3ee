// Stream flow: streams as lanes, depth along x. An arc is an edge of one layer: its width the
// weight, its colour the head. Drawn as SVG.

import { headColor, ink, streamColor } from "../color.js";
import { h, number, player, range } from "../dom.js";
import { arc, drawLanes } from "../lanes.js";
import { thresholdOf, tokenSpan, unravel, wallMaps } from "../measures.js";
import { SvgPen } from "../pen.js";

const MOST = 1500; // arcs drawn; past that the strongest

export const flow = {
  name: "flow",
  title: "Stream flow",
  place: "upper left",
  needs: ["routing"],
  shows: "Streams as lanes over depth, with the edges above the threshold as arcs.",
  reading: "Arc width = attention weight, colour = head; click a lane to select its stream and layer.",
  terms: ["stream", "routing", "layer"],
  uses: ["token", "rangeEnd", "threshold", "layer", "head", "stream", "flow"],
  stretches: true,

  caption(trace) {
    const maps = wallMaps(trace, "frequency", thresholdOf(trace), 0, trace.T - 1);
    const size = maps.length / trace.L;
    const counts = range(
      trace.L,
      (l) => maps.subarray(l * size, (l + 1) * size).filter((share) => share > 0.5).length,
    );
    const least = number(thresholdOf(trace));
    const said =
      counts.length <= 12
        ? counts.join(" ")
        : `${counts.slice(0, 4).join(" ")} … ${counts.at(-1)} in the last of ${counts.length}`;
    return `Edges above ${least} at more than half of the ${trace.unit}s, by layer: ${said}.`;
  },

  mount(panel, ctx) {
    const { store } = ctx;
    const host = h("div", { class: "flow", role: "img", "aria-label": panel.title });
    panel.canvas.replaceWith(host);
    const next = () => store.get("layer") + 1;
    const play = player(
      "Play through depth",
      " depth",
      650,
      () => store.set({ layer: 0 }),
      () => {
        if (next() < ctx.trace.L) store.set({ layer: next() });
        return next() < ctx.trace.L;
      },
    );
    const all = h("input", {
      type: "checkbox",
      onchange: () => store.set({ flow: all.checked ? "all" : "layer" }),
    });
    panel.controls.append(play, h("label", { class: "check" }, all, "all layers"));

    // Weights differ by less than they are: of a difference, a tenth.
    const least = () => store.get("threshold") / (ctx.trace.pair ? 10 : 1);
    // Mean weights over the selected tokens: edges [layer, head, target, source, weight] above the threshold,
    // none to itself.
    function edges() {
      const { trace } = ctx;
      const { L, H, S } = trace;
      const weights = wallMaps(trace, "mean", 0, ...tokenSpan(store.state, trace));
      const floor = least();
      const found = [];
      for (let i = 0; i < weights.length; i++)
        if (Math.abs(weights[i]) > floor && Math.floor(i / S) % S !== i % S)
          found.push([...unravel(i, [L, H, S, S]), weights[i]]);
      return found;
    }

    const drawn = {
      update() {
        all.checked = store.get("flow") === "all";
      },
      height: () => Math.max(200, Math.min(460, ctx.trace.S * 33 + 46)),
      stretched: () => host,
      paint(width, height) {
        host.style.height = "";
        const pen = new SvgPen(width, height);
        drawn.render(pen, width, height, ink(panel.element));
        host.innerHTML = pen.toString();
        host.firstChild.setAttribute("width", width * panel.scale);
        host.firstChild.setAttribute("height", height * panel.scale);
        host.onclick = (event) => {
          const box = host.getBoundingClientRect();
          const hit = pen.find(
            (event.clientX - box.left) / panel.scale,
            (event.clientY - box.top) / panel.scale,
          );
          if (hit) store.set({ stream: hit.row, layer: Math.min(ctx.trace.L - 1, hit.column) });
        };
      },
      render(pen, width, height, theme) {
        const { S, L, H } = ctx.trace;
        const { layer, stream, head: chosen, flow } = store.state;
        const left = 34,
          right = 16,
          top = 20,
          lane = (height - top - 26) / S;
        const step = (width - left - right) / L;
        const x = (l) => left + l * step;
        const y = (s) => top + (s + 0.5) * lane;
        drawLanes(pen, ctx.trace, { x, y, lane, opacity: 0.7 }, store.state, theme);
        const list = edges()
          .sort((a, b) => Math.abs(a[4]) - Math.abs(b[4]))
          .slice(-MOST); // the strongest on top
        const strongest = Math.max(ctx.trace.pair ? 1e-3 : 0.05, ...list.map((edge) => Math.abs(edge[4])));
        for (const [l, head, target, source, weight] of list) {
          const here = l === layer || flow === "all";
          const touches = target === stream || source === stream;
          const isStrong = Math.abs(weight) > 2 / S || Boolean(ctx.trace.pair); // of twice an even share
          const shift = (head - (H - 1) / 2) * Math.min(2.2, lane / 8);
          pen.path(arc(x(l), x(l + 1), y(source) + shift, y(target) + shift), {
            stroke: ctx.trace.pair ? (weight > 0 ? theme.warm : theme.cool) : headColor(head),
            width: 0.4 + 5 * (Math.abs(weight) / strongest) ** 1.5,
            opacity:
              (here ? 0.75 : isStrong ? 0.4 : 0.08) * (touches ? 1 : 0.55) * (head === chosen ? 1 : 0.8),
            title: `L${l} H${head}  S${target} ← S${source}  ${number(weight, 3)}`,
          });
        }
        for (let s = 0; s < S; s++)
          for (let l = 0; l <= L; l++)
            pen.rect(x(l) - 2, y(s) - 2, 4, 4, { fill: streamColor(s, S), radius: 2 });
        pen.region({ x: left, y: top, w: L * step, h: S * lane, rows: S, columns: L });
        let at = left;
        const key = ctx.trace.pair
          ? [
              ["more", theme.warm],
              ["less", theme.cool],
            ]
          : range(H, (head) => [`H${head}`, headColor(head)]);
        for (const [name, fill] of key) {
          pen.rect(at, height - 14, 14, 3, { fill });
          pen.text(name, at + 18, height - 9, theme.small);
          at += 28 + pen.measure(name, { size: 10 });
        }
        const arcs = list.length ? `${list.length} arcs, widest ${number(list.at(-1)[4])}` : "no arcs";
        const said = `${ctx.trace.pair ? "|Δ|" : "weight"} > ${Number(least().toFixed(3))}, ${arcs}`;
        const rest = "; self-edges not drawn";
        const fits = pen.measure(said + rest, { size: 10 }) < width - at - 4;
        pen.text(fits ? said + rest : said, at + 4, height - 9, theme.small);
      },
      table: () => ({
        columns: ["layer", "head", "target", "source", "weight"],
        rows: edges().map((edge) => [...edge.slice(0, 4), edge[4].toFixed(5)]),
      }),
      python() {
        const [a, b] = tokenSpan(store.state, ctx.trace);
        return ctx.code.of(
          `weights = trace.weights[:, ${a}:${b + 1}].mean(1)     # [layer, head, target, source]`,
          `weights[..., range(${ctx.trace.S}), range(${ctx.trace.S})] = 0  # self-edges are not drawn`,
          `(weights > ${least()}).nonzero()`,
        );
      },
    };
    return drawn;
  },
};
