// An attribution graph of `srmlab circuit`: layers as columns (each with its steps), streams as lanes, features
// as squares. A click pins a node, a shift-click puts it into the open group, an alt-click cuts it.

import { h, number, percent } from "../dom.js";
import { textWidth, wrapped } from "../pen.js";

const GRAPH = "__GRAPH__";
const INFO = GRAPH.metadata.srmlab;
const BY_ID = new Map(GRAPH.nodes.map((node, i) => [node.node_id, i]));
// What of the target comes by a link: its weight, in units of what it leads to, times what that does to the
// target. A weight alone is in units of the feature it leads to, and says nothing of the target.
const passed = ({ target, weight }) => {
  const { activation, srmlab } = GRAPH.nodes[BY_ID.get(target)];
  return activation ? (weight * srmlab.effect) / activation : 0;
};
const LINKS = GRAPH.links
  .map((link) => ({ from: BY_ID.get(link.source), to: BY_ID.get(link.target), flow: passed(link) }))
  .sort((a, b) => Math.abs(b.flow) - Math.abs(a.flow));
const DRAWN = 80; // links shown when nothing is pinned
const NAMED = GRAPH.nodes // features that are named below the drawing
  .map((node, i) => ({ node, i }))
  .filter(({ node }) => node.srmlab.feature !== undefined)
  .sort((a, b) => Math.abs(b.node.srmlab.effect) - Math.abs(a.node.srmlab.effect))
  .slice(0, 6);
const USED = new Set(
  GRAPH.nodes.filter((node) => node.srmlab.stream !== undefined).map(({ layer }) => Number(layer)),
);
const KEY =
  "Circles are tokens, squares features of the steps' transcoders, hollow squares their errors; size is " +
  "influence. Lines: the 80 edges by which most of the target passes. Orange raises the target, blue lowers it. " +
  "Numbered: the features with the largest effects, with the effect, the place, the tokens raised, and an example.";
