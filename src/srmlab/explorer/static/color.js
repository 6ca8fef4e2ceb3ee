// Colour (from srmlab/figures/palette.py): one sequential and one diverging scale for each theme, and a
// colour of its own for every stream and head. The sequential scales rise or fall in lightness throughout;
// the diverging ones, blue against orange, from the middle outwards. The first six colours of streams and
// heads are from palettes made for colour-blind readers; the others come closer to one another: labels and
// position tell them apart.

import { HEADS, SHARE, SHARE_DARK, SIGNED, SIGNED_DARK, STREAMS } from "./palette.js";

function rgb(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

// 256 colours through the given stops, as bytes r g b a.
function ramp(stops) {
  const points = stops.map(rgb);
  const out = new Uint8ClampedArray(256 * 4);
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * (points.length - 1);
    const low = Math.min(points.length - 2, Math.floor(place));
    for (let c = 0; c < 3; c++)
      out[i * 4 + c] = points[low][c] + (points[low + 1][c] - points[low][c]) * (place - low);
    out[i * 4 + 3] = 255;
  }
  return out;
}

const RAMPS = {
  light: { sequential: ramp(SHARE), diverging: ramp(SIGNED) },
  dark: { sequential: ramp(SHARE_DARK), diverging: ramp(SIGNED_DARK) },
};

// Where the theme is set and read: the page, or in a notebook the widget's own element.
let root = document.documentElement;

export function setRoot(element) {
  root = element;
}

export function themeRoot() {
  return root;
}

export function isDark() {
  const asked = root.dataset.theme;
  return asked ? asked === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

// As WCAG defines it, from 0 to 1.
function luminance(bytes) {
  const [r, g, b] = Array.from(bytes, (byte) => {
    const part = byte / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// A scale maps numbers to colours: scale.css(value), and scale.paint(values) to bytes for a heat map.
export function scale(kind, low, high) {
  const table = RAMPS[isDark() ? "dark" : "light"][kind];
  const factor = high > low ? 255 / (high - low) : 0;
  const slot = (value) =>
    Number.isFinite(value) ? Math.max(0, Math.min(255, Math.round((value - low) * factor))) : -1;
  const gray = isDark() ? [40, 43, 48] : [232, 231, 227];
  return {
    low,
    high,
    kind,
    css(value) {
      const i = slot(value) * 4;
      return i < 0 ? `rgb(${gray})` : `rgb(${table[i]},${table[i + 1]},${table[i + 2]})`;
    },
    // Black or white, whichever is easier to read on this value's colour: one of them has a contrast above 4.5.
    ink(value) {
      const i = slot(value) * 4;
      return luminance(i < 0 ? gray : table.subarray(i, i + 3)) > 0.179 ? "#000" : "#fff";
    },
    paint(values) {
      const out = new Uint8ClampedArray(values.length * 4);
      for (let n = 0; n < values.length; n++) {
        const i = slot(values[n]) * 4;
        if (i < 0) out.set([...gray, 255], n * 4);
        else {
          out[n * 4] = table[i];
          out[n * 4 + 1] = table[i + 1];
          out[n * 4 + 2] = table[i + 2];
          out[n * 4 + 3] = 255;
        }
      }
      return out;
    },
  };
}

// The scale for these values of a trace: from low to high, or of a difference both ways from 0, and at least
// as far as `least`: what is smaller than the numbers can tell apart has no strong colour.
export function scaleFor(trace, values, low, high, least = 0) {
  if (!trace.pair) return scale("sequential", low, high);
  let most = 0;
  for (const value of values) if (Math.abs(value) > most) most = Math.abs(value); // not NaN
  const end = Math.max(most, least) || 1e-3;
  return { ...scale("diverging", -end, end), isDifference: true, isNone: most === 0 };
}

// Eight streams have hand-picked colours; more of them take hues a golden angle apart, in three lightnesses.
export function streamColor(s, S) {
  if (S <= STREAMS.length) return STREAMS[s];
  const hue = (s * 137.508 + 235) % 360;
  return hsl(hue, 0.55, [0.46, 0.6, 0.52][s % 3]);
}

export function headColor(head) {
  return head < HEADS.length ? HEADS[head] : hsl((head * 137.508) % 360, 0.5, 0.5);
}

function hsl(hue, saturation, lightness) {
  const part = (n) => {
    const k = (n + hue / 30) % 12;
    const value =
      lightness - saturation * Math.min(lightness, 1 - lightness) * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    return Math.round(value * 255)
      .toString(16)
      .padStart(2, "0");
  };
  return `#${part(0)}${part(8)}${part(4)}`;
}

// The page's own colours, for canvases.
export function ink(element) {
  const style = getComputedStyle(element);
  const read = (name) => {
    const value = style.getPropertyValue(name).trim(); // "light-dark(…, …)", or one for both
    return /^light-dark\((.*), (.*)\)$/.exec(value)?.[isDark() ? 2 : 1] ?? value;
  };
  const [ink, dim] = [read("--ink"), read("--dim")];
  return {
    ink,
    dim,
    small: { color: dim, size: 10 }, // what is written beside a picture
    label: (chosen) => ({ color: chosen ? ink : dim, weight: chosen ? 700 : 400, size: 10 }),
    faint: read("--faint"),
    line: read("--line"),
    panel: read("--panel"),
    mark: read("--mark"),
    warm: read("--warm"),
    cool: read("--cool"),
    band: isDark() ? "rgba(255,255,255,0.10)" : "rgba(0,0,0,0.08)",
  };
}
