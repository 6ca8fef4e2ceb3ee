// Numbers the views read off a trace. Pure functions; what is costly is kept in the trace's memory.

import { range } from "./dom.js";

export const THRESHOLD = 0.1; // where the slider starts, with up to eight streams

// With more streams a weight is smaller: the threshold is 0.8 of an even share at most. Captions use it.
export function thresholdOf(trace) {
  return Math.min(THRESHOLD, Math.floor(80 / trace.S) / 100 || 0.01);
}

// The mean, the place of the largest, without values that are not finite.
export function mean(values) {
  const finite = Array.from(values).filter(Number.isFinite);
  return finite.reduce((sum, value) => sum + value, 0) / finite.length;
}

export function argmax(values) {
  let best = -1;
  for (let i = 0; i < values.length; i++) {
    if (Number.isFinite(values[i]) && (best < 0 || values[i] > values[best])) best = i;
  }
  return best;
}

// The indices of a place in an array of this shape.
export function unravel(place, shape) {
  return shape.reduceRight(
    ([rest, index], size) => [Math.floor(rest / size), [rest % size, ...index]],
    [place, []],
  )[1];
}

// Rows for CSV: the indices of every value in an array of this shape, and the value.
export function listed(values, shape) {
  return Array.from(values, (value, i) => [...unravel(i, shape), Number(value.toFixed(5))]);
}

export function tokenSpan(state, trace) {
  const last = trace.T - 1;
  const a = Math.min(state.token, last);
  const b = state.rangeEnd === null ? a : Math.min(state.rangeEnd, last);
  return [Math.min(a, b), Math.max(a, b)];
}

// [layer, head, target, source]: share of tokens first…last at which weight > threshold, or the mean weight; of a
// difference, by how much it differs.
export function wallMaps(trace, kind, threshold, first, last) {
  if (trace.pair) {
    const [before, after] = trace.pair.map((one) => wallMaps(one, kind, threshold, first, last));
    return after.map((value, i) => value - before[i]);
  }
  const { L, T, H, S } = trace;
  const cells = S * S;
  const routing = trace.data("routing");
  const out = new Float32Array(L * H * cells);
  const least = Math.floor(threshold * 255 + 1e-9) + 1; // weight > threshold, in 255ths
  const sum = new Uint32Array(cells);
  const scale = 1 / (last - first + 1) / (kind === "mean" ? 255 : 1);
  for (let l = 0; l < L; l++) {
    for (let head = 0; head < H; head++) {
      sum.fill(0);
      if (kind !== "mean" && cells % 4 === 0) countByFours(trace, l, head, first, last, least, sum);
      else {
        for (let t = first; t <= last; t++) {
          const base = ((l * T + t) * H + head) * cells;
          if (kind === "mean") for (let i = 0; i < cells; i++) sum[i] += routing[base + i];
          else for (let i = 0; i < cells; i++) sum[i] += routing[base + i] >= least ? 1 : 0;
        }
      }
      const to = (l * H + head) * cells;
      for (let i = 0; i < cells; i++) out[to + i] = sum[i] * scale;
    }
  }
  return out;
}

// [layer, head, target, source]: weights, mean over the prompt.
export function meanWeights(trace) {
  return trace.once("mean weights", () => wallMaps(trace, "mean", 0, 0, trace.T - 1));
}

// Counts, for each cell of one map, the tokens whose weight is at least `least`: four bytes at a time, so
// that the wall follows the slider. In each byte, with its upper bit and the lower seven apart, "≥ least" is
// the upper bit of (lower + 128 − least), or'ed with the byte's own upper bit (least ≤ 128), or the upper bit
// of (lower + 256 − least) and'ed with it. No sum leaves its byte.
function countByFours(trace, layer, head, first, last, least, sum) {
  const { T, H, S } = trace;
  const words = (S * S) / 4;
  const data = trace.once("routing words", () => new Uint32Array(trace.data("routing").buffer));
  const low = least <= 128;
  const add = Math.imul(Math.max(0, (low ? 128 : 256) - least), 0x01010101);
  const lanes = new Uint32Array(words);
  for (let from = first; from <= last; from += 255) {
    // a lane counts to 255
    lanes.fill(0);
    for (let t = from; t <= Math.min(last, from + 254); t++) {
      const base = ((layer * T + t) * H + head) * words;
      for (let i = 0; i < words; i++) {
        const x = data[base + i] | 0;
        const reached = ((x & 0x7f7f7f7f) + add) | 0;
        lanes[i] += ((low ? x | reached : x & reached) & 0x80808080) >>> 7;
      }
    }
    for (let i = 0; i < words; i++) {
      for (let byte = 0; byte < 4; byte++) sum[i * 4 + byte] += (lanes[i] >>> (8 * byte)) & 255;
    }
  }
}

