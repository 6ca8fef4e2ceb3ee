// The one place where the selection lives. Views read it and change it; subscribers are notified once per frame.
//
//   const store = new Store({ layer: 0 });
//   store.subscribe((changed) => …);      changed: the set of keys that differ
//   store.set({ layer: 3 });

import { THRESHOLD } from "./measures.js";

export const START = {
  prompt: "",
  ids: [], // the prompt as token ids, where its text would be read as others
  checkpoint: "", // whose weights; "" is the model as it was opened
  twin: false, // whether an untrained twin's numbers stand beside the model's
  token: 12, // the selected token …
  rangeEnd: null, // … or a range from it to this one
  stream: 0,
  layer: 2, // layer 0 routes every token alike
  head: 0,
  step: 0, // of the layer: with it the tick of the recursion
  part: 0, // the call of attention within the layer, where those are not its steps
  tokenHead: 0, // of the attention over tokens; `head` is one between streams
  source: 0, // the other end of the selected edge; `stream` is its target
  threshold: THRESHOLD,
  wall: "frequency", // or mean
  scope: "prompt", // or selection: the tokens the wall counts
  color: "surprisal", // or ablation, entropy
  lens: "tokens", // or streams, curves
  drift: "cosine", // or kl
  align: "connection", // or update, update_in
  flow: "layer", // or all: the layers whose arcs are drawn in full
  rank: "prompt", // or layers: the sweep
  brush: [], // the first and last of the ranked bars taken together
  first: -1, // the layer range of ablations; −1 is the last layer
  last: -1,
  ablated: [], // stream × 3 + (0 mean, 1 zero, 2 resample)
  cuts: [], // [layer, head, target, source, token or null]
  holds: [], // features of a dictionary: [stream, feature, value]
  hold: 0, // the value to hold the next one at
  predicted: "top", // or target: the prediction whose paths are shown
  reach: "here", // or earlier: the tokens whose edges they are
  edges: 40, // how many of them are drawn
  curve: "loss", // of the run over its checkpoints
  version: "baseline", // what the views show: baseline, intervened, difference
  click: "select", // or change: what a plain click on an edge or a feature does
  against: "", // compare: "", intervention, checkpoint:NAME, run:NAME, prompt:TEXT, trace:INDEX
  measure: "routing", // compare: routing, connection, update, lens, surprisal
  count: 8, // of Generate: tokens,
  temperature: 0.8,
  seed: 0,
  exit: 0, // the tolerance of early exit, 0 for none,
  steered: false, // and whether with the intervention
  theme: "", // "", light, dark
  big: "", // the panel that fills the page
};
const PASSING = new Set(["hover"]); // neither in the URL nor in a saved state
export const REAL = new Set(["threshold", "hold", "temperature", "exit"]); // the other numbers are indices and counts

export class Store {
  constructor(state) {
    this.state = { ...START, hover: null, ...state };
    this.listeners = new Set();
    this.changed = new Set();
  }

  get(key) {
    return this.state[key];
  }

  set(changes) {
    for (const [key, value] of Object.entries(changes)) {
      if (JSON.stringify(this.state[key]) === JSON.stringify(value)) continue;
      this.state[key] = value;
      this.changed.add(key);
    }
    if (this.changed.size && !this.frame) this.frame = requestAnimationFrame(() => this.notify());
  }

  // Notify of something new outside the state: the trace, an outcome.
  touch(key) {
    this.changed.add(key);
    if (!this.frame) this.frame = requestAnimationFrame(() => this.notify());
  }

  notify() {
    const changed = this.changed;
    this.changed = new Set();
    this.frame = 0;
    for (const listener of this.listeners) listener(changed, this.state);
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}

// The whole state as the part of an address after "#", and back. Only what differs from the start is written.
export function toHash(state) {
  const params = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (PASSING.has(key) || JSON.stringify(value) === JSON.stringify(START[key])) continue;
    params.set(key, typeof value === "string" ? value : JSON.stringify(value));
  }
  return params.toString();
}

export function fromHash(hash) {
  const state = {};
  for (const [key, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (!(key in START)) continue;
    const value = typeof START[key] === "string" ? text : parsed(text);
    if (value !== undefined && fits(key, value)) state[key] = value;
  }
  return state;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function fits(key, value) {
  const start = START[key];
  if (Array.isArray(start))
    return (
      Array.isArray(value) &&
      value.every((entry) =>
        key === "cuts"
          ? Array.isArray(entry)
          : key === "holds"
            ? Array.isArray(entry) && entry.length === 3 && entry.every(Number.isFinite)
            : Number.isInteger(entry),
      )
    );
  if (key === "rangeEnd") return value === null || Number.isInteger(value);
  if (typeof start !== "number") return typeof value === typeof start;
  return REAL.has(key) ? Number.isFinite(value) : Number.isInteger(value);
}
