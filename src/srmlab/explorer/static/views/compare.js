// Compare: this trace and another (a second prompt, a checkpoint, the intervention) side by side
// on one scale, and their difference.

import { scale } from "../color.js";
import { choice, h, number, range, short } from "../dom.js";
import { colorbar, heatmap } from "../heatmap.js";
import { describe } from "../intervention.js";
import { argmax, mean, meanOverTokens, meanWeights, unravel } from "../measures.js";
import { wrapped } from "../pen.js";

const NARROW = 480; // pixels of a picture whose maps stand one below the other
const ARRAYS = {
  routing: "routing",
  connection: "connection_cosine",
  update: "update_cosine",
  lens: "lens_target",
  surprisal: "surprisal",
};

export const compare = {
  name: "compare",
  title: "Compare",
  place: "lower left",
  needs: ["tokens"],
  shows: "This trace (A), another one (B), and B − A.",
  reading:
    "A and B share one colour scale; click a cell to select it. Routing is a mean over the prompt. Runs of unlike " +
    "depth are set side by side by their share of it.",
  asking: "B is a second prompt, a checkpoint, the intervention or another run.",
  uses: ["measure", "layer", "head", "stream", "source", "token", "step", "other", "against"],
  versions: false, // it shows two at once

  available: ({ client, traces }) => client !== null || traces.length > 0,
  caption(trace, other) {
    if (!other?.has("routing") || !trace.has("routing")) return "";
    if (trace === other) return "A and B are the same trace.";
    const sizes = [trace, other].map(({ L, H, S }) => [L, H, S]);
    if (String(sizes[0]) !== String(sizes[1])) {
      const [a, b] = sizes.map(([L, H, S]) => `${L} layers, ${H} heads and ${S} streams`);
      return `A has ${a}; B has ${b}.`;
    }
    const [a, b] = [trace, other].map(meanWeights);
    const apart = a.map((weight, i) => Math.abs(b[i] - weight));
    const at = argmax(apart);
    const [layer, head, target, source] = unravel(at, [...sizes[0], trace.S]);
    const [ours, theirs] = [trace, other].map((one) => number(mean(one.data("update_cosine")), 3));
    return (
      `Mean routing weights differ by ${mean(apart).toFixed(3)} per edge, most at S${target} ← S${source} in layer ` +
      `${layer}, head ${head} (${a[at].toFixed(2)} in A and ${b[at].toFixed(2)} in B); the mean cosine between ` +
      `update and step output is ${ours} in A and ${theirs} in B.`
    );
  },

  mount(panel, ctx) {
    const { store } = ctx;
    const measure = choice(store, "measure", "Measure", {
      routing: "routing",
      connection: "connection cos",
      update: "update cos",
      lens: ["target logprob", "log-probability of the target after each layer"],
      surprisal: ["surprisal", ctx.said("of every token, in bits")],
    });
    const against = h("select", {
      "aria-label": "Compare with",
      onchange: () =>
        store.set({ against: against.value === "prompt:" ? `prompt:${prompt.value}` : against.value }),
    });
    const prompt = h("input", {
      type: "text",
      "aria-label": ctx.said("The other prompt"),
      placeholder: ctx.said("the other prompt"),
      onchange: () => store.set({ against: `prompt:${prompt.value}` }),
    });
    panel.controls.append(h("label", {}, "B = ", against), prompt, measure);
    const offers = h("div", { class: "chips", role: "group", "aria-label": "Compare with" });
    panel.body.append(offers);

    const measured = () => ctx.base.choose(ARRAYS, store.get("measure"));

    function options() {
      const list = [["", "none"]];
      if (ctx.client) {
        if (ctx.canIntervene()) list.push(["intervention", "the intervention"]);
        list.push(["prompt:", ctx.said("another prompt")]);
        if (ctx.info.twin) list.push(["checkpoint:untrained", "an untrained twin"]);
        for (const name of ctx.info.runs.filter((name) => name !== ctx.info.name))
          list.push([`run:${name}`, `run ${name}`]);
        for (const name of ctx.info.checkpoints) list.push([`checkpoint:${name}`, `checkpoint ${name}`]);
      }
      ctx.traces.forEach((trace, i) =>
        list.push([`trace:${i}`, short(trace.manifest.prompt, 28).replaceAll("·", " ")]),
      );
      return list;
    }

    // With nothing chosen, what there is to compare with: one click each.
    function offer() {
      const others = (ctx.info?.prompts ?? []).filter((text) => text !== ctx.base.manifest.prompt);
      const examples = others.slice(0, 2).map((text) => [`prompt:${text}`, `“${text.slice(0, 24).trim()} …”`]);
      const list = options().filter(([value]) => value && (value !== "intervention" || ctx.isIntervening()));
      return [...list, ...examples].map(([value, label]) =>
        h("button", { type: "button", onclick: () => store.set({ against: value }) }, label),
      );
    }

    // Values, rows and columns by their names, kind of scale; the selected cell (mark) and what a click
    // chooses (pick), of one trace.
    function grid(trace) {
      const { stream, source, token } = store.state;
      const { layer, head } = mapOf(trace);
      const streams = range(trace.S, (s) => trace.streamName(s));
      const layers = range(trace.L, (l) => `L${l}`);
      const words = range(trace.T, (t) => trace.name(t, 5));
      const isSame = hasSameTokens(trace); // a token of another prompt cannot be selected
      const chosen = isSame ? { column: token } : {};
      const ofShape = (change) => (row, column) => hasSameShape(trace) && change(row, column);
      const made = (values, rowNames, columnNames, kind, unit, mark, pick) => ({
        values,
        rowNames,
        columnNames,
        rows: rowNames.length,
        columns: columnNames.length,
        kind,
        unit,
        mark,
        pick,
      });
      switch (measured()) {
        case "routing": {
          const size = trace.S * trace.S;
          const at = (layer * trace.H + head) * size;
          const values = meanWeights(trace).subarray(at, at + size);
          const pick = ofShape((row, column) => store.set({ stream: row, source: column }));
          const mark = { row: stream, column: source };
          return made(values, streams, streams, "sequential", "weight", mark, pick);
        }
        case "connection": {
          const values = meanOverTokens(trace, "connection_cosine");
          const pick = ofShape((row, column) => store.set({ layer: row, stream: column }));
          return made(values, layers, streams, "diverging", "cosine", { row: layer, column: stream }, pick);
        }
        case "update": {
          const values = meanOverTokens(trace, "update_cosine");
          const ticks = range(trace.N, (n) => `${Math.floor(n / trace.steps)}${trace.letter(n)}`);
          const pick = ofShape((row, column) => {
            ctx.goto(row);
            store.set({ stream: column });
          });
          return made(
            values,
            ticks,
            streams,
            "diverging",
            "cosine",
            { row: ctx.tick(), column: stream },
            pick,
          );
        }
        case "surprisal": {
          const pick = (_, column) => isSame && store.set({ token: column, rangeEnd: null });
          return made(trace.data("surprisal"), [""], words, "sequential", "bits", chosen, pick);
        }
        default: {
          const values = Float32Array.from(
            range(trace.L * trace.T, (i) => {
              const [l, t] = unravel(i, [trace.L, trace.T]);
              return trace.at("lens_target", (l + 1) * trace.steps - 1, t);
            }),
          );
          const pick = (row, column) =>
            store.set({
              layer: matching(row, trace, ctx.base),
              ...(isSame ? { token: column, rangeEnd: null } : {}),
            });
          return made(values, layers, words, "sequential", "nats", { row: layer, ...chosen }, pick);
        }
      }
    }

    // By their text: another run's ids are another tokenizer's.
    const hasSameTokens = (trace) => String(trace.strings) === String(ctx.base.strings);
    const hasSameShape = ({ S, L, N }) => String([S, L, N]) === String([ctx.base.S, ctx.base.L, ctx.base.N]);
    // The layer and head of a trace that stand for the selected ones.
    const mapOf = (trace) => ({
      layer: matching(store.get("layer"), ctx.base, trace),
      head: Math.min(store.get("head"), (trace.H || 1) - 1),
    });

    // Which maps of routing are shown.
    function maps() {
      const other = ctx.other?.has("routing") ? ctx.other : ctx.base;
      const [a, b] = [ctx.base, other].map(mapOf).map(({ layer, head }) => `L${layer} H${head}`);
      return a === b ? a : `${a}, of B ${b}`;
    }

    // B by the rows of A, where they are layers: the one at the same share of the depth.
    function aligned(grid) {
      if (measured() !== "lens" || ctx.other.L === ctx.base.L) return grid;
      const rows = range(ctx.base.L, (l) => matching(l, ctx.base, ctx.other));
      const values = rows.flatMap((row) =>
        Array.from(grid.values.subarray(row * grid.columns, (row + 1) * grid.columns)),
      );
      return { ...grid, values: Float32Array.from(values), rows: rows.length };
    }

    // A trace by what it is: a checkpoint, an intervention, or else its prompt.
    function titleOf({ manifest }) {
      const { checkpoint, intervention } = manifest.note ?? {};
      if (store.get("against").startsWith("run:")) return manifest.model.name;
      const isShared = [ctx.base, ctx.other].every((one) => one.manifest.note?.checkpoint === checkpoint);
      const named = checkpoint === "untrained" ? "untrained twin" : checkpoint && `checkpoint ${checkpoint}`;
      const what = [!isShared && named, intervention && describe(intervention)].filter(Boolean).join("; ");
      return what || manifest.prompt;
    }

    function pair() {
      if (!ctx.other?.has(ARRAYS[measured()])) return null;
      const a = grid(ctx.base),
        b = grid(ctx.other);
      const beside = aligned(b);
      const isOfTokens = ["lens", "surprisal"].includes(measured());
      const same =
        a.rows === beside.rows &&
        a.columns === beside.columns &&
        (isOfTokens ? hasSameTokens(ctx.other) : hasSameShape(ctx.other));
      return {
        a,
        b,
        difference: same
          ? {
              ...a,
              values: Float32Array.from(beside.values, (value, i) => value - a.values[i]),
              kind: "diverging",
            }
          : null,
      };
    }

    function scaleOf(grids, kind) {
      const all = grids.flatMap((grid) => Array.from(grid.values)).filter(Number.isFinite);
      const most = Math.max(1e-3, ...all.map(Math.abs));
      const isNone = all.every((value) => value === 0); // of B − A; a cosine is hardly ever 0
      if (kind === "diverging") return { ...scale("diverging", -most, most), isNone };
      return Math.min(...all) < 0 ? scale("sequential", Math.min(...all), 0) : scale("sequential", 0, most);
    }

    return {
      update(keys) {
        if (!ctx.base) return;
        measure.show(measured(), (one) => ctx.base.has(ARRAYS[one]));
        const chosen = store.get("against");
        const value = chosen.startsWith("prompt:") ? "prompt:" : chosen;
        if (keys.has("trace") || !against.options.length)
          against.replaceChildren(...options().map(([value, label]) => h("option", { value }, label)));
        against.value = value;
        measure.hidden = !chosen;
        panel.canvas.hidden = !chosen;
        offers.hidden = Boolean(chosen);
        if (!chosen) offers.replaceChildren(h("span", {}, "Put beside this trace, with the difference:"), ...offer());
        prompt.hidden = !chosen.startsWith("prompt:");
        if (!prompt.hidden && document.activeElement !== prompt) prompt.value = chosen.slice(7);
        const isSame = ctx.other && chosen === "intervention" && !ctx.isIntervening();
        panel.note.textContent = [chosen && measured() === "routing" && maps(), isSame && "no intervention: B equals A"]
          .filter(Boolean)
          .join(" · ");
      },
      height(width) {
        if (!store.get("against")) return 36;
        const tall = measured() === "surprisal" ? 110 : Math.min(300, width / 3 + 20);
        return width < NARROW ? 3 * Math.max(tall, 170) : tall;
      },
      render(pen, width, height, theme) {
        const found = pair();
        if (!found) {
          const choose = ctx.other
            ? `B has no ${ARRAYS[measured()]}: choose another measure.`
            : ctx.said("Write the other prompt above, or choose another B.");
          const waiting = ctx.isAsking("other") || ctx.isAsking("intervened") ? "tracing B …" : choose;
          const why = ctx.failed.has("other") ? "B could not be traced." : waiting;
          wrapped(why, width - 16, { size: 11 }).forEach((line, i) =>
            pen.text(line, 8, 16 + 14 * i, { color: theme.dim, size: 11 }),
          );
          return;
        }
        const { a, b, difference } = found;
        const isNarrow = width < NARROW;
        const w = isNarrow ? width - 40 : (width - 3 * 40) / 3,
          each = isNarrow ? height / 3 : height,
          tall = each - 66;
        const shared = scaleOf([a, b], a.kind);
        const panels = [
          ["A", a, shared, ctx.base],
          ["B", b, shared, ctx.other],
          ["B − A", difference, difference && scaleOf([difference], "diverging"), null],
        ];
        panels.forEach(([name, grid, colors, trace], i) => {
          const x = isNarrow ? 36 : 36 + i * (w + 40),
            y = isNarrow ? i * each : 0;
          pen.text(
            `${name}${trace ? `  ${short(titleOf(trace), Math.floor(w / 8)).replaceAll("·", " ")}` : ""}`,
            x,
            y + 12,
            { color: theme.ink, size: 11, weight: 600 },
          );
          if (!grid) {
            const unlike = ctx.isBoard ? "they are different boards" : "they have different tokens";
            const why = hasSameTokens(ctx.other) ? "they are of unlike shapes" : unlike;
            pen.text(why, x, y + 34, { color: theme.dim, size: 11 });
            return;
          }
          heatmap(
            pen,
            { x, y: y + 18, w, h: tall },
            {
              values: grid.values,
              rows: grid.rows,
              columns: grid.columns,
              scale: colors,
              theme,
              rowLabels: grid.rowNames,
              columnLabels: grid.columnNames,
              labelSize: 9,
              mark: grid.mark,
              region: { which: name, grid },
            },
          );
          colorbar(pen, x - 24, y + tall + 44, w + 24, colors, grid.unit, theme); // long numbers need the room
        });
      },
      tip: ({ which, grid, row, column }) =>
        `${which}   ${grid.rowNames[row]} ${grid.columnNames[column]}   ` +
        `${number(grid.values[row * grid.columns + column], 3)}`,
      click: ({ grid, row, column }) => grid.pick(row, column),
      table() {
        const found = pair();
        if (!found?.difference || found.b.rows !== found.a.rows) {
          return { columns: ["row", "column", "a", "b"], rows: [] };
        }
        const { a, b } = found;
        return {
          columns: ["row", "column", "a", "b", "difference"],
          rows: Array.from(a.values, (value, i) => [
            a.rowNames[Math.floor(i / a.columns)],
            a.columnNames[i % a.columns],
            value,
            b.values[i],
            b.values[i] - value,
          ]),
        };
      },
      python() {
        const { against, layer, head } = store.state;
        const other = ctx.other ?? ctx.base;
        let lines = `other = ${ctx.code.capture("model", ctx.code.prompt(other), { trace: other })}`;
        if (against.startsWith("checkpoint:"))
          lines = [
            ...ctx.code.weights(against.slice(11), "checkpoint", "means"),
            `other = ${ctx.code.capture("checkpoint", "prompt", { trace: other, reference: "means" })}`,
          ].join("\n");
        if (against.startsWith("run:"))
          lines =
            "other_run = ...      # its folder\n" +
            'other = capture(srmlab.load(other_run), load_tokenizer(other_run), trace.manifest["prompt"])';
        if (against === "intervention") lines = ctx.code.intervened("other");
        const shown = {
          routing: [`weights.mean(1)[${layer}, ${head}]`, "[target, source]"],
          connection: ['["connection_cosine"].astype(float).mean(1)', "[layer, stream]"],
          update: ['["update_cosine"].astype(float).mean(1)', "[tick, stream]"],
          lens: [
            `["lens_target"].astype(float)[${ctx.base.steps - 1}:${ctx.base.N}:${ctx.base.steps}]`,
            "nats, [layer, token]",
          ],
          surprisal: ['["surprisal"].astype(float)', "bits, [token]"],
        }[measured()];
        const of = (name) => `${name}${shown[0].startsWith("[") ? "" : "."}${shown[0]}`;
        return `${ctx.code.preamble(true, "baseline")}\n${lines}\n\n${of("other")} - ${of("trace")}      # ${shown[1]}`;
      },
    };
  },
};

// The layer of another trace at the same share of its depth.
function matching(layer, from, to) {
  return from.L === to.L ? layer : Math.round((layer / Math.max(1, from.L - 1)) * (to.L - 1));
}
