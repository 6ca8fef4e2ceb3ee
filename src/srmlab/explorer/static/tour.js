// A tour of a minute for a first visit: what a stream, a layer, a step and the connection are, and what to click
// first. It stands in a corner and hides nothing; once closed it does not come again by itself.

import { ink, streamColor } from "./color.js";
import { h } from "./dom.js";
import { SvgPen } from "./pen.js";

const SEEN = "srmlab explorer: tour seen";

// What the model is, in a few words: one whose streams read one another, one with several states, or with one;
// of text, or of a board.
function whatItIs({ streams, heads, generates }) {
  const [unit, others, end] = generates
    ? ["token", "earlier tokens", "what comes next"]
    : ["cell", "the other cells", "what belongs there"];
  if (streams > 1 && heads)
    return (
      `For every ${unit} this model keeps several states side by side: its streams. In a layer, the streams of a ` +
      `${unit} first read one another (the connection); then each, with its own weights, attends to ${others} and ` +
      "updates itself (the steps A, B, C …). The same layer is applied again and again; at the end all streams " +
      `together predict ${end}.`
    );
  const states = streams > 1 ? `${streams} states side by side, its streams` : "one state";
  return (
    `For every ${unit} this model keeps ${states}. Layer by layer it attends to ${others} and changes; at the end ` +
    `it is decoded to predict ${end}.`
  );
}

// [what of the page it is about, heading, words]; those whose element is not there are left out.
const STOPS = [
  [
    "#panel-tokens",
    "Tokens: click one",
    "The prompt, one box for each token, stronger in colour where the model was surprised. Click a token and " +
      "every view below is about it. Above, write a prompt of your own or choose an example.",
  ],
  [
    "#panel-board .board",
    "The prediction, and a switch for each stream",
    "The bars are what the model expects after that token. Press a number to replace that stream by its " +
      "mean and see how the prediction changes: that is how to find out what a stream is for.",
  ],
  [
    "#bar",
    "Your changes stay in sight",
    "Everything that is ablated, cut or clamped is listed here, with its effect. The keys b, i and d show " +
      "every view without it, with it, and the difference.",
  ],
  [
    "#panel-wall",
    "The connection: who reads whom",
    "A map for each layer and head: the row is the stream that reads, the column the one it reads " +
      "from. Click a map to see it large, with numbers, in the routing lens.",
  ],
  [
    "#twin",
    "What was learned?",
    "An untrained model has strong edges and busy streams, too. Tick this, and beside the numbers of the views " +
      "stand those of the same model with random weights: what is in both was not learned.",
  ],
  [
    "#panel-stepper",
    "Layers and steps",
    "One column for each step of each layer, with what the model would say if it stopped there. " +
      "Space plays it: watch the answer form.",
  ],
  [
    "#panel-paths",
    "Where a prediction comes from",
    "The strongest edges from stream to stream that led to the model's answer. Click one to cut it. " +
      "That is all: the i of a panel explains it, and ? lists keys and terms.",
  ],
];

// What stands instead where the model fills a board.
const ON_BOARDS = {
  "#panel-tokens": [
    "#panel-puzzle",
    "The board: click a cell",
    "The board after the selected layer; beside it a small one for every layer of every segment, where you can " +
      "watch the answer form. Click a cell and every view below is about it. ▶ plays through the layers.",
  ],
  "#panel-board .board": [
    "#panel-board .board",
    "The prediction, and a switch for each stream",
    "The bars are what the model would write into that cell. Press a number to replace that stream by its " +
      "mean and see how the prediction changes: that is how to find out what a stream is for.",
  ],
};

export function isFirstVisit() {
  try {
    return !navigator.webdriver && !location.hash && localStorage.getItem(SEEN) === null;
  } catch {
    return false; // no storage: it would come every time
  }
}

