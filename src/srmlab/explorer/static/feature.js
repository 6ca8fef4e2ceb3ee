// The card of one feature: what it promotes, how strong it is over text, where it is strongest, what a reader
// calls it, and what clamping it does.

import { ink, streamColor } from "./color.js";
import { h, number, openDialog, short, visible } from "./dom.js";
import { SvgPen } from "./pen.js";

// Hold a feature at the chosen value, or release it.
export function toggleHold(store, stream, feature) {
  const { holds, hold } = store.state;
  const rest = holds.filter(([s, f]) => s !== stream || f !== feature);
  store.set({ holds: rest.length < holds.length ? rest : [...holds, [stream, feature, hold]] });
}

export async function openCard(app, stream, feature, onnote) {
  const path = `/api/features/${stream}/${feature}`;
  const { store } = app;
  const name = `S${stream} feature ${feature}`;
  const body = h("div", {}, h("p", {}, "measuring it over evaluation text …"));
  const dialog = openDialog(app.host, { class: "feature", "aria-label": name }, h("h2", {}, name), body);
  const card = await app.ask("feature", path);
  if (!card || !dialog.open) return dialog.close();
  const label = h("input", { type: "text", value: card.label, maxlength: "200", "aria-label": "Label" });
  const pinned = h("input", { type: "checkbox", checked: card.pinned });
  const keep = async () => {
    const note = { label: label.value, pinned: pinned.checked };
    if (await app.ask("note", path, note, "PUT")) onnote?.();
  };
  label.addEventListener("change", keep);
  pinned.addEventListener("change", keep);
  const hold = h("button", { type: "button", onclick: () => toggleHold(store, stream, feature) });
  const effect = h("p", { class: "effect", role: "status" });
  const update = () => {
    const held = store.get("holds").find(([s, f]) => s === stream && f === feature);
    hold.textContent = held ? `release (clamped at ${held[2]})` : `clamp at ${store.get("hold")}`;
    effect.textContent = app.isIntervening() ? app.effect() : "";
  };
  body.replaceChildren(
    h("div", { class: "row" }, h("label", {}, "label ", label), h("label", {}, pinned, " pin")),
    h("p", {}, `Active at ${number(card.frequency * 100)} % of evaluation tokens.`),
    words("promotes", card.raises),
    words("lowers", card.lowers),
    ...(card.histogram?.most ? [bars(card.histogram, stream, app)] : []),
    h("h3", {}, "strongest at"),
    ...card.examples.map((one) => example(one, stream, app)),
    h("div", { class: "row" }, hold, effect),
  );
  const stop = store.subscribe(update);
  dialog.addEventListener("close", stop);
  update();
}

function words(name, list) {
  return h(
    "p",
    {},
    h("strong", {}, `${name} `),
    h(
      "code",
      {},
      list
        .slice(0, 10)
        .map((text) => visible(text))
        .join("  "),
    ),
  );
}

function example({ strings, activation }, stream, app) {
  const most = Math.max(...activation, 1e-9);
  const color = streamColor(stream, app.base.S);
  const spans = strings.map((text, i) => {
    const share = Math.round((45 * Math.max(0, activation[i])) / most);
    const style = share ? { background: `color-mix(in srgb, ${color} ${share}%, transparent)` } : {};
    return h("span", { style, title: number(activation[i]) }, visible(text));
  });
  return h("p", { class: "example" }, spans);
}

// How strong it is where it is active at all, over evaluation text.
function bars({ counts, most, tokens }, stream, app) {
  const theme = ink(document.body);
  const [width, tall] = [420, 60];
  const pen = new SvgPen(width, tall + 16);
  const highest = Math.max(...counts);
  counts.forEach((count, i) => {
    const height = (tall * count) / highest;
    pen.rect((i * width) / counts.length, tall - height, width / counts.length - 1, height, {
      fill: streamColor(stream, app.base.S),
    });
  });
  pen.path(`M0 ${tall}H${width}`, { stroke: theme.line });
  pen.text("0", 0, tall + 12, theme.small);
  pen.text(`activation, up to ${number(most)}`, width, tall + 12, { ...theme.small, align: "right" });
  const total = counts.reduce((sum, count) => sum + count, 0);
  const name = `${total} activations over ${tokens.toLocaleString("en")} evaluation tokens, up to ${number(most)}`;
  const picture = h("div", { role: "img", "aria-label": name, title: short(name, 200) });
  picture.innerHTML = pen.toString();
  return picture;
}
