// Elements in one call: h("button", { class: "quiet", onclick: go }, "Go").

export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style")
      for (const [key, entry] of Object.entries(value)) element.style.setProperty(key, entry);
    else if (name in element && name !== "list" && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// One of a few, a part of the store: a row of buttons that behave as radio buttons. `choices` is
// { value: text, or [text, title] }.
export function choice(store, key, label, choices) {
  const buttons = Object.entries(choices).map(([value, words]) => {
    const [text, title] = [words].flat();
    return h(
      "button",
      { type: "button", "data-value": value, title, onclick: () => store.set({ [key]: value }) },
      text,
    );
  });
  const group = h("div", { class: "choice", role: "group", "aria-label": label }, buttons);
  group.show = (value = store.get(key), isOffered = () => true) => {
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(button.dataset.value === value));
      button.disabled = !isOffered(button.dataset.value);
    }
  };
  group.show();
  return group;
}

// A button that plays: `begin`, then `step` every so often until it returns false.
export function player(title, name, wait, begin, step) {
  const button = h("button", { type: "button", title, onclick: () => button.toggle() }, `▶${name}`);
  let timer = 0;
  button.toggle = () => {
    clearInterval(timer);
    if (!timer) begin();
    timer = timer ? 0 : setInterval(() => step() || button.toggle(), wait);
    button.textContent = `${timer ? "❚❚" : "▶"}${name}`;
  };
  return button;
}

// A dialog with a button that closes it; it is gone once closed.
export function openDialog(host, props, ...content) {
  const close = h("form", { method: "dialog" }, h("button", {}, "Close"));
  const dialog = h("dialog", props, ...content, close);
  dialog.addEventListener("close", () => dialog.remove());
  host.append(dialog);
  dialog.showModal();
  dialog.scrollTop = 0; // the focus is on a button at its end
  return dialog;
}

// [make(0), make(1), …]
export function range(count, make) {
  return Array.from({ length: count }, (_, i) => make(i));
}

// A token's text for display: blanks, line ends and what has no shape made visible.
export function visible(text) {
  if (text === undefined) return "?";
  const shown = text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
  return (
    shown.replace(
      /[\u0000-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
      (c) => `\\x${c.charCodeAt(0).toString(16).padStart(2, "0")}`,
    ) || "∅"
  );
}

// The same, cut to a number of characters.
export function short(text, length = 9) {
  const shown = [...visible(text)];
  return shown.length > length ? shown.slice(0, length - 1).join("") + "…" : shown.join("");
}

// 0.1234 → "0.12", 12.3 → "12.3", 1234 → "1234".
export function number(value, digits = 2) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const text = value.toFixed(size >= 100 ? 0 : size >= 10 ? Math.min(1, digits) : digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

// The same where a small number keeps digits that count: 0.0012, 3e−6.
export function fine(value, digits = 2) {
  const size = Math.abs(value);
  if (!(size > 0 && size < 10 ** -digits)) return number(value, digits);
  return size >= 1e-4 ? number(value, 4) : value.toExponential(0).replaceAll("-", "−");
}

// 0.123 → "12 %".
export function percent(share) {
  return `${(share * 100).toFixed(0)} %`;
}

// A token's text in a sentence.
export function word(text) {
  return text.trim() || visible(text);
}