export function startTour(info) {
  document.querySelector(".tour")?.remove();
  const all = info.generates ? STOPS : STOPS.map((stop) => ON_BOARDS[stop[0]] ?? stop);
  const stops = [
    ["", "What you are looking at", whatItIs(info)],
    ...all.filter(([selector]) => document.querySelector(selector)?.offsetParent),
  ];
  const body = h("div", { "aria-live": "polite" });
  const place = h("span", { class: "place" });
  const back = h("button", { type: "button", onclick: () => go(at - 1) }, "back");
  const next = h("button", { type: "button", class: "primary", onclick: () => go(at + 1) }, "next");
  const close = h("button", { type: "button", onclick: () => end() }, "close");
  const card = h(
    "aside",
    { class: "tour", "aria-label": "Tour" },
    body,
    h("div", { class: "row" }, place, close, back, next),
  );
  let at = 0;

  function go(stop) {
    if (stop >= stops.length) return end();
    at = stop;
    const [selector, title, words] = stops[at];
    for (const element of document.querySelectorAll(".toured")) element.classList.remove("toured");
    const found = selector ? document.querySelector(selector) : null;
    const about = found?.closest(".panel") ?? found;
    about?.classList.add("toured");
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const block = window.innerWidth <= 900 ? "start" : "center"; // else its end is under the card
    about?.scrollIntoView({ block, behavior: calm ? "auto" : "smooth" });
    body.replaceChildren(h("h2", {}, title), ...(selector ? [] : [drawing(info)]), h("p", {}, words));
    place.textContent = `${at + 1} of ${stops.length}`;
    back.disabled = at === 0;
    next.textContent = at === stops.length - 1 ? "done" : "next";
  }

  function end() {
    for (const element of document.querySelectorAll(".toured")) element.classList.remove("toured");
    card.remove();
    try {
      localStorage.setItem(SEEN, "yes");
    } catch {
      // nowhere to remember it
    }
  }

  card.addEventListener("keydown", (event) => event.key === "Escape" && end());
  document.body.append(card);
  go(0);
  next.focus({ preventScroll: true });
}

// The model's own drawing in words, and above it, where there are several streams, a picture of it.
function drawing(info) {
  const words = h("pre", {}, info.drawing);
  if (info.streams < 2 || !info.heads) return words;
  const picture = h("div", {
    role: "img",
    "aria-label": "Streams through one layer: connection, then steps",
  });
  picture.innerHTML = layerPicture(info, ink(document.body)).toString();
  return h("div", {}, picture, h("details", {}, h("summary", {}, "the same in formulas"), words));
}

function layerPicture({ streams, layers, order, generates }, theme) {
  const lanes = Math.min(streams, 8);
  const [width, lane, top] = [410, 15, 30];
  const height = top + lanes * lane + 24;
  const pen = new SvgPen(width, height);
  const y = (s) => top + (s + 0.5) * lane;
  const [from, meet, steps, to] = [58, 86, 178, 322];
  const letters = order[0].slice(0, 6);
  pen.rect(meet - 12, top - 6, to - meet + 12, lanes * lane + 12, { stroke: theme.line, radius: 6 });
  pen.text(`one layer, ${layers} times`, (meet + to) / 2, 14, {
    color: theme.ink,
    size: 11,
    align: "middle",
  });
  pen.text("connection", meet + 34, height - 6, { ...theme.small, align: "middle" });
  pen.text("steps", (steps + to) / 2, height - 6, { ...theme.small, align: "middle" });
  pen.text(generates ? "token" : "cell", 2, y((lanes - 1) / 2) + 3, { color: theme.ink, size: 11 });
  pen.text(generates ? "next token" : "value", width - 2, y((lanes - 1) / 2) + 3, {
    color: theme.ink,
    size: 11,
    align: "right",
  });
  for (let s = 0; s < lanes; s++) {
    const color = streamColor(s, streams);
    const middle = y((lanes - 1) / 2);
    pen.path(
      `M36 ${middle}C48 ${middle} 46 ${y(s)} ${from} ${y(s)}H${to + 8}` +
        `C${to + 18} ${y(s)} ${to + 14} ${middle} ${to + 26} ${middle}`,
      {
        stroke: color,
        width: 2,
      },
    );
    for (let r = 0; r < lanes; r++)
      if (r !== s)
        pen.path(`M${meet} ${y(r)}C${meet + 34} ${y(r)} ${meet + 34} ${y(s)} ${meet + 68} ${y(s)}`, {
          stroke: streamColor(r, streams),
          width: 0.8,
          opacity: 0.5,
        });
    letters.forEach((letter, i) => {
      const x = steps + (i * (to - steps)) / letters.length;
      pen.rect(x, y(s) - 6, 18, 12, { fill: theme.panel, stroke: color, radius: 3 });
      pen.text(letter.slice(0, 1), x + 9, y(s) + 3.5, { color: theme.ink, size: 9, align: "middle" });
    });
  }
  return pen;
}
