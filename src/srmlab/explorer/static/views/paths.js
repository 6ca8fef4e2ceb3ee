// Paths: what one prediction owes to every edge between the streams, back through the layers. The numbers are
// those of srmlab.analysis.edge_attribution; they are asked for when the panel is in sight.

import { Asked } from "../asked.js";
import { choice, h, number, range, short } from "../dom.js";
import { arc, drawLanes } from "../lanes.js";
import { unravel } from "../measures.js";
import { wrapped } from "../pen.js";

const LISTED = 12; // edges with a button of their own
const EMPTY = 0.35; // the width of a layer without edges, beside one with some
const NARROW = 620; // pixels of a picture whose sentence takes several lines
const NEAR = 9; // pixels from an arc that still mean it

export const paths = {
  name: "paths",
  title: "Paths to a prediction",
  place: "wide",
  needs: ["routing", "ablation_kl", "lens_ids", "target"],
  shows:
    "What the logit of one prediction owes to each edge between streams (arcs), to each " +
    "stream's state (dots) and to what the streams finally write (bars).",
  reading:
    "Orange raises the logit, blue lowers it, width is by how much; arcs are pattern × value " +
    "× output with the patterns held, and the gradient from there on: click one to cut it and " +
    "see what it really does.",
  terms: ["connection", "cut", "logit"],
  uses: ["token", "predicted", "edges", "reach", "cuts", "stream", "layer"],

  available: ({ client }) => client !== null,

  mount(panel, ctx) {
    const { store } = ctx;
    const isText = ctx.info?.generates ?? true; // else a board's cells
    const predicted = choice(store, "predicted", "Prediction", {
      top: ["first choice", "the model's, without intervention"],
      target: isText
        ? ["next token", "the one that comes next in the prompt"]
        : ["right value", "the solution's"],
    });
    const reach = choice(store, "reach", "Edges at", {
      here: isText ? "at this token" : "at this cell",
      earlier: [
        isText ? "at earlier tokens" : "at other cells",
        ctx.said("which reach this one by attention over tokens"),
      ],
    });
    const slider = h("input", {
      type: "range",
      min: "1",
      max: "120",
      "aria-label": "Edges drawn",
      oninput: () => store.set({ edges: Number(slider.value) }),
    });
    const count = h("output", {});
    panel.controls.append(predicted, reach, h("label", { class: "slider" }, "strongest ", slider, count));
    const list = h("div", { class: "chips", role: "group", "aria-label": "The strongest edges" });
    panel.body.append(list);

    // The token whose logit it is; the same in all versions.
    function target() {
      const { base } = ctx;
      const token = store.get("token");
      const last = base.arrays.lens_ids.shape[0] - 1;
      return store.get("predicted") === "top"
        ? base.at("lens_ids", last, token, 0)
        : base.at("target", token);
    }

    const word = () => `“${short(ctx.base.string(target()), 12)}”`;

    const asked = new Asked(ctx, "paths", {
      question: () => ctx.question({ token: store.get("token"), target: target() }),
      minus,
      ready() {
        panel.redraw();
        listEdges();
      },
    });
    const values = () => asked.now[store.get("reach") === "here" ? "edges" : "earlier"];

    // The strongest edges, the strongest first: { layer, head, target, source, value }.
    function strongest(count) {
      const { L, H, S } = ctx.base;
      const all = values();
      return Array.from(all, (_, i) => i)
        .sort((a, b) => Math.abs(all[b]) - Math.abs(all[a]))
        .slice(0, count)
        .filter((i) => all[i] !== 0)
        .map((i) => {
          const [layer, head, target, source] = unravel(i, [L, H, S, S]);
          return { layer, head, target, source, value: all[i] };
        });
    }

    const cutOf = ({ layer, head, target, source }) => [
      layer,
      head,
      target,
      source,
      store.get("reach") === "here" ? store.get("token") : null,
    ];
    const isCut = (edge) => store.get("cuts").some((cut) => String(cut) === String(cutOf(edge)));

    function toggleCut(edge) {
      const rest = store.get("cuts").filter((cut) => String(cut) !== String(cutOf(edge)));
      const isThere = rest.length < store.get("cuts").length;
      store.set({
        cuts: isThere ? rest : [...rest, cutOf(edge)],
        layer: edge.layer,
        head: edge.head,
        stream: edge.target,
        source: edge.source,
      });
    }

    const named = ({ layer, head, target, source, value }) =>
      `L${layer} H${head} S${target}←S${source} ${value > 0 ? "+" : ""}${number(value, 3)}`;

    function listEdges() {
      list.replaceChildren(
        h("span", {}, asked.now ? "strongest, logits" : ""),
        ...(asked.now ? strongest(Math.min(LISTED, store.get("edges"))) : []).map((edge) =>
          h(
            "button",
            {
              type: "button",
              "aria-pressed": String(isCut(edge)),
              title: isCut(edge) ? "Restore this edge" : "Cut this edge",
              onclick: () => toggleCut(edge),
            },
            named(edge),
          ),
        ),
      );
    }

    // Layers without an edge are narrow.
    function layout(width, height) {
      const { S, L } = ctx.base;
      const isNarrow = width < NARROW;
      const left = 34,
        top = 22,
        right = isNarrow ? 90 : Math.min(150, width * 0.2);
      const lane = (height - top - (isNarrow ? 70 : 22)) / S;
      const used = new Set(strongest(store.get("edges")).map(({ layer }) => layer));
      const ends = range(L, (l) => (used.has(l) ? 1 : EMPTY)).reduce(
        (all, one) => [...all, all.at(-1) + one],
        [0],
      );
      const x = (l) => left + ((width - left - right) * ends[l]) / ends[L];
      return { right, lane, x, y: (s) => top + (s + 0.5) * lane };
    }

    function sentence() {
      const all = values();
      const drawn = strongest(store.get("edges"));
      const size = (list) => list.reduce((sum, value) => sum + Math.abs(value), 0);
      const [here, earlier] = [size(asked.now.edges), size(asked.now.earlier)];
      const share = size(drawn.map((edge) => edge.value)) / (size(all) || 1);
      return (
        (ctx.version() === "difference"
          ? `Δ logit ${number(asked.now.logit)}, both relative to the vocabulary's mean`
          : `logit ${number(asked.now.logit)} above the vocabulary's mean`) +
        `, the sum of the bars · the ${drawn.length} edges drawn make ${number(share * 100, 0)} % ` +
        `of what all ${all.length} contribute · ${number((100 * here) / (here + earlier || 1), 0)} % of that ` +
        (isText ? "at this token" : "at this cell")
      );
    }

    function arcs(pen, { x, y }, theme) {
      const drawn = strongest(store.get("edges")).reverse(); // the strongest on top
      const most = Math.abs(drawn.at(-1)?.value ?? 1);
      for (const edge of drawn) {
        const share = Math.abs(edge.value) / most;
        pen.path(arc(x(edge.layer), x(edge.layer + 1), y(edge.source), y(edge.target)), {
          stroke: edge.value > 0 ? theme.warm : theme.cool,
          width: 0.8 + 6 * share,
          opacity: 0.35 + 0.6 * share,
          dash: isCut(edge) ? [3, 4] : [],
        });
      }
    }

    // A dot for each stream's state after each layer, and a bar for what it finally writes.
    function states(pen, { x, y, right, lane }, theme) {
      const { S, L } = ctx.base;
      const { nodes, direct } = asked.now;
      const color = (value) => (value > 0 ? theme.warm : theme.cool);
      const most = Math.max(...nodes.map(Math.abs), 1e-9),
        highest = Math.max(...direct.map(Math.abs), 1e-9);
      for (let s = 0; s < S; s++) {
        for (let l = 0; l < L; l++) {
          const value = nodes[l * S + s];
          const r = 1.5 + Math.min(5.5, lane / 2.4) * Math.sqrt(Math.abs(value) / most);
          pen.rect(x(l + 1) - r, y(s) - r, 2 * r, 2 * r, {
            fill: color(value),
            stroke: theme.panel,
            radius: r,
          });
        }
        const bar = (right - 62) * (Math.abs(direct[s]) / highest);
        pen.rect(x(L) + 10, y(s) - Math.min(5, lane / 3), bar, Math.min(10, (2 * lane) / 3), {
          fill: color(direct[s]),
        });
        pen.text(number(direct[s]), x(L) + 14 + bar, y(s) + 3.5, theme.small);
      }
    }

    // The edge whose arc passes nearest to a point of the picture, if it is near.
    function edgeAt(px, py) {
      const { x, y } = layout(...panel.size);
      let best = null,
        nearest = NEAR;
      for (const edge of strongest(store.get("edges"))) {
        const t = (px - x(edge.layer)) / (x(edge.layer + 1) - x(edge.layer));
        if (t < 0 || t > 1) continue;
        // the curve's x is monotonous but not t; near enough to find its height
        const u = inverse(t);
        const at = y(edge.source) + (y(edge.target) - y(edge.source)) * (3 * u * u - 2 * u ** 3);
        if (Math.abs(at - py) < nearest) [best, nearest] = [edge, Math.abs(at - py)];
      }
      return best;
    }

    return {
      update() {
        predicted.show(store.get("predicted"));
        reach.show(store.get("reach"));
        slider.value = String(store.get("edges"));
        count.textContent = String(store.get("edges"));
        const isOld = store.get("predicted") === "top" && ctx.version() !== "baseline";
        panel.note.textContent =
          `${word()} ${ctx.base.place(store.get("token"))}` +
          (isOld ? " · first choice of the baseline" : "");
        listEdges();
      },
      height: (width) => Math.max(200, Math.min(420, ctx.base.S * 30 + 44)) + (width < NARROW ? 48 : 0),
      render(pen, width, height, theme) {
        if (asked.isMissing(pen, theme)) return;
        const place = layout(width, height);
        drawLanes(pen, ctx.base, { ...place, opacity: 0.5 }, store.state, theme);
        const end = place.x(ctx.base.L) + 10;
        const head = [`logits added to ${word()}`, `${word()}, logits`, word()].find(
          (one) => end + pen.measure(one, theme.label(true)) < width,
        );
        pen.text(head ?? "", end, 12, theme.label(true));
        arcs(pen, place, theme);
        states(pen, place, theme);
        const lines = wrapped(sentence(), width - 36, { size: 10 });
        lines.forEach((line, i) => pen.text(line, 34, height - 4 - 13 * (lines.length - 1 - i), theme.small));
        pen.region({
          x: 0,
          y: 0,
          w: width,
          h: height,
          rows: Math.floor(height),
          columns: Math.floor(width),
          keys: false,
        });
      },
      tip({ row, column }) {
        const edge = asked.now && edgeAt(column, row);
        return edge ? `${named(edge)} logits\nclick ${isCut(edge) ? "restores" : "cuts"} it` : null;
      },
      click({ row, column }) {
        const edge = asked.now && edgeAt(column, row);
        if (edge) toggleCut(edge);
      },
      table: () => ({
        columns: ["layer", "head", "target", "source", "logits"],
        rows: asked.now
          ? strongest(values().length).map(({ layer, head, target, source, value }) => [
              layer,
              head,
              target,
              source,
              value,
            ])
          : [],
      }),
      python() {
        const version = ctx.version();
        const call = (hooks) =>
          `edge_attribution(model, tokens, token=${store.get("token")}, target=${target()}, ` +
          `means=baseline.means${hooks})`;
        const hooks = `, hooks=intervention.hooks(model, baseline.means${ctx.code.dictionary()})`;
        const part = store.get("reach") === "here" ? "edges" : "earlier";
        const shown = {
          baseline: `${call("")}.${part}`,
          intervened: `${call(hooks)}.${part}`,
          difference: `${call(hooks)}.${part} - ${call("")}.${part}`,
        }[version];
        return [
          ctx.code.preamble(false),
          version === "baseline" ? ctx.code.baseline() : ctx.code.intervention(),
          "from srmlab.analysis import edge_attribution",
          "",
          `${shown}      # logits, [layer, head, target, source]`,
        ].join("\n");
      },
    };
  },
};

// The parameter u of a curve with upright ends at which its x, (3u − 3u² + 2u³) / 2 of the way, is at t.
function inverse(t) {
  let [low, high] = [0, 1];
  for (let i = 0; i < 20; i++) {
    const u = (low + high) / 2;
    if ((3 * u - 3 * u * u + 2 * u ** 3) / 2 < t) low = u;
    else high = u;
  }
  return (low + high) / 2;
}

function minus(after, before) {
  const less = (name) => after[name].map((value, i) => value - before[name][i]);
  return {
    logit: after.logit - before.logit,
    ...Object.fromEntries(["edges", "earlier", "nodes", "direct"].map((name) => [name, less(name)])),
  };
}
