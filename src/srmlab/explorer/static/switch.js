// The card of an edge that switches: which pairs of features open it, how well they tell when it is open on
// text they were not chosen on, beside the token alone and other nulls, and where it is widest open.
// The numbers are those of `srmlab analyze --only switches`.

import { h, number, openDialog, percent, visible } from "./dom.js";
import { openCard } from "./feature.js";

// What each score is, in words; the nulls after what is asked.
const SCORES = [
  ["logit", "exact logit"],
  ["features", "all pairs of features"],
  ["token", "token alone"],
  ["best feature", "best single feature"],
  ["best token", "best single token"],
  ["random features", "random directions"],
  ["position", "position alone"],
  ["shuffled", "features of shuffled tokens"],
];

export const isSwitch = (info, layer, head, target, source) =>
  Boolean(info?.switches?.some((edge) => String(edge) === String([layer, head, target, source])));

// The line under the routing lens: whether the chosen edge switches, and the way to its card.
export function switchLine(app) {
  const said = h("span", {});
  const button = h("button", { type: "button", onclick: () => openSwitch(app, ...edge()) }, "opens when …");
  const line = h("p", { class: "switch-line" }, said, " ", button);
  const edge = () => ["layer", "head", "stream", "source"].map((name) => app.store.get(name));
  line.update = () => {
    const [layer, head, target, source] = edge();
    line.hidden = Boolean(app.store.get("checkpoint")); // it is about the model as it was opened
    const switches = isSwitch(app.info, layer, head, target, source);
    const name = `L${layer} H${head} S${target} ← S${source}`;
    said.textContent = switches
      ? `${name} is a switch ▪`
      : `${name} is not a switch (▪ marks those that are)`;
    button.textContent = switches ? "opens when …" : "why not?";
  };
  return line;
}

async function openSwitch(app, layer, head, target, source) {
  const card = await app.ask("switch", `/api/switches/${layer}/${head}/${target}/${source}`);
  if (!card) return;
  const name = `Layer ${layer}, head ${head}: S${target} ← S${source}`;
  openDialog(
    app.host,
    { class: "feature switch", "aria-label": name },
    h("h2", {}, card.switch ? `${name} opens when …` : name),
    ...(card.switch ? switching(app, card) : [h("p", {}, whyNot(card))]),
  );
}

function whyNot({ weight, deviation, bar, strong, evidence }) {
  const level = `Its weight is ${number(weight)} ± ${number(deviation)} over ${evidence}`;
  if (!strong) return `${level}: less than an even share. Only stronger edges can be switches.`;
  return `${level}. Edges of untrained models vary by up to ${number(bar)} too, so it is not a switch.`;
}

function switching(app, { weight, deviation, bar, evidence, switch: found }) {
  const whole = found.pairs.reduce((sum, { share }) => sum + share, 0);
  return [
    h(
      "p",
      {},
      `… pairs of features raise its logit. The ${found.pairs.length} strongest make ${percent(whole)} of the ` +
        "difference between open and closed (in quotes, what a feature promotes):",
    ),
    h(
      "ul",
      {},
      found.pairs.map((one) =>
        h("li", {}, pair(app, one), ` ${one.opens ? "opens" : "closes"} it: ${percent(one.share)}`),
      ),
    ),
    h("p", {}, verdict(found)),
    h("h3", {}, "Telling open from closed on other text (AUC; 0.5 is chance)"),
    areas(found),
    h("p", { class: "dim" }, byPairs(found)),
    h("p", { class: "dim" }, held(found)),
    h("h3", {}, "Widest open at"),
    ...found.examples.map(example),
    h(
      "p",
      { class: "dim" },
      `Open, above its mean, at ${percent(found.open)} of ${evidence}; weight ${number(weight)} ± ` +
        `${number(deviation)} (edges of untrained models: up to ± ${number(bar)}). Pairs are chosen on one half of ` +
        "the text; the AUC, the causal test and the examples are from the other.",
    ),
  ];
}

// Do its features say more than the token? One sentence, either way.
function verdict({ auc, gain, surely }) {
  const value = (name) => number(auc.find((one) => one.name === name).value, 3);
  const both = `${value("features")} against ${value("token")}`;
  if (surely) return `Its features together tell more than the token alone: ${both}.`;
  if (gain > 0) return `Its features together are not surely better than the token alone: ${both}.`;
  return `Its features do not beat the token: ${both}. Knowing which token it is says as much.`;
}

function byPairs({ by_pairs }) {
  const steps = by_pairs.map(({ pairs, auc }) => `${pairs}: ${number(auc, 2)}`).join(", ");
  return `By the number of pairs, the strongest first: ${steps}.`;
}

function held({ deciding, flipped }) {
  const share = (name) => (flipped[name] === null ? "–" : percent(flipped[name]));
  const { stream, feature, opens } = deciding;
  return (
    `A causal test of S${stream} feature ${feature}, which ${opens ? "opens" : "closes"} it most by itself: ablating ` +
    `it flips the edge at ${share("silenced")} of tokens (another feature: ${share("another silenced")}), inserting ` +
    `it at ${share("put in")} (another: ${share("another put in")}).`
  );
}

function pair(app, { target, source }) {
  return h("span", {}, side(app, source), " with ", side(app, target));
}

// A feature, as a way to its own card; its tokens say what it is about.
function side(app, { stream, feature, raises }) {
  if (feature === null) return `S${stream}'s mean state`;
  const words = raises.length ? ` “${raises.map(visible).join(" ")}”` : "";
  const name = `S${stream} f${feature}${words}`;
  if (!raises.length) return name; // of another dictionary than the one on the page
  return h("button", { type: "button", class: "link", onclick: () => openCard(app, stream, feature) }, name);
}

function areas({ auc }) {
  const row = ([name, words]) => {
    const { value, error } = auc.find((one) => one.name === name);
    const wide = `${Math.max(0, 200 * (value - 0.5))}%`;
    return h(
      "tr",
      { "data-score": name },
      h("th", { scope: "row" }, words),
      h("td", { class: "area" }, h("span", { style: { width: wide } })),
      h("td", {}, `${number(value, 3)} ± ${number(error, 3)}`),
    );
  };
  return h("table", { class: "areas" }, SCORES.map(row));
}

function example({ weight, before, token, after }) {
  const shown = (text) => text.replace(/\s+/g, " ");
  return h(
    "p",
    { class: "example" },
    h("span", { class: "dim" }, `${number(weight)}  `),
    shown(before),
    h("mark", {}, shown(token)),
    shown(after),
  );
}
