// Attention over tokens: where a token looks, in one call of attention, one stream and one head. The weights of a
// call are asked for when the panel is in sight; a trace has none of them.

import { Asked } from "../asked.js";
import { scaleFor } from "../color.js";
import { fine, h, number, range } from "../dom.js";
import { colorbar, heatmap } from "../heatmap.js";
import { argmax } from "../measures.js";
import { drawStrip, placesOf } from "../strip.js";
import { readArrays } from "../trace.js";

const ROW = 15; // pixels of a head's row
const NARROW = 620; // below it the maps stand one below the other

export const attention = {
  name: "attention",
  title: "Token attention",
  place: "wide",
  needs: ["tokens"],
  shows:
    "How much the selected token reads of each token in one call of attention: on the prompt, for every head " +
    "of the call (rows), and for every token of the selected head (square map).",
  reading:
    "The weights of a row add up to 1; click a row to select its stream and head, the square map or the prompt " +
    "to select a token.",
  terms: ["attention", "head", "induction"],
  uses: ["token", "stream", "layer", "step", "part", "tokenHead", "induction"],

  available: ({ client, info }) => client !== null && info.attention.length > 0,

  mount(panel, ctx) {
    const { store, info } = ctx;
    const calls = info.attention.map(({ name, level }, index) => ({ name, level, index }));
    const pick = h("select", { "aria-label": "Call of attention", onchange: () => goto(Number(pick.value)) });
    pick.append(...calls.map(({ name, index }) => h("option", { value: String(index) }, name)));
    panel.controls.append(h("label", {}, "call ", pick));
    const scores = new Map(); // checkpoint → induction scores of all heads, null while they are measured

    // Where a level's calls of attention are its steps, the step is selected with the call.
    const ofLevel = (level) => calls.filter((call) => call.level === level);
    const key = () => (ofLevel(store.get("layer")).length === ctx.base.steps ? "step" : "part");

    function call() {
      const here = ofLevel(store.get("layer"));
      return here[Math.min(store.get(key()), here.length - 1)] ?? calls[0];
    }

    function goto(index) {
      const { level } = calls[index];
      store.set({ layer: level });
      store.set({ [key()]: ofLevel(level).findIndex((one) => one.index === index) });
    }

    const asked = new Asked(ctx, "attention", {
      question: () => ctx.question({ call: call().index }),
      read: (bytes) => readArrays(bytes).arrays.weights,
      minus: (after, before) => ({ ...after, data: after.data.map((value, i) => value - before.data[i]) }),
      ready() {
        panel.redraw();
        say();
      },
    });

    async function loadScores() {
      const { checkpoint } = ctx.question();
      if (!info.induction || scores.has(checkpoint)) return;
      scores.set(checkpoint, null);
      const path = `/api/induction?checkpoint=${encodeURIComponent(checkpoint)}`;
      const answer = await ctx.ask(`induction ${checkpoint}`, path);
      if (answer) scores.set(checkpoint, answer);
      else scores.delete(checkpoint); // to be asked again
      if (answer) store.touch("induction");
    }

    const weights = () => asked.now;

    // The heads of the call: { stream (null where the call has one for all), head, at (place of its map) }.
    function heads() {
      const [streams, count, T] = weights().shape;
      return range(streams * count, (i) => ({
        stream: streams > 1 ? Math.floor(i / count) : null,
        head: i % count,
        at: i * T * T,
      }));
    }

    const isChosen = ({ stream, head }) =>
      (stream === null || stream === store.get("stream")) && head === headNow();
    const headNow = () => Math.min(store.get("tokenHead"), weights().shape[1] - 1);
    const nameOf = ({ stream, head }) =>
      [stream === null ? "" : ctx.base.streamName(stream), weights().shape[1] > 1 ? `H${head}` : ""]
        .filter(Boolean)
        .join(" ") || "H0";
    // What a token may not read has no weight, rather than one of 0.
    const allowed = (from, to) => to <= from || !info.generates;

    function rowOf({ at }, token) {
      const { T } = ctx.base;
      return Float32Array.from(weights().data.subarray(at + token * T, at + (token + 1) * T), (value, t) =>
        allowed(token, t) ? value : NaN,
      );
    }

    function mapOf(head) {
      const { T } = ctx.base;
      const values = new Float32Array(T * T);
      for (let t = 0; t < T; t++) values.set(rowOf(head, t), t * T);
      return values;
    }

    const largest = (values) => values.reduce((most, value) => (value > most ? value : most), 1e-6);

    function say() {
      const { token } = store.state;
      const word = (t) => ctx.base.label(t);
      if (!weights()) {
        panel.note.textContent = word(token);
        return;
      }
      const chosen = heads().find(isChosen);
      const row = rowOf(chosen, token);
      const size = row.map(Math.abs);
      const most = argmax(size);
      const verb = ctx.version() === "difference" ? "changes most at" : "attends most to";
      const where = row[most] ? `${verb} ${word(most)}: ${fine(row[most])}` : "does not change";
      const found = `${nameOf(chosen)} at ${word(token)} ${where}`;
      panel.note.textContent = found + scoreOf(chosen);
    }

    // The head's induction score beside that of a head that reads all alike; it is of no intervention.
    function scoreOf({ stream, head }) {
      const found = scores.get(ctx.question().checkpoint);
      if (!found || ctx.version() !== "baseline") return "";
      const place = (stream ?? 0) * weights().shape[1] + head;
      return (
        ` · induction ${number(found.score[call().index][place], 3)} ` +
        `(uniform attention ${number(found.uniform, 3)})`
      );
    }

    // Prompt on top, the square map below it to the left and the heads to its right; below it where it is narrow.
    function layout(width) {
      const strip = placesOf(ctx.base, width);
      const top = strip.at(-1).y + 18;
      const isNarrow = width < NARROW;
      const left = isNarrow ? 8 : 44; // the map's names of tokens need room, which a narrow one has not
      const side = isNarrow ? Math.min(width - left - 8, 300) : Math.min(280, width * 0.3);
      const count = weights() ? heads().length : ctx.base.S;
      const tall = Math.max(count * ROW, Math.min(count * 60, isNarrow ? 0 : side - 42));
      const rows = isNarrow
        ? { x: 52, y: top + 16, w: width - 60, h: tall }
        : { x: left + side + 76, y: top + 16, w: width - left - side - 84, h: tall };
      const map = { x: left, y: isNarrow ? rows.y + tall + 90 : top + 16, w: side, h: side };
      const height = Math.max(map.y + side + 30, rows.y + tall + 70);
      return { strip, map, rows, height };
    }

    function drawMap(pen, box, theme) {
      const { T } = ctx.base;
      const chosen = heads().find(isChosen);
      const values = mapOf(chosen);
      const told = T > 1 ? values.subarray(T) : values; // the first reads itself only
      const colors = scaleFor(ctx.trace, values, 0, largest(told));
      pen.text(`${nameOf(chosen)}: row attends to column`, box.x, box.y - 6, {
        color: theme.ink,
        size: 10,
        weight: 650,
      });
      heatmap(pen, box, {
        values,
        rows: T,
        columns: T,
        scale: colors,
        theme,
        rowLabels: box.x > 20 ? range(T, (t) => ctx.base.name(t, 5)) : undefined,
        monoRows: true,
        labelSize: 9,
        mark: { row: store.get("token") },
        region: { map: true, values },
      });
      colorbar(pen, box.x, box.y + box.h + 12, box.w, colors, "weight", theme);
    }

    function drawHeads(pen, box, theme) {
      const { T } = ctx.base;
      const all = heads();
      const token = store.get("token");
      const values = all.flatMap((head) => Array.from(rowOf(head, token)));
      const colors = scaleFor(ctx.trace, values, 0, largest(values));
      const every = all[0].stream === null ? "head" : "stream and head";
      pen.text(`every ${every}, from ${ctx.base.label(token)}`, box.x, box.y - 6, {
        color: theme.ink,
        size: 10,
        weight: 650,
      });
      heatmap(pen, box, {
        values,
        rows: all.length,
        columns: T,
        scale: colors,
        theme,
        rowLabels: all.map(nameOf),
        columnLabels: range(T, (t) => ctx.base.name(t, 7)),
        monoColumns: true,
        tilt: true,
        mark: { row: all.findIndex(isChosen) },
        region: { all, values },
      });
      colorbar(pen, box.x, box.y + box.h + 52, Math.min(260, box.w), colors, "weight", theme);
      return colors;
    }

    return {
      update() {
        pick.value = String(call().index);
        say();
      },
      height: (width) => layout(width).height,
      render(pen, width, _height, theme) {
        if (asked.isMissing(pen, theme)) return;
        loadScores(); // they take seconds, which the weights need not wait for
        const { strip, map, rows } = layout(width);
        const { token } = store.state;
        drawMap(pen, map, theme);
        const colors = drawHeads(pen, rows, theme);
        drawStrip(pen, strip, rowOf(heads().find(isChosen), token), colors, [token, token], theme);
        strip.forEach(({ x, y, w }, t) =>
          pen.region({ x, y: y - 14, w, h: 19, rows: 1, columns: 1, to: t, keys: false }),
        );
      },
      tip(hit) {
        if (!weights()) return null;
        const { T } = ctx.base;
        const word = (t) => ctx.base.label(t);
        const from = hit.map ? hit.row : store.get("token");
        const to = hit.to ?? hit.column;
        const head = hit.all?.[hit.row] ?? heads().find(isChosen);
        if (!allowed(from, to)) return `${word(to)} comes later`;
        const value = weights().data[head.at + from * T + to];
        return `${nameOf(head)}   ${word(from)} reads ${word(to)}   ${fine(value, 3)}`;
      },
      click(hit) {
        if (hit.all) {
          const { stream, head } = hit.all[hit.row];
          store.set({ tokenHead: head, ...(stream === null ? {} : { stream }) });
        } else store.set({ token: hit.map ? hit.row : hit.to, rangeEnd: null });
      },
      table() {
        const { token } = store.state;
        const rows = (head) =>
          Array.from(rowOf(head, token), (value, t) => [
            head.stream ?? "",
            head.head,
            token,
            t,
            ctx.base.strings[t],
            value,
          ]).filter((row) => Number.isFinite(row[5]));
        return {
          columns: ["stream", "head", "token", "read", "text", "weight"],
          rows: weights() ? heads().flatMap(rows) : [],
        };
      },
      python() {
        const version = ctx.version();
        const hooks = `intervention.hooks(model, baseline.means${ctx.code.dictionary()})`;
        const shown = {
          baseline: "weights()",
          intervened: `weights(${hooks})`,
          difference: `weights(${hooks}) - weights()`,
        }[version];
        return [
          ctx.code.preamble(false),
          version === "baseline"
            ? `tokens = torch.tensor(${JSON.stringify(ctx.tokens())})`
            : ctx.code.intervention(),
          "from srmlab.explorer.attention import attention_weights",
          "",
          "def weights(hooks=()):",
          `    return attention_weights(model, tokens.tolist(), ${call().index}, hooks)      # ${call().name}`,
          "",
          `(${shown})[:, :, ${store.get("token")}]      # [stream, head, token read]`,
        ].join("\n");
      },
    };
  },
};
