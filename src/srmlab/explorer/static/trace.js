// A trace, read from its bytes: a safetensors file (see trace.py) becomes typed arrays with named axes.

import { range, short } from "./dom.js";

const HALF = new Float32Array(65536);
for (let bits = 0; bits < 65536; bits++) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) HALF[bits] = sign * fraction * 2 ** -24;
  else if (exponent === 31) HALF[bits] = fraction ? NaN : sign * Infinity;
  else HALF[bits] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

export class Trace {
  constructor(manifest, arrays) {
    this.manifest = manifest;
    this.arrays = arrays; // name → { data, shape }
    this.pair = null; // of a difference: the trace without the intervention, and with it
    const { axes } = manifest;
    Object.assign(this, {
      S: axes.stream,
      L: axes.layer,
      H: axes.head,
      T: axes.token,
      N: axes.tick,
      G: axes.group,
      K: axes.rank,
    });
    this.steps = this.N / this.L;
    this.hasPost = axes.lens > axes.tick;
    this.strings = this.manifest.strings;
    this.memory = new Map(); // what views compute once
  }

  static read(buffer) {
    const { manifest, arrays } = readArrays(buffer);
    return new Trace(manifest, arrays);
  }

  has(name) {
    return name in this.arrays;
  }

  // The wanted one of { choice: array } if the trace has its array, else the first that it has.
  choose(arrays, wanted) {
    if (this.has(arrays[wanted])) return wanted;
    return Object.keys(arrays).find((key) => this.has(arrays[key]));
  }

  data(name) {
    return this.arrays[name].data;
  }

  // One number by its indices: trace.at("attribution", layer, token, stream).
  at(name, ...index) {
    const { data, shape } = this.arrays[name];
    let offset = 0;
    for (let i = 0; i < shape.length; i++) offset = offset * shape[i] + index[i];
    return data[offset];
  }

  streamName(stream) {
    return this.manifest.streams?.[stream] ?? `S${stream}`; // an older trace has no names
  }

  string(id) {
    return this.manifest.vocabulary[id];
  }

  // What a prediction is made for: a token of a text, a cell of a board.
  get unit() {
    return this.manifest.puzzle ? "cell" : "token";
  }

  // All tokens of a text; of a board the cells that are to be filled.
  get open() {
    return range(this.T, (t) => t).filter((t) => !this.has("given") || !this.at("given", t));
  }

  // A token by its number and text, a cell of a board by its row and column.
  label(token) {
    const { puzzle } = this.manifest;
    if (!puzzle) return `${token} “${short(this.strings[token], 12)}”`;
    return `row ${Math.floor(token / puzzle.columns) + 1}, column ${(token % puzzle.columns) + 1}`;
  }

  // The same on an axis, where there is little room.
  name(token, length) {
    const { puzzle } = this.manifest;
    if (!puzzle) return short(this.strings[token], length);
    return `r${Math.floor(token / puzzle.columns) + 1}c${(token % puzzle.columns) + 1}`;
  }

  // What a prediction is about, in words: what comes after a token, or what is in a cell of a board.
  place(token) {
    return `${this.manifest.puzzle ? "in" : "after"} ${this.label(token)}`;
  }

  // The letter of the step function at a tick: A, B, C …
  letter(tick) {
    return this.manifest.order[Math.floor(tick / this.steps)][tick % this.steps];
  }

  once(key, make) {
    if (!this.memory.has(key)) this.memory.set(key, make());
    return this.memory.get(key);
  }
}

// What a safetensors file holds: its manifest, and name → { data, shape }.
export function readArrays(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const { __metadata__: metadata, ...entries } = JSON.parse(
    new TextDecoder().decode(new Uint8Array(buffer, 8, length)),
  );
  const arrays = {};
  for (const [name, { dtype, shape, data_offsets: offsets }] of Object.entries(entries)) {
    const bytes = buffer.slice(8 + length + offsets[0], 8 + length + offsets[1]);
    arrays[name] = { data: decode(dtype, bytes), shape };
  }
  return { manifest: JSON.parse(metadata.manifest), arrays };
}

// One prompt without and with an intervention, as a trace of what differs: numbers are with − without; ids and
// words are those with it. Each array is worked out when a view asks for it.
export function difference(base, changed) {
  const arrays = {};
  for (const name of Object.keys(changed.arrays).filter((name) => base.has(name))) {
    let made = null;
    Object.defineProperty(arrays, name, {
      enumerable: true,
      get: () => (made ??= { data: differenceOf(name, base, changed), shape: changed.arrays[name].shape }),
    });
  }
  const merged = (a, b) => ({ ...a, ...b });
  const [before, after] = [base.manifest, changed.manifest];
  const dictionary = after.dictionary && {
    ...after.dictionary,
    about: merged(before.dictionary.about, after.dictionary.about),
  };
  const vocabulary = merged(before.vocabulary, after.vocabulary);
  const trace = new Trace({ ...after, dictionary, vocabulary }, arrays);
  trace.pair = [base, changed];
  return trace;
}

const RANKED = { lens_logprob: "lens_ids", stream_lens_logprob: "stream_lens_id" };

function differenceOf(name, base, changed) {
  const [before, after] = [base.data(name), changed.data(name)];
  if (after instanceof Int32Array) return after;
  if (!RANKED[name]) return Float32Array.from(after, (value, i) => value - before[i]);
  // a ranked token's own change; NaN where it was not among the likeliest before
  const [old, now] = [base.data(RANKED[name]), changed.data(RANKED[name])];
  const ranks = name === "lens_logprob" ? changed.K : 1;
  return Float32Array.from(after, (value, i) => {
    const first = i - (i % ranks);
    const place = old.subarray(first, first + ranks).indexOf(now[i]);
    return place < 0 ? NaN : value - before[first + place];
  });
}

function decode(dtype, bytes) {
  if (dtype === "U8") return new Uint8Array(bytes);
  if (dtype === "I32") return new Int32Array(bytes);
  if (dtype === "F32") return new Float32Array(bytes);
  if (dtype !== "F16") throw new Error(`a trace has no ${dtype} arrays`);
  const halves = new Uint16Array(bytes);
  const out = new Float32Array(halves.length);
  for (let i = 0; i < out.length; i++) out[i] = HALF[halves[i]];
  return out;
}

// Base64 of a gzipped trace, as the report and the notebook carry it.
export async function unpack(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return Trace.read(await new Response(stream).arrayBuffer());
}
