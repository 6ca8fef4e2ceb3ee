// The prompt's tokens as a picture: where each stands, line by line, and how it is drawn.

import { visible } from "./dom.js";
import { textWidth } from "./pen.js";

const TEXT = { size: 13, mono: true };
const LINE = 22;
const CELL = 26; // the width of a board's cell

// Whether the cells of a board stand in columns: those of a large one would not fit beside one another.
export const isGrid = ({ manifest: { puzzle } }) => Boolean(puzzle) && puzzle.columns <= 12;

// Whether a token begins a row of a board.
export const beginsRow = ({ manifest: { puzzle } }, token) =>
  Boolean(puzzle) && token > 0 && token % puzzle.columns === 0;

// [{ text, x, y, w }]: y is the line the letters stand on.
export function placesOf(trace, width) {
  let x = 4,
    y = 18;
  return trace.strings.map((string, t) => {
    const text = visible(string);
    const w = Math.max(textWidth(text, TEXT) + 4, isGrid(trace) ? CELL : 0);
    if ((x + w > width - 4 && x > 4) || beginsRow(trace, t)) {
      x = 4;
      y += LINE;
    }
    x += w + 1;
    return { text, x: x - w - 1, y, w };
  });
}

// Each token on the colour of its value; those from first to last are marked.
export function drawStrip(pen, placed, values, scale, [first, last], theme) {
  placed.forEach(({ text, x, y, w }, t) => {
    pen.rect(x, y - 14, w, 19, { fill: scale.css(values[t]) });
    pen.text(text, x + w / 2, y, { color: scale.ink(values[t]), align: "middle", ...TEXT });
  });
  for (const { x, y, w } of placed.slice(first, last + 1))
    pen.rect(x, y - 14, w, 19, { stroke: theme.mark, width: 2 });
}