const EMPTY = 0.15; // the width of a step without nodes, beside one with some
const TARGET = GRAPH.nodes.at(-1);
const isFeature = !TARGET.clerp.startsWith("Output ");
// “ States”, or “ St” against “ N”, or a feature
const WORDS = TARGET.clerp
  .replace(/^Output (.*) \(p=.*/s, "$1")
  .replace(/(['"])(.*?)\1(?= against |$)/g, "“$2”");
const LABEL = [
  isFeature ? "activation of" : "logit of",
  ...WORDS.split(" against ").map((one, i) => (i ? `minus ${one}` : one)),
];
const TOKEN = { size: 10, mono: true };
const LEFT = 34 + Math.max(...GRAPH.metadata.prompt_tokens.map((token) => textWidth(token, TOKEN)), 24);
const RIGHT = 48 + Math.max(...LABEL.map((line) => textWidth(line, { size: 10 })), 40);
// The named features, as rows of a table.
const ROWS = NAMED.map(({ node }, i) => {
  const { stream, feature, effect, raises = [], examples = [] } = node.srmlab;
  const token = GRAPH.metadata.prompt_tokens[node.ctx_idx];
  return [
    `${i + 1}`,
    (effect > 0 ? "+" : "−") + Math.abs(effect).toFixed(3),
    `${INFO.calls[Number(node.layer)].replace(".", "")} S${stream} at “${token}”`,
    `#${feature}`,
    raises.map((one) => `“${one}”`).join(" "),
    examples[0] ?? "",
  ];
});
const exact = (value) => (value === null || value === undefined ? "–" : Number(value).toPrecision(6));

// The room below the lanes: for the key and the table.
function below(width) {
  return 24 + 12 * wrapped(KEY, width - 16, { size: 10 }).length + 14 * ROWS.length;
}

// As much of the text as there is room for.
function clipped(text, room, style) {
  if (textWidth(text, style) <= room) return text;
  let end = text.length;
  while (end && textWidth(`${text.slice(0, end)}…`, style) > room) end--;
  return `${text.slice(0, end)}…`;
}

export const view = {
  name: "circuit",
  title: "Circuit",
  place: "wide",
  needs: ["surprisal"],
  shows: `What ${WORDS} after “${GRAPH.metadata.prompt}” is made of: features of the steps' transcoders, their errors (hollow) and tokens, with the edges by which most of it passes.`,
  reading:
    "Orange raises the target, blue lowers it; a node is as large as its influence, an edge as wide as " +
    "what of the target passes by it. Click pins a node and shows " +
    "its own edges, shift-click groups nodes, alt-click cuts them; hover for exact values and " +
    "examples. The logit is relative to the vocabulary's mean. Errors are what the transcoders miss. " +
    "Replacement: of the influence that reaches tokens and errors, the share that reaches tokens. Completeness: " +
    "the share of all incoming weights, weighted by influence, that does not come from errors.",
  uses: [],
  versions: false, // it is of its own prompt, without an intervention
  caption: () =>
    `${GRAPH.nodes.length} nodes and ${GRAPH.links.length} edges; replacement ${number(INFO.replacement)}, completeness ${number(INFO.completeness)}.`,

  mount(panel, app) {
    const pinned = new Set(),
      cut = new Set(),
      groups = [];
    let open = null; // the group that shift-clicks go into
    const list = h("div", {
      class: "chips",
      role: "group",
      "aria-label": "Pinned, grouped and cut features",
    });
    panel.body.append(list);
    panel.note.textContent =
      `${WORDS}${isFeature ? "" : ` (${percent(TARGET.token_prob)})`} after “${GRAPH.metadata.prompt}” · ` +
      `${GRAPH.nodes.length} nodes · replacement ${number(INFO.replacement)}, completeness ` +
      `${number(INFO.completeness)}`;
    const effect = (i) => GRAPH.nodes[i].srmlab.effect ?? 0;
    const real = (i) => GRAPH.nodes[i].srmlab.actual;
    const sum = (nodes) => [...nodes].reduce((total, i) => total + effect(i), 0);

    function changed() {
      const chip = (words, title, onclick) => h("button", { type: "button", title, onclick }, words);
      const chips = [...pinned].map((i) =>
        chip(`pinned: ${GRAPH.nodes[i].clerp}`, "Unpin", () => (pinned.delete(i), changed())),
      );
      groups.forEach((group, g) =>
        chips.push(
          chip(
            `${open === g ? "●" : "○"} group ${g + 1}: ${group.size} features, effect ${number(sum(group), 3)}`,
            "Shift-clicks go into this group; click again for a new one",
            () => ((open = open === g ? null : g), changed()),
          ),
        ),
      );
      if (cut.size) {
        const alone = [...cut].map((i) => (real(i) === undefined ? "–" : number(real(i), 3))).join(", ");
        chips.push(
          chip(
            `✂ ${cut.size} cut: ${number(INFO.value, 3)} → ${number(INFO.value - sum(cut), 3)} predicted` +
              (cut.size > 1 ? ", summed to first order, shared paths counted twice" : "") +
              ` (really, each alone: ${alone})`,
            "Restore all",
            () => (cut.clear(), changed()),
          ),
        );
      }
      list.replaceChildren(...chips);
      panel.redraw();
    }

    function layout(width, height, theme) {
      const key = wrapped(KEY, width - 16, theme.small);
      const [left, right, top, bottom] = [LEFT, RIGHT, 26, below(width)];
      const C = INFO.calls.length,
        S = INFO.streams;
      const tall = (height - top - bottom) / S;
      const wide = INFO.calls.map((_, c) => (USED.has(c) ? 1 : EMPTY));
      const unit = (width - left - right) / wide.reduce((sum, one) => sum + one, 0);
      const columns = wide.map((one, c) => ({
        x: left + unit * wide.slice(0, c).reduce((sum, before) => sum + before, 0),
        w: unit * one,
      }));
      const cells = new Map();
      const places = GRAPH.nodes.map((node, i) => {
        const influence = node.influence ?? 0;
        const r = 2.5 + 5 * Math.sqrt(Math.min(1, influence * 4));
        if (node.feature_type === "logit")
          return { x: width - right + 32, y: top + (height - top - bottom) / 2, r: 6 };
        if (node.feature_type === "embedding") {
          const T = GRAPH.metadata.prompt_tokens.length;
          return { x: left - 14, y: top + ((node.ctx_idx + 0.5) * (height - top - bottom)) / T, r };
        }
        const call = Number(node.layer),
          key = `${call} ${node.srmlab.stream}`;
        cells.set(key, [...(cells.get(key) ?? []), i]);
        return { call, stream: node.srmlab.stream, r, key };
      });
      for (const nodes of cells.values()) {
        const { x, w } = columns[Math.min(places[nodes[0]].call, C - 1)];
        const across = Math.ceil(Math.sqrt((nodes.length * w) / Math.max(1, tall)));
        const down = Math.ceil(nodes.length / across);
        nodes.forEach((i, at) => {
          const place = places[i];
          place.x = x + (w * ((at % across) + 0.5)) / across;
          place.y = top + tall * (place.stream + (Math.floor(at / across) + 0.5) / down);
          place.r = Math.min(place.r, w / across / 2.2, tall / down / 2.2);
        });
      }
      return { left, right, top, columns, tall, places, key, end: height - bottom };
    }

    function frame(pen, width, theme, { left, top, columns, tall, right, key, end }) {
      pen.text("tokens", left - 26, 16, { color: theme.dim, size: 9, align: "right" });
      pen.text("streams", width - right + 5, 16, { color: theme.dim, size: 9 });
      let free = 0; // from here on the line of names is empty
      INFO.calls.forEach((name, c) => {
        const [level, step] = name.split(".");
        const { x, w } = columns[c];
        const isFirst = step === INFO.calls[0].split(".")[1];
        if (isFirst)
          pen.path(`M${x} ${top}V${top + tall * INFO.streams}`, {
            stroke: theme.grid ?? theme.faint,
          });
        const label = w > 18 ? `${level}${step}` : isFirst ? level : "";
        const half = textWidth(label, { size: 9 }) / 2;
        if (!label || x + 0.5 * w - half < free) return;
        pen.text(label, x + 0.5 * w, 16, { color: theme.dim, size: 9, align: "middle" });
        free = x + 0.5 * w + half + 4;
      });
      for (let s = 0; s < INFO.streams; s++) {
        if (s % 2)
          pen.rect(left, top + s * tall, width - left - right, tall, { fill: theme.faint, opacity: 0.5 });
      }
      key.forEach((line, i) => pen.text(line, 8, end + 16 + 12 * i, theme.small));
      table(pen, width, end + 26 + 12 * key.length, theme);
    }

    // The named features; of a narrow picture without the tokens they raise, and of the example its middle.
    function table(pen, width, top, theme) {
      const style = { color: theme.ink, size: 10 };
      const around = (example) => example.slice(Math.max(0, example.indexOf("[") - 10));
      const rows = width < 560 ? ROWS.map((row) => [...row.slice(0, 4), around(row[5])]) : ROWS;
      let x = 8;
      for (let column = 0; column < (rows[0]?.length ?? 0); column++) {
        const words = rows.map((row) => clipped(row[column], width - 8 - x, style));
        words.forEach((word, i) => pen.text(word, x, top + 14 * i, style));
        x += 12 + Math.max(...words.map((word) => textWidth(word, style)));
      }
    }

    // The names of the streams and the numbers of features, over the lines and apart from one another.
    function names(pen, width, theme, { top, tall, right, places }) {
      const plate = (words, x, y, style) => {
        pen.rect(x - 1, y - 9, textWidth(words, style) + 2, 11, { fill: theme.panel, opacity: 0.8 });
        pen.text(words, x, y, style);
      };
      for (let s = 0; s < INFO.streams; s++)
        plate(`S${s}`, width - right + 5, top + (s + 0.5) * tall + 3, { color: theme.dim, size: 9 });
      const taken = [];
      NAMED.forEach(({ i }, n) => {
        const { x, y, r } = places[i];
        const at = { x: Math.min(x + r + 2, width - right - 9), y: y - r + 1 };
        while (taken.some((one) => Math.abs(one.x - at.x) < 9 && Math.abs(one.y - at.y) < 11)) at.y -= 11;
        taken.push(at);
        plate(`${n + 1}`, at.x, at.y, { color: theme.ink, size: 10, weight: 700 });
      });
    }

    return {
      height: (width) =>
        26 + Math.max(300, INFO.streams * Math.max(40, Math.min(64, width / 40))) + below(width),
      render(pen, width, height, theme) {
        const all = layout(width, height, theme);
        const { places, left } = all;
        frame(pen, width, theme, all);
        const own = pinned.size ? LINKS.filter((l) => pinned.has(l.from) || pinned.has(l.to)) : LINKS;
        const most = Math.abs(own[0]?.flow || 1);
        for (const { from, to, flow } of own.slice(0, DRAWN).reverse()) {
          const [a, b] = [places[from], places[to]];
          const bend = (a.x + b.x) / 2;
          const share = Math.sqrt(Math.abs(flow) / most); // else the widest leave nothing to see of the others
          pen.path(`M${a.x} ${a.y}C${bend} ${a.y} ${bend} ${b.y} ${b.x} ${b.y}`, {
            stroke: flow > 0 ? theme.warm : theme.cool,
            width: 0.5 + 3 * share,
            opacity: cut.has(from) || cut.has(to) ? 0.08 : 0.1 + 0.7 * share,
          });
        }
        GRAPH.nodes.forEach((node, i) => {
          const { x, y, r } = places[i];
          const color = effect(i) > 0 ? theme.warm : theme.cool;
          const group = groups.findIndex((members) => members.has(i));
          const isError = node.feature === -1;
          pen.rect(x - r, y - r, 2 * r, 2 * r, {
            fill: isError ? theme.panel : color,
            stroke: pinned.has(i) || group >= 0 ? theme.ink : isError ? color : theme.panel,
            width: pinned.has(i) ? 2 : 1,
            radius: node.feature_type === "embedding" || group >= 0 ? r : 1,
            opacity: cut.has(i) ? 0.25 : 1,
          });
          if (node.feature_type === "embedding")
            pen.text(node.clerp, left - 26, y + 3, {
              color: theme.ink,
              size: 10,
              align: "right",
              mono: true,
            });
          if (node.feature_type === "logit")
            [number(INFO.value, 3), ...LABEL].forEach((words, line) =>
              pen.text(words, x + 10, y + 4 + 13 * line, {
                color: line ? theme.dim : theme.ink,
                size: line ? 10 : 11,
                weight: line ? 400 : 700,
              }),
            );
          pen.region({
            x: x - r - 1,
            y: y - r - 1,
            w: 2 * r + 2,
            h: 2 * r + 2,
            rows: 1,
            columns: 1,
            node: i,
          });
        });
        names(pen, width, theme, all);
      },
      tip({ node: i }) {
        const node = GRAPH.nodes[i];
        const about = node.srmlab;
        const lines = [
          node.clerp,
          `${INFO.calls[Number(node.layer)] ?? node.layer}${about.stream === undefined ? "" : ` S${about.stream}`}, token ${node.ctx_idx} ${JSON.stringify(GRAPH.metadata.prompt_tokens[node.ctx_idx])}`,
          `activation ${exact(node.activation)} · influence ${exact(node.influence)} · effect ${exact(about.effect)}`,
        ];
        if (about.actual !== undefined)
          lines.push(`cut alone, the target really changes by ${exact(about.actual)}`);
        if (about.raises)
          lines.push(`raises ${about.raises.map((token) => JSON.stringify(token)).join(" ")}`);
        return [...lines, ...(about.examples ?? []).map((text) => `“${text}”`)].join("\n");
      },
      click({ node: i }, event) {
        if (event.altKey || app.store.get("click") === "change") {
          if (GRAPH.nodes[i].feature_type === "logit") return;
          if (!cut.delete(i)) cut.add(i);
        } else if (event.shiftKey) {
          if (open === null) open = groups.push(new Set()) - 1;
          if (!groups[open].delete(i)) groups[open].add(i);
        } else if (!pinned.delete(i)) pinned.add(i);
        changed();
      },
      table: () => ({
        columns: ["node", "token", "activation", "influence", "effect", "actual"],
        rows: GRAPH.nodes.map((node) => [
          node.clerp,
          node.ctx_idx,
          node.activation,
          node.influence,
          node.srmlab.effect,
          node.srmlab.actual ?? "",
        ]),
      }),
      python: () =>
        `import json\n\ngraph = json.load(open("graph.json"))  # srmlab circuit RUN --prompt ${JSON.stringify(GRAPH.metadata.prompt)}`,
    };
  },
};
