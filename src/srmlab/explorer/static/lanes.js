// Streams as lanes over depth: the ground of the flow and of the paths.

import { streamColor } from "./color.js";

// x(l): where layer l begins, and x(L) where the last ends; y(s): the middle of a lane. The chosen layer is shaded, the
// chosen stream's lane is wider.
export function drawLanes(pen, { S, L }, { x, y, lane, opacity }, { layer, stream }, theme) {
  const [top, left] = [y(0) - lane / 2, x(0)];
  pen.rect(x(layer), top - 4, x(layer + 1) - x(layer), S * lane + 8, { fill: theme.faint, radius: 3 });
  layerNames(pen, L, x, 12, layer, theme);
  const every = Math.ceil(11 / lane); // names that have room
  for (let s = 0; s < S; s++) {
    pen.path(`M${left} ${y(s)}H${x(L)}`, {
      stroke: streamColor(s, S),
      width: s === stream ? 2.5 : 1.2,
      opacity: s === stream ? 1 : opacity,
    });
    if (s % every === 0 || s === stream)
      pen.text(`S${s}`, left - 8, y(s) + 3.5, { ...theme.label(s === stream), align: "right" });
  }
}

// "L0", "L1" … over the layers, as many as have room; the chosen one always. None goes beyond the picture.
export function layerNames(pen, L, x, y, layer, theme) {
  const middle = (l) => Math.min((x(l) + x(l + 1)) / 2, pen.width - 11);
  let last = -Infinity;
  for (let l = 0; l < L; l++) {
    const isClose = middle(l) - last < 22 || (l !== layer && Math.abs(middle(l) - middle(layer)) < 22);
    if (isClose && l !== layer) continue;
    last = middle(l);
    pen.text(`L${l}`, last, y, { ...theme.label(l === layer), align: "middle" });
  }
}

// The curve of an edge through one layer, from the source's lane to the target's.
export function arc(x0, x1, from, to) {
  const bend = ((x0 + x1) / 2).toFixed(1);
  const [left, right, source, target] = [x0, x1, from, to].map((value) => value.toFixed(1));
  return `M${left} ${source}C${bend} ${source} ${bend} ${target} ${right} ${target}`;
}