// One S×S map at one token, as weights.
export function patternAt(trace, layer, head, token) {
  const cells = trace.S * trace.S;
  const base = ((layer * trace.T + token) * trace.H + head) * cells;
  return Float32Array.from(trace.data("routing").subarray(base, base + cells), (value) => value / 255);
}

// Per stream: how often others read it (hub), how often it reads them (incoming) and itself (self).
export function hubScores(trace, threshold) {
  return trace.once(`hubs ${threshold}`, () => {
    const level = Math.floor(threshold * 255 + 1e-9); // weight > threshold, in 255ths
    const at = (name) => trace.data(name).subarray(level * trace.S, (level + 1) * trace.S);
    return { hub: at("hub_score"), incoming: at("incoming"), self: at("self_routing") };
  });
}

// Mean over tokens of an array [row, token, stream] → Float32Array [row, stream].
export function meanOverTokens(trace, name) {
  return trace.once(`mean ${name}`, () => {
    const {
      data,
      shape: [rows, T, S],
    } = trace.arrays[name];
    const out = new Float32Array(rows * S);
    for (let r = 0; r < rows; r++) {
      for (let t = 0; t < T; t++) for (let s = 0; s < S; s++) out[r * S + s] += data[(r * T + t) * S + s] / T;
    }
    return out;
  });
}

// Streams by ablation KL in bits, mean over tokens, largest first: [{ stream, kl, share }] with the
// cumulative share.
export function ranking(trace) {
  return trace.once("ranking", () => {
    const { T, S } = trace;
    const kl = trace.data("ablation_kl");
    const mean = range(S, (s) => {
      let sum = 0;
      for (let t = 0; t < T; t++) sum += kl[t * S + s];
      return { stream: s, kl: sum / T };
    });
    mean.sort((a, b) => b.kl - a.kl);
    const total = mean.reduce((sum, entry) => sum + entry.kl, 0) || 1;
    let running = 0;
    return mean.map((entry) => ({ ...entry, share: (running += entry.kl) / total }));
  });
}

// How many bits a token stands for, by the strip's three colourings.
export function tokenValues(trace, kind) {
  return trace.once(`tokens ${kind}`, () => {
    const { T, S, L, H } = trace;
    if (kind === "surprisal") return trace.data("surprisal");
    const out = new Float32Array(T);
    if (kind === "ablation") {
      const kl = trace.data("ablation_kl");
      for (let t = 0; t < T; t++) for (let s = 0; s < S; s++) out[t] += kl[t * S + s];
    } else {
      const entropy = trace.data("routing_entropy");
      for (let l = 0; l < L; l++)
        for (let t = 0; t < T; t++)
          for (let head = 0; head < H; head++) out[t] += entropy[(l * T + t) * H + head] / (L * H);
    }
    return out;
  });
}

// Drift of one step group, mean over tokens: rows of transitions × streams, and the transition after which
// each stream stays within 10 %.
export function driftOf(trace, metric, group) {
  return trace.once(`drift ${metric} ${group}`, () => {
    const { T, S, G } = trace;
    const {
      data,
      shape: [transitions],
    } = trace.arrays[`drift_${metric}`];
    const lines = Array.from({ length: S }, () => new Float64Array(transitions));
    for (let d = 0; d < transitions; d++) {
      for (let t = 0; t < T; t++)
        for (let s = 0; s < S; s++) lines[s][d] += data[((d * G + group) * T + t) * S + s] / T;
    }
    const settled = (trace.pair?.[1] ?? trace).data(`convergence_${metric}`);
    return { lines, converged: settled.subarray(group * S, (group + 1) * S), transitions };
  });
}

// As in srmlab.analysis.drift: 0–1, 2–3 and 4–6 of seven transitions; other depths are cut in proportion.
export function driftClass(transition, transitions) {
  if (!Number.isFinite(transition)) return "–"; // a random order may leave gaps
  return 7 * transition < 2 * transitions ? "early" : 7 * transition < 4 * transitions ? "middle" : "late";
}

export function quantile(values, q) {
  const sorted = Array.from(values)
    .filter(Number.isFinite)
    .sort((a, b) => a - b);
  if (!sorted.length) return NaN;
  const place = (sorted.length - 1) * q;
  const low = Math.floor(place);
  return sorted[low] + (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]) * (place - low);
}
