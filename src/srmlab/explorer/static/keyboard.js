// Keys. Not while typing; arrows step through tokens and layers, brackets through streams.

export const KEYS = [
  ["← →", "previous, next token; with shift, the range from it"],
  ["↑ ↓", "previous, next layer"],
  ["[ ]", "previous, next stream"],
  [", .", "previous, next step of the recursion"],
  ["h", "next head"],
  ["a", "mean-ablate the stream, or restore it"],
  ["b i d", "show the prompt without the intervention, with it, the difference"],
  ["c", "what a click does on an edge or a feature: select it, or cut or clamp it"],
  ["space", "play the recursion"],
  ["m", "maximise the panel under the pointer, or with the focus"],
  ["t", "light or dark"],
  ["/", "focus the prompt"],
  ["esc", "close the maximised panel"],
  ["?", "list of keys"],
];

export function bindKeys(app, { help, focusPrompt, toggleTheme, ablate }) {
  const { store } = app;
  const inside = (value, size) => Math.max(0, Math.min(size - 1, value));
  const move = (key, by, size) => store.set({ [key]: inside(store.get(key) + by, size) });
  // To the next token; with shift it is the other end of the range that moves.
  const step = (by, { shiftKey }) => {
    const { T } = app.trace;
    const { token, rangeEnd } = store.state;
    const end = inside((rangeEnd ?? token) + by, T);
    if (shiftKey) store.set({ rangeEnd: end === token ? null : end });
    else store.set({ rangeEnd: null, token: inside(token + by, T) });
  };
  document.addEventListener("keydown", (event) => {
    if (
      event.target.closest?.("input[type=text], input[type=number], textarea, select, dialog") ||
      isOwnKey(event) ||
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      !app.trace
    ) {
      if (event.key === "Escape") event.target.blur?.();
      return;
    }
    const { L, S, H } = app.trace;
    const actions = {
      ArrowLeft: () => step(-1, event),
      ArrowRight: () => step(1, event),
      ArrowUp: () => move("layer", -1, L),
      ArrowDown: () => move("layer", 1, L),
      "[": () => move("stream", -1, S),
      "]": () => move("stream", 1, S),
      ",": () => app.goto(Math.max(0, app.tick() - 1)),
      ".": () => app.goto(Math.min(app.trace.N - 1, app.tick() + 1)),
      h: () => store.set({ head: (store.get("head") + 1) % (H || 1) }),
      a: () => ablate?.(store.get("stream")),
      b: () => store.set({ version: "baseline" }),
      i: () => store.set({ version: "intervened" }),
      d: () => store.set({ version: "difference" }),
      c: () => store.set({ click: store.get("click") === "select" ? "change" : "select" }),
      " ": () => app.togglePlay?.(),
      m: () =>
        store.set({
          big: store.get("big")
            ? ""
            : (pointedAt()?.id ?? "").replace("panel-", ""),
        }),
      t: toggleTheme,
      "/": focusPrompt,
      "?": help,
      Escape: () => store.set({ big: "" }),
    };
    const action = actions[event.key];
    if (!action || (event.key === " " && event.target.closest?.("button"))) return;
    event.preventDefault();
    action();
  });
}

function pointedAt() {
  return document.querySelector(".panel:hover") ?? document.querySelector(".panel:focus-within");
}

// A key that a slider or a check box answers itself.
function isOwnKey({ target, key }) {
  return (target.type === "range" && key.startsWith("Arrow")) || (target.type === "checkbox" && key === " ");
}
