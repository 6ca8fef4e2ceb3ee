// Features of a sparse dictionary: on top those active at the selected token, below the strongest of the prompt
// at every token. Alt-click clamps a feature.

import { scaleFor, streamColor } from "../color.js";
import { h, number, range, short, visible, word } from "../dom.js";
import { openCard, toggleHold } from "../feature.js";
import { colorbar, heatmap } from "../heatmap.js";
import { argmax } from "../measures.js";

const ROWS = 16,
  MORE = 48,
  LINE = 19,
  TALL = 14,
  LEFT = 46,
  TOP = 18;

export const features = {
  name: "features",
  title: "Features",
  place: "wide",
  needs: ["features", "feature_activation"],
  shows:
    "SAE features active in the selected stream and token, the tokens they promote, a max-activating example.",
  reading: "The map has the prompt's strongest features in order of their peaks.",
  asking: "Alt-click clamps a feature.",
  terms: ["feature", "clamp"],
  uses: ["token", "stream", "layer", "holds"],

  caption(trace) {
    const { features, points } = trace.manifest.dictionary;
    const { point, place } = trace.manifest.axes;
    const size = trace.T * trace.S * place;
    const ids = trace.data("features").subarray((point - 1) * size);
    const activations = trace.data("feature_activation").subarray((point - 1) * size);
    const best = argmax(activations);
    if (!(activations[best] > 0)) return `No feature is active at any of the ${trace.T} tokens.`;
    const streamOf = (i) => Math.floor(i / place) % trace.S;
    const found = new Set(Array.from(ids, (id, i) => (id < 0 ? null : `${streamOf(i)}.${id}`)));
    found.delete(null);
    const token = Math.floor(best / (trace.S * place));
    return (
      `${found.size} of ${trace.S * features} features are active in this prompt at ${points[point - 1]}; the ` +
      `strongest is feature ${ids[best]} of S${streamOf(best)}, ${activations[best].toFixed(1)} at ` +
      `“${word(trace.strings[token])}” (token ${token}).`
    );
  },

  mount(panel, ctx) {
    const { store } = ctx;
    const value = h("input", {
      type: "number",
      step: "0.5",
      value: "0",
      "aria-label": "Clamp at",
      style: { width: "4.5em" },
      onchange: () => store.set({ hold: Math.max(-1e6, Math.min(1e6, Number(value.value) || 0)) }),
    });
    if (ctx.client)
      panel.controls.append(
        h(
          "label",
          { title: "Alt-click a feature to clamp it at this value; 0 ablates it" },
          "clamp at ",
          value,
        ),
      );

    const search = h("input", {
      type: "text",
      "aria-label": "Search features",
      placeholder: "search features",
      title: "By the tokens they promote, or by your labels; empty lists what you labelled or pinned",
      onchange: () => find(),
    });
    const found = h("div", { class: "chips", role: "group", "aria-label": "Features found" });
    if (ctx.client) {
      panel.controls.prepend(search);
      if (ctx.info.dictionary)
        panel.controls.append(
          h("a", { href: "dictionary", target: "_blank", rel: "noopener" }, "all features"),
        );
      panel.body.prepend(found);
    }

    async function find() {
      const list = await ctx.ask("features", `/api/features?query=${encodeURIComponent(search.value)}`);
      if (!list) return;
      const words = (one) => one.label || one.raises.map((text) => visible(text)).join(" ");
      const button = (one) =>
        h(
          "button",
          { type: "button", onclick: () => openCard(ctx, one.stream, one.feature, find) },
          `${one.pinned ? "★ " : ""}S${one.stream} f${one.feature} ${words(one)}`,
        );
      found.replaceChildren(...(list.length ? list.map(button) : ["no feature found"]));
    }

    // The point of the dictionary nearest to the selected layer, not after it if there is one.
    function point() {
      const { layers } = ctx.trace.manifest.dictionary;
      const before = layers.filter((layer) => layer <= store.get("layer"));
      return before.length ? layers.lastIndexOf(before.at(-1)) : 0;
    }

    const about = (feature) => ctx.trace.manifest.dictionary.about[`${store.get("stream")}.${feature}`];
    const raises = (feature, count) =>
      about(feature)
        .raises.slice(0, count)
        .map((id) => visible(ctx.trace.string(id)))
        .join("  ");
    const held = (feature) =>
      store.get("holds").find(([stream, other]) => stream === store.get("stream") && other === feature);

    // The features active at a token, the strongest first: [[feature, activation], …]; of a difference those
    // whose activation changes, by how much, the largest change first.
    function active(token) {
      if (!ctx.trace.pair) return activeIn(ctx.trace, token);
      const [before, after] = ctx.trace.pair.map((trace) => new Map(activeIn(trace, token)));
      return [...new Set([...before.keys(), ...after.keys()])]
        .map((feature) => [feature, (after.get(feature) ?? 0) - (before.get(feature) ?? 0)])
        .filter(([, change]) => change !== 0)
        .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]))
        .slice(0, ctx.trace.manifest.axes.place);
    }

    function activeIn(trace, token) {
      const places = trace.manifest.axes.place;
      const all = range(places, (i) => [
        trace.at("features", point(), token, store.get("stream"), i),
        trace.at("feature_activation", point(), token, store.get("stream"), i),
      ]);
      return all.filter(([feature]) => feature >= 0);
    }

    // Every feature the stream uses in this prompt: { feature, values by token, peak, at }.
    function used() {
      const { trace } = ctx;
      return trace.once(`features ${point()} ${store.get("stream")}`, () => {
        const found = new Map();
        for (let t = 0; t < trace.T; t++) {
          for (const [feature, activation] of active(t)) {
            if (!found.has(feature))
              found.set(feature, { feature, values: new Float32Array(trace.T), peak: 0, at: t });
            const one = found.get(feature);
            one.values[t] = activation;
            if (Math.abs(activation) > one.peak) Object.assign(one, { peak: Math.abs(activation), at: t });
          }
        }
        return [...found.values()].sort((a, b) => b.peak - a.peak);
      });
    }

    // The rows of the map: the strongest, and those at the selected token; in the order of their peaks.
    const strongest = () => (panel.big ? MORE : ROWS);
    function rows() {
      const here = new Set(active(store.get("token")).map(([feature]) => feature));
      return used()
        .filter((one, i) => i < strongest() || here.has(one.feature))
        .sort((a, b) => a.at - b.at || a.feature - b.feature);
    }

    function list(pen, width, theme) {
      const here = active(store.get("token"));
      const most = Math.max(...here.map(([, activation]) => Math.abs(activation)), 1e-9);
      const bar = Math.min(90, width * 0.1),
        names = LEFT + bar + 46,
        quote = names + Math.min(270, width * 0.24);
      pen.text(ctx.trace.pair ? "changed" : "active", 0, 11, theme.small);
      pen.text("promotes", names, 11, theme.small);
      pen.text("max-activating example", quote, 11, theme.small);
      here.forEach(([feature, activation], i) => {
        const y = TOP + i * LINE;
        const at = held(feature);
        pen.text(`f${feature}`, LEFT - 6, y + 12, {
          color: at ? theme.warm : theme.ink,
          weight: 650,
          size: 11,
          align: "right",
        });
        pen.rect(LEFT, y + 3, Math.max(1, (Math.abs(activation) / most) * bar), 11, {
          fill: ctx.trace.pair
            ? activation < 0
              ? theme.cool
              : theme.warm
            : streamColor(store.get("stream"), ctx.trace.S),
        });
        pen.text(number(activation), LEFT + bar + 38, y + 12, { ...theme.small, align: "right" });
        pen.text(clipped(raises(feature, 5), quote - names - 10, pen), names, y + 12, {
          color: theme.ink,
          size: 11,
          mono: true,
        });
        example(pen, feature, quote, y, width, theme);
        pen.region({ x: 0, y, w: width, h: LINE, rows: 1, columns: 1, feature });
      });
    }

    // Where the feature is strongest: the text around it, its token shaded.
    function example(pen, feature, x, y, width, theme) {
      const { example: ids, peak } = about(feature);
      const style = { size: 11, mono: true };
      const room = Math.floor((width - x - 4) / pen.measure("m", style));
      if (!ids.length || room < 8) return;
      const words = ids.map((id) => (ctx.trace.string(id) ?? "?").replace(/\s+/g, " "));
      const word = words[peak] || " ";
      const before = words
        .slice(0, peak)
        .join("")
        .slice(-Math.max(0, Math.floor((room - word.length) * 0.7)));
      const after = words
        .slice(peak + 1)
        .join("")
        .slice(0, Math.max(0, room - word.length - before.length));
      const from = x + pen.measure(before, style),
        wide = pen.measure(word, style);
      pen.text(before, x, y + 12, { ...style, color: theme.dim });
      pen.rect(from, y + 1, wide, 15, { fill: streamColor(store.get("stream"), ctx.trace.S), opacity: 0.28 });
      pen.text(word, from, y + 12, { ...style, color: theme.ink, weight: 700 });
      pen.text(after, from + wide, y + 12, { ...style, color: theme.dim });
    }

    const listHeight = () => TOP + ctx.trace.manifest.axes.place * LINE + 12;

    return {
      update() {
        if (document.activeElement !== value) value.value = String(store.get("hold"));
        const { token, stream } = store.state;
        panel.note.textContent =
          `S${stream} after ${token} “${short(ctx.trace.strings[token], 12)}” · ` +
          `${ctx.trace.manifest.dictionary.points[point()]} · ${used().length} of ` +
          `${ctx.trace.manifest.dictionary.features} ${ctx.trace.pair ? "changed" : "active"} in the prompt`;
      },
      // Room for all rows there can be, so that nothing moves from token to token.
      height() {
        const most = strongest() + ctx.trace.manifest.axes.place;
        return listHeight() + Math.max(1, Math.min(used().length, most)) * TALL + 62;
      },
      render(pen, width, _height, theme) {
        const { trace } = ctx;
        list(pen, width, theme);
        const shown = rows();
        if (!shown.length) {
          pen.text(trace.pair ? "no feature changes" : "no feature is active", LEFT, listHeight() + 12, {
            color: theme.dim,
            size: 11,
          });
          return;
        }
        const here = new Set(active(store.get("token")).map(([feature]) => feature));
        const side = Math.min(230, width * 0.22),
          top = listHeight(),
          wide = width - LEFT - side - 10;
        const values = shown.flatMap((one) => Array.from(one.values));
        const colors = scaleFor(trace, values, 0, Math.max(...shown.map((one) => one.peak), 1e-6));
        const tall = shown.length * TALL;
        heatmap(
          pen,
          { x: LEFT, y: top, w: wide, h: Math.max(1, tall) },
          {
            values,
            rows: shown.length,
            columns: trace.T,
            scale: colors,
            theme,
            columnLabels: trace.strings.map((text) => short(text, 7)),
            monoColumns: true,
            tilt: true,
            mark: { column: store.get("token") },
            region: { shown },
          },
        );
        shown.forEach(({ feature }, i) => {
          const style = {
            color: held(feature) ? theme.warm : here.has(feature) ? theme.ink : theme.dim,
            weight: here.has(feature) ? 650 : 400,
            size: 10,
          };
          pen.text(`f${feature}`, LEFT - 6, top + (i + 0.5) * TALL + 3.6, { ...style, align: "right" });
          pen.text(
            clipped(raises(feature, 5), side, pen, 10),
            LEFT + wide + 8,
            top + (i + 0.5) * TALL + 3.6,
            { ...style, weight: 400, mono: true },
          );
        });
        colorbar(pen, LEFT, top + tall + 52, 220, colors, "activation", theme);
      },
      tip(hit) {
        const { trace } = ctx;
        const one = hit.shown?.[hit.row];
        const feature = one?.feature ?? hit.feature;
        if (!about(feature)) return null; // another trace or stream is about to be drawn
        const { frequency, example: ids, peak } = about(feature);
        const words = ids
          .map((id, i) => (i === peak ? `[${trace.string(id)}]` : trace.string(id)))
          .join("")
          .replace(/\s+/g, " ");
        const place = one
          ? `   ${number(one.values[hit.column])} at ${hit.column} “${short(trace.strings[hit.column], 10)}”`
          : "";
        const hint = ctx.client
          ? `\n${ctx.changing}: ${held(feature) ? "release" : `clamp at ${store.get("hold")}`}`
          : "";
        return (
          `S${store.get("stream")} feature ${feature}${place}\n` +
          `active at ${number(frequency * 100)} % of tokens, promotes ${raises(feature, 5)}\n` +
          `…${words}…${hint}`
        );
      },
      click(hit, event) {
        const feature = hit.shown?.[hit.row].feature ?? hit.feature;
        if (ctx.isChange(event)) toggleHold(store, store.get("stream"), feature);
        else if (hit.shown) store.set({ token: hit.column, rangeEnd: null });
        else if (ctx.client) openCard(ctx, store.get("stream"), feature, find);
      },
      table: () => ({
        columns: ["token", "text", "feature", "activation", "promotes"],
        rows: ctx.trace.strings.flatMap((text, t) =>
          active(t).map(([feature, activation]) => [
            t,
            text,
            feature,
            activation.toFixed(4),
            raises(feature, 5),
          ]),
        ),
      }),
      python: () =>
        ctx.code.of(
          `point, stream = ${point()}, ${store.get("stream")}      # ${ctx.trace.manifest.dictionary.points[point()]}`,
          'trace["features"][point, :, stream]                 # [token, place], the strongest first',
          'trace["feature_activation"][point, :, stream]',
          "lexicon.features.frequency[stream]                  # of each feature, over evaluation text",
        ),
    };
  },
};

// As much of a text as fits.
function clipped(text, width, pen, size = 11) {
  const fits = Math.floor(width / pen.measure("m", { size, mono: true }));
  return [...text].length > fits ? `${[...text].slice(0, Math.max(0, fits - 1)).join("")}…` : text;
}
