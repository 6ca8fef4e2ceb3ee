// Colour: one sequential and one diverging scale for each theme, and a colour of its own for every stream and
// head. The sequential scales rise or fall in lightness throughout; the diverging ones, blue against orange,
// from the middle outwards. The first six colours of streams and heads are from palettes made for
// colour-blind readers; the others come closer to one another: labels and position tell them apart.

const SEA = [
  "#0b0405",
  "#231526",
  "#35264c",
  "#403974",
  "#3d5296",
  "#366da0",
  "#3487a6",
  "#35a1ab",
  "#43bbad",
  "#6cd3ad",
  "#ade3c0",
  "#def5e5",
];
const BLUE = ["#0b3c6f", "#1f66a8", "#4a90cf", "#8fbce6", "#cfe0f1"];
const ORANGE = ["#fbe0c5", "#f3b57c", "#e2872f", "#b85f0c", "#7a3b04"];
const STREAMS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7fd1", "#9aa21a"];
const HEADS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bb5566", "#777777"];

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
  light: {
    sequential: ramp(["#fbfbf8", ...SEA.slice(1).reverse()]),
    diverging: ramp([...BLUE, "#f7f6f2", ...ORANGE]),
  },
  dark: {
    sequential: ramp(["#15181c", ...SEA.slice(2)]),
    diverging: ramp([
      "#9fd0ff",
      "#5aa2e0",
      "#2f6ca6",
      "#1f4468",
      "#1b2733",
      "#1b1d20",
      "#33261a",
      "#6b4216",
      "#ad6a1c",
      "#ea9a3e",
      "#ffcf94",
    ]),
  },
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
    // Dark or light ink, whichever is easier to read on this value's colour.
    ink(value) {
      const i = slot(value) * 4;
      const [r, g, b] = i < 0 ? gray : [table[i], table[i + 1], table[i + 2]];
      return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#14171a" : "#f6f5f1";
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
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    ink: read("--ink"),
    dim: read("--dim"),
    faint: read("--faint"),
    line: read("--line"),
    panel: read("--panel"),
    mark: read("--mark"),
    warm: read("--warm"),
    cool: read("--cool"),
    band: isDark() ? "rgba(255,255,255,0.10)" : "rgba(0,0,0,0.08)",
  };
}
