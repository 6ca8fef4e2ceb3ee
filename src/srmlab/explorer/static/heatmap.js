// A heat map with labelled axes, drawn with a pen; and the bar that explains its colours.

import { fine, range } from "./dom.js";

// box: the cells' place. options: values (row by row), rows, columns, scale, rowLabels, columnLabels,
// rowTitle, columnTitle, mark {row, column} (cross-hair), text (value, row, column) → string in the cell,
// region (what a click is about), theme.
export function heatmap(pen, box, options) {
  const { x, y, w, h } = box;
  const { values, rows, columns, scale, theme, mark, region } = options;
  pen.cells(x, y, w, h, rows, columns, scale.paint(values));
  pen.rect(x, y, w, h, { stroke: theme.line, width: 1 });
  const cw = w / columns,
    ch = h / rows;
  if (options.text) cellTexts(pen, box, options);
  if (mark) crosshair(pen, box, options, cw, ch);
  labels(pen, box, options);
  if (region) pen.region({ x, y, w, h, rows, columns, ...region });
}

function cellTexts(pen, { x, y, w, h }, { values, rows, columns, scale, text, size = 10, mono = true }) {
  const cw = w / columns,
    ch = h / rows;
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      const string = text(values[r * columns + c], r, c);
      if (string)
        pen.text(string, x + (c + 0.5) * cw, y + (r + 0.5) * ch + size * 0.36, {
          color: scale.ink(values[r * columns + c]),
          align: "middle",
          size,
          mono,
        });
    }
  }
}

function crosshair(pen, { x, y, w, h }, { mark, theme, rows, columns }, cw, ch) {
  const row = mark.row ?? null,
    column = mark.column ?? null;
  if (row !== null && row >= 0 && row < rows && mark.lines !== false)
    pen.rect(x, y + row * ch, w, ch, { stroke: theme.mark, width: 1, opacity: 0.55 });
  if (column !== null && column >= 0 && column < columns && mark.lines !== false)
    pen.rect(x + column * cw, y, cw, h, { stroke: theme.mark, width: 1, opacity: 0.55 });
  if (row !== null && column !== null && row < rows && column < columns) {
    pen.rect(x + column * cw, y + row * ch, cw, ch, { stroke: theme.mark, width: 2 });
  }
}

function labels(pen, { x, y, w, h }, options) {
  const {
    rows,
    columns,
    rowLabels,
    columnLabels,
    rowTitle,
    columnTitle,
    theme,
    mark,
    labelSize = 10,
    tilt = false,
  } = options;
  const cw = w / columns,
    ch = h / rows;
  if (rowLabels) {
    const every = Math.max(1, Math.ceil((labelSize + 1) / ch));
    for (let r = 0; r < rows; r++) {
      const chosen = mark?.row === r;
      if (r % every && !chosen) continue;
      // room for the chosen one
      if (!chosen && mark?.row !== undefined && Math.abs(mark.row - r) < every) continue;
      pen.text(rowLabels[r], x - 5, y + (r + 0.5) * ch + labelSize * 0.36, {
        color: chosen ? theme.ink : theme.dim,
        weight: chosen ? 700 : 400,
        align: "right",
        size: labelSize,
        mono: options.monoRows,
      });
    }
  }
  if (columnLabels) {
    const widest = tilt
      ? labelSize + 2
      : Math.max(
          ...columnLabels.map((label) => pen.measure(label, { size: labelSize, mono: options.monoColumns })),
        ) + 5;
    const every = Math.max(1, Math.ceil(widest / cw));
    for (let c = 0; c < columns; c++) {
      const chosen = mark?.column === c;
      if (c % every && !(chosen && every === 1)) continue;
      const style = {
        color: chosen ? theme.ink : theme.dim,
        weight: chosen ? 700 : 400,
        size: labelSize,
        mono: options.monoColumns,
      };
      if (tilt)
        pen.text(columnLabels[c], x + (c + 0.5) * cw + 3, y + h + 5, {
          ...style,
          rotate: -58,
          align: "right",
        });
      else
        pen.text(columnLabels[c], x + (c + 0.5) * cw, y + h + labelSize + 3, { ...style, align: "middle" });
    }
  }
  if (rowTitle)
    pen.text(rowTitle, x - (options.rowGap ?? 28), y + h / 2, {
      ...theme.small,
      rotate: -90,
      align: "middle",
    });
  if (columnTitle)
    pen.text(columnTitle, x + w / 2, y + h + (options.columnGap ?? 26), { ...theme.small, align: "middle" });
}

// A thin horizontal colour bar with its two ends and a name.
export function colorbar(pen, x, y, w, scale, what, theme) {
  const name = scale.isDifference ? `Δ ${what}` : what;
  if (scale.isNone) {
    pen.text(`${what}: no change`, x, y + 8, theme.small);
    return;
  }
  const steps = 64;
  const values = range(steps, (i) => scale.low + ((scale.high - scale.low) * i) / (steps - 1));
  const low = fine(scale.low),
    high = fine(scale.high);
  const before = pen.measure(low, { size: 10 }) + 5;
  const bar = Math.max(
    30,
    w - before - pen.measure(high, { size: 10 }) - pen.measure(name, { size: 10 }) - 16,
  );
  pen.text(low, x, y + 8, theme.small);
  pen.cells(x + before, y + 1, bar, 7, 1, steps, scale.paint(values));
  pen.text(high, x + before + bar + 5, y + 8, theme.small);
  pen.text(name, x + before + bar + 11 + pen.measure(high, { size: 10 }), y + 8, theme.small);
}
