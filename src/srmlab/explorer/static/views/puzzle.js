// The board of a puzzle: the value of every cell after every layer of every segment. On the left the board after
// the selected layer; beside it a small board for each layer, a column a segment; beside or below these, what each
// stream alone says of the selected cell.

import { scale, streamColor } from "../color.js";
import { h, number, percent, player, range } from "../dom.js";
import { toggleAblation } from "../intervention.js";
import { wrapped } from "../pen.js";

const GAP = 5; // between small boards
const LABEL = 16;
const NARROW = 560; // pixels of a picture whose parts stand one below the other
const WIDE = 1300; // and of one whose three parts stand side by side
const KEY =
  "A small board for each layer of each segment: blue cells are right, orange ones wrong, the stronger the surer; " +
  "grey ones were given.";
const KEY_OF_DIFFERENCE =
  "A small board for each layer of each segment: the intervention breaks the orange cells and mends the blue ones; " +
  "grey ones were given.";

export const puzzle = {
  name: "puzzle",
  title: "Board",
  place: "wide",
  needs: ["cell_value", "cell_probability", "given"],
  shows:
    "The value of every cell after every layer of every segment, and what each stream alone says of one cell.",
  reading:
    "Given cells are grey; of the others, the stronger the colour the likelier the value. Wrong ones are framed and " +
    "struck out.",
  uses: ["token", "layer", "stream", "ablated", "first", "last"],

  available: ({ info, traces }) =>
    info ? !info.generates : !traces.length || traces.some((trace) => trace.has("cell_value")),

  caption(trace) {
    const last = trace.L - 1;
    const wrong = count(trace, last);
    const open = trace.data("given").filter((given) => !given).length;
    const solved = firstSolved(trace);
    const { segment_depth: depth } = trace.manifest.puzzle;
    return wrong === 0
      ? `All ${open} open cells are right at the end, and from segment ${Math.floor(solved / depth) + 1}, ` +
          `layer ${(solved % depth) + 1} on.`
      : `${wrong} of ${open} open cells are wrong at the end.`;
  },

  mount(panel, ctx) {
    const { store } = ctx;
    const isLast = () => store.get("layer") >= ctx.trace.L - 1;
    const play = player(
      "Play through depth",
      "",
      300,
      () => isLast() && store.set({ layer: 0, step: 0 }),
      () => {
        store.set({ layer: store.get("layer") + 1 });
        return !isLast();
      },
    );
    const boards = h("select", { "aria-label": "Another board", onchange: () => trace(boards.value) });
    const streams = h("span", {
      class: "choice",
      role: "group",
      "aria-label": "Ablate a stream in all layers",
    });
    panel.controls.append(play);
    if (ctx.client) panel.controls.append(h("label", {}, "without ", streams), boards);
    for (const [i, prompt] of (ctx.info?.prompts ?? []).entries())
      boards.append(h("option", { value: prompt }, `test board ${i + 1}`));
    let built = 0;
    let begun = false;

    function trace(prompt) {
      document.getElementById("prompt").value = prompt;
      document.getElementById("trace").click();
    }

    // a stream at its mean in every layer, and the board that comes of it
    function ablate(stream) {
      store.set({ first: 0, last: ctx.trace.L - 1, version: "intervened" });
      toggleAblation(store, stream);
    }

    function build(S) {
      built = S;
      streams.replaceChildren(
        ...range(S, (s) =>
          h(
            "button",
            { type: "button", "data-without": String(s), onclick: () => ablate(s) },
            ctx.trace.streamName(s),
          ),
        ),
      );
    }

    return {
      height(width) {
        const at = layout(ctx.trace, width);
        return Math.max(at.y + at.big + 34, at.lens + (ctx.trace.S + 1) * at.tall + 20);
      },
      render(pen, width, height, theme) {
        const at = layout(ctx.trace, width);
        bigBoard(pen, ctx.trace, at, store.state, theme);
        film(pen, ctx.trace, at, store.state, theme);
        if (ctx.trace.has("stream_lens_id")) streamLens(pen, ctx.trace, at, store.state, theme);
      },
      update(keys) {
        const { trace } = ctx;
        if (!trace) return;
        if (built !== trace.S) build(trace.S);
        if (!begun && keys.has("trace")) {
          begun = true;
          // where a link names no place: the end, and the first open cell
          if (!/layer=|token=/.test(location.hash))
            store.set({ layer: trace.L - 1, token: Math.max(0, trace.data("given").indexOf(0)) });
        }
        const ablated = store.get("ablated").map((code) => Math.floor(code / 3));
        for (const button of streams.children)
          button.setAttribute("aria-pressed", String(ablated.includes(Number(button.dataset.without))));
        if ([...boards.options].some((option) => option.value === trace.manifest.prompt))
          boards.value = trace.manifest.prompt;
        panel.note.textContent = said(trace, Math.min(store.get("layer"), trace.L - 1));
      },
      tip: (hit) => tip(ctx.trace, hit, store.state),
      click(hit) {
        if (hit.part === "board") store.set({ token: hit.row * hit.columns + hit.column });
        if (hit.part === "small") store.set({ layer: hit.layer });
        if (hit.part === "lens")
          store.set({ layer: hit.column, ...(hit.row < ctx.trace.S ? { stream: hit.row } : {}) });
      },
      table() {
        const { trace } = ctx;
        const rows = [];
        for (let l = 0; l < trace.L; l++)
          for (let t = 0; t < trace.T; t++)
            rows.push([
              ...place(trace, l),
              t,
              Number(isGiven(trace, t)),
              trace.string(trace.at("cell_value", l, t)),
              trace.at("cell_probability", l, t),
              Number(isRight(trace, l, t)),
            ]);
        return { columns: ["segment", "layer", "cell", "given", "value", "probability", "right"], rows };
      },
      python: () =>
        ctx.code.of(
          'trace["cell_value"]          # [layer, cell] the value if this layer were the last',
          'trace["cell_probability"]    # [layer, cell] how likely',
          '(trace["cell_value"] == trace["target"])[:, trace["given"] == 0].mean(1)',
        ),
    };
  },
};

// --- what is right ----------

// What is on the board: of a difference, what is with the intervention.
function shown(trace) {
  return trace.pair ? trace.pair[1] : trace;
}

function isGiven(trace, cell) {
  return shown(trace).at("given", cell) === 1;
}

// The value that stands in a cell: the given one, or what the model would say after a layer.
function valueAt(trace, layer, cell) {
  const now = shown(trace);
  return now.string(isGiven(trace, cell) ? now.at("tokens", cell) : now.at("cell_value", layer, cell));
}

function isRight(trace, layer, cell) {
  return trace.at("cell_value", layer, cell) === trace.at("target", cell);
}

// A wall of a maze, which is no cell to think about.
function isWall(trace, cell) {
  return isGiven(trace, cell) && shown(trace).string(shown(trace).at("tokens", cell)) === "#";
}

// The open cells that are wrong after a layer.
function count(trace, layer) {
  let wrong = 0;
  for (let t = 0; t < trace.T; t++) if (!isGiven(trace, t) && !isRight(trace, layer, t)) wrong++;
  return wrong;
}

// The first layer from which on all is right.
function firstSolved(trace) {
  let layer = trace.L;
  while (layer > 0 && count(trace, layer - 1) === 0) layer--;
  return layer;
}

// Segment and layer within it, both from 1.
function place(trace, layer) {
  const { segment_depth: depth } = trace.manifest.puzzle;
  return [Math.floor(layer / depth) + 1, (layer % depth) + 1];
}

// Cells that an intervention breaks and mends, of a difference.
function moved(trace, layer) {
  const [before, after] = trace.pair;
  let [broken, mended] = [0, 0];
  for (let t = 0; t < trace.T; t++) {
    if (isGiven(trace, t)) continue;
    const [was, is] = [isRight(before, layer, t), isRight(after, layer, t)];
    if (was && !is) broken++;
    if (!was && is) mended++;
  }
  return [broken, mended];
}

function said(trace, layer) {
  const [segment, within] = place(trace, layer);
  const where = `segment ${segment}, layer ${within}`;
  if (trace.pair) {
    const [broken, mended] = moved(trace, layer);
    return `${where}: breaks ${broken} cells, mends ${mended}`;
  }
  const wrong = count(trace, layer);
  return `${trace.manifest.puzzle.kind} · ${where}: ${wrong === 0 ? "solved" : `${wrong} cells wrong`}`;
}

// --- drawing ----------

// The board, and beside it the small ones and what the streams say; below it where there is no room.
function layout(trace, width) {
  const { rows, columns, segment_depth: depth } = trace.manifest.puzzle;
  const [isNarrow, isWide] = [width < NARROW, width >= WIDE];
  const side = Math.min(width - 16, Math.max(300, Math.min(420, width / 5)));
  const cell = Math.max(6, Math.min(isWide ? 105 : 75, Math.floor(side / Math.max(rows, columns))));
  const big = cell * rows;
  const segments = Math.ceil(trace.L / depth);
  const y = LABEL + 4;
  const x = isNarrow ? 54 : 8 + cell * columns + 44;
  const film = isNarrow ? y + big + 34 + LABEL : y;
  const room = Math.max(120, width - x - 8);
  const across = Math.floor((isWide ? room / 2 : room) / segments) - GAP;
  const small = Math.max(10, Math.min(across, Math.floor((big + GAP) / depth) - GAP));
  const [wide, high] = [segments * (small + GAP), depth * (small + GAP)];
  const beside = { lensX: x + wide + 40, lens: y, tall: Math.min(90, Math.floor(big / (trace.S + 1)) - 1) };
  const lensed = isWide ? beside : { lensX: x, lens: film + high + 26, tall: 15 };
  return { cell, big, x, y, film, wide, room, small, depth, segments, rows, columns, isWide, ...lensed };
}

// The colours of one cell: its paper, its ink, and whether it is to be marked as wrong.
function look(trace, layer, cell, theme) {
  const given = isGiven(trace, cell);
  if (isWall(trace, cell)) return { fill: theme.dim, ink: theme.dim, wrong: false, given };
  if (given) return { fill: theme.band, ink: theme.ink, wrong: false, given };
  if (trace.pair) {
    const [was, is] = trace.pair.map((one) => isRight(one, layer, cell));
    const fill = was === is ? theme.panel : is ? theme.cool : theme.warm;
    return { fill, ink: was === is ? theme.ink : "#fff", wrong: false, given }; // its colour says it
  }
  const shade = scale("sequential", 0, 1.35);
  const probability = trace.at("cell_probability", layer, cell);
  return {
    fill: shade.css(probability),
    ink: shade.ink(probability),
    wrong: !isRight(trace, layer, cell),
    given,
  };
}

function bigBoard(pen, trace, at, state, theme) {
  const layer = Math.min(state.layer, trace.L - 1);
  const { cell, rows, columns, y } = at;
  const x = 8;
  for (let t = 0; t < trace.T; t++) {
    const [left, top] = [x + (t % columns) * cell, y + Math.floor(t / columns) * cell];
    const { fill, ink, wrong, given } = look(trace, layer, t, theme);
    pen.rect(left, top, cell, cell, { fill, stroke: theme.line, width: 0.5 });
    if (cell >= 9)
      pen.text(valueAt(trace, layer, t), left + cell / 2, top + cell * 0.66, {
        color: ink,
        align: "middle",
        size: Math.max(8, Math.round(cell * 0.48)),
        weight: given ? 700 : 400,
      });
    if (wrong) {
      const inset = Math.max(1, cell * 0.05);
      pen.rect(left + inset, top + inset, cell - 2 * inset, cell - 2 * inset, {
        stroke: theme.warm,
        width: Math.max(1.5, cell * 0.06),
      });
      pen.path(`M${left + cell * 0.2} ${top + cell * 0.8}L${left + cell * 0.8} ${top + cell * 0.2}`, {
        stroke: theme.warm,
        width: Math.max(1, cell * 0.05),
      });
    }
  }
  boxes(pen, trace, x, y, cell, theme);
  const [row, column] = [Math.floor(state.token / columns), state.token % columns];
  if (state.token < trace.T)
    pen.rect(x + column * cell, y + row * cell, cell, cell, { stroke: theme.ink, width: 3 });
  const [segment, within] = place(trace, layer);
  pen.text(`after segment ${segment}, layer ${within}`, x, 12, { color: theme.dim, size: 11 });
  pen.region({ part: "board", x, y, w: columns * cell, h: rows * cell, rows, columns });
  const below = trace.pair
    ? [
        [theme.warm, "broken"],
        [theme.cool, "mended"],
      ]
    : [
        [theme.band, "given"],
        [scale("sequential", 0, 1.35).css(1), "certain"],
        [theme.warm, "wrong"],
      ];
  let left = x;
  for (const [color, label] of below) {
    pen.rect(left, y + at.big + 10, 10, 10, { fill: color, stroke: theme.line, width: 0.5 });
    pen.text(label, left + 14, y + at.big + 19, theme.small);
    left += 28 + pen.measure(label, { size: 10 });
  }
}

// The thick lines of a sudoku.
function boxes(pen, trace, x, y, cell, theme) {
  const { rows, columns, box } = trace.manifest.puzzle;
  const [high, wide] = box ?? [rows, columns];
  for (let r = 0; r <= rows; r += high)
    pen.path(`M${x} ${y + r * cell}h${columns * cell}`, { stroke: theme.ink, width: 1.5 });
  for (let c = 0; c <= columns; c += wide)
    pen.path(`M${x + c * cell} ${y}v${rows * cell}`, { stroke: theme.ink, width: 1.5 });
}

// A small board for every layer, a column a segment: right, wrong, given.
function film(pen, trace, at, state, theme) {
  const { x, film: y, small, depth, wide, room, rows, columns } = at;
  for (let l = 0; l < trace.L; l++) {
    const left = x + Math.floor(l / depth) * (small + GAP);
    const top = y + (l % depth) * (small + GAP);
    const colors = new Uint8ClampedArray(trace.T * 4);
    for (let t = 0; t < trace.T; t++) colors.set([...tone(trace, l, t, theme), 255], t * 4);
    pen.cells(left, top, small, small, rows, columns, colors);
    const chosen = l === Math.min(state.layer, trace.L - 1);
    pen.rect(left - 1, top - 1, small + 2, small + 2, {
      stroke: chosen ? theme.mark : theme.line,
      width: chosen ? 2.5 : 1,
    });
    pen.region({ part: "small", layer: l, x: left, y: top, w: small, h: small, rows, columns });
    if (l % depth === 0 && (small > 16 || (l / depth) % 2 === 0))
      pen.text(`${l / depth + 1}`, left + small / 2, y - 8, { ...theme.small, align: "middle" });
  }
  pen.text("segment", x - 6, y - 8, { ...theme.small, align: "right" });
  const key = trace.pair ? KEY_OF_DIFFERENCE : KEY;
  const beside = room - wide - 12;
  if (at.isWide)
    wrapped(key, wide, theme.small).forEach((line, i) =>
      pen.text(line, x, y + depth * (small + GAP) + 14 + 12 * i, theme.small),
    );
  else if (beside > 190)
    wrapped(key, Math.min(beside, 260), theme.small).forEach((line, i) =>
      pen.text(line, x + wide + 12, y + 12 + 15 * i, theme.small),
    );
  if (small > 20)
    for (let k = 0; k < depth; k++)
      pen.text(`L${k + 1}`, x - 6, y + k * (small + GAP) + small / 2 + 4, { ...theme.small, align: "right" });
}

function tone(trace, layer, cell, theme) {
  const paper = rgb(theme.panel);
  if (isWall(trace, cell)) return mixed(rgb(theme.dim), paper, 0.8);
  if (isGiven(trace, cell)) return mixed(rgb(theme.dim), paper, 0.25);
  if (trace.pair) {
    const [was, is] = trace.pair.map((one) => isRight(one, layer, cell));
    return was === is ? paper : rgb(is ? theme.cool : theme.warm);
  }
  const color = rgb(isRight(trace, layer, cell) ? theme.cool : theme.warm);
  return mixed(color, paper, 0.25 + 0.75 * trace.at("cell_probability", layer, cell));
}

function rgb(color) {
  const hex = /^#(..)(..)(..)/.exec(color);
  return hex ? hex.slice(1).map((part) => parseInt(part, 16)) : [128, 128, 128];
}

function mixed(a, b, share) {
  return a.map((value, i) => Math.round(value * share + b[i] * (1 - share)));
}

// What each stream alone says of the selected cell after every layer; all together below.
function streamLens(pen, trace, at, state, theme) {
  const { lensX: x, lens: top, depth, tall } = at;
  const room = at.x + at.room - x;
  const cell = Math.min(state.token, trace.T - 1);
  const wide = room / trace.L;
  const size = Math.min(13, Math.max(10, wide * 0.6), tall - 5);
  const line = (tall - 1 + size * 0.72) / 2; // of the words in a row
  const colors = scale("sequential", 0, 1.35);
  const now = shown(trace);
  const right = now.at("target", cell);
  const [row, column] = [Math.floor(cell / at.columns) + 1, (cell % at.columns) + 1];
  const answer = isGiven(trace, cell) ? "given" : `answer: ${trace.string(right)}`;
  const where = `row ${row}, column ${column} (${answer})`;
  const how = trace.pair ? "with the intervention" : "layer by layer";
  const whole = `${where}: each stream alone, ${how}; orange: wrong`;
  const style = { color: theme.dim, size: 11 };
  pen.text(pen.measure(whole, style) < room ? whole : where, x, top - 8, style);
  for (let s = 0; s <= trace.S; s++) {
    const y = top + s * tall + (s === trace.S ? 4 : 0);
    const all = s === trace.S;
    pen.text(all ? "all" : trace.streamName(s), x - 6, y + line, {
      color: all || s === state.stream ? theme.ink : streamColor(s, trace.S),
      weight: s === state.stream ? 700 : 400,
      size: 10,
      align: "right",
    });
    let before = null;
    for (let l = 0; l < trace.L; l++) {
      const [value, share] = all
        ? [now.at("cell_value", l, cell), now.at("cell_probability", l, cell)]
        : [now.at("stream_lens_id", l, cell, s), Math.exp(now.at("stream_lens_logprob", l, cell, s))];
      const w = wide - (wide > 6 ? 1 : 0);
      pen.rect(x + l * wide, y, w, tall - 1, { fill: colors.css(share) });
      if (value !== right) pen.rect(x + l * wide, y + tall - 4, w, 3, { fill: theme.warm });
      const isNew = l === 0 || value !== before; // where there is room for few, only what changes
      before = value;
      if (wide > 13 || (wide > 5 && isNew))
        pen.text(trace.string(value), x + (l + 0.5) * wide, y + line, {
          color: colors.ink(share),
          size,
          align: "middle",
        });
    }
  }
  for (let l = depth; l < trace.L; l += depth)
    pen.path(`M${x + l * wide - 0.5} ${top}v${(trace.S + 1) * tall + 3}`, { stroke: theme.panel, width: 2 });
  const below = top + (trace.S + 1) * tall + 15;
  if (wide * depth > 16)
    for (let l = 0; l < trace.L; l += depth)
      pen.text(`${l / depth + 1}`, x + (l + depth / 2) * wide, below, { ...theme.small, align: "middle" });
  pen.rect(x + Math.min(state.layer, trace.L - 1) * wide, top - 1, wide, (trace.S + 1) * tall + 5, {
    stroke: theme.mark,
    width: 1.5,
  });
  pen.region({
    part: "lens",
    x,
    y: top,
    w: room,
    h: (trace.S + 1) * tall + 4,
    rows: trace.S + 1,
    columns: trace.L,
  });
}

function tip(trace, hit, state) {
  if (hit.part === "lens") {
    const [segment, layer] = place(trace, hit.column);
    const cell = Math.min(state.token, trace.T - 1);
    const all = hit.row >= trace.S;
    const now = shown(trace);
    const value = all
      ? now.at("cell_value", hit.column, cell)
      : now.at("stream_lens_id", hit.column, cell, hit.row);
    const name = all ? "all streams" : trace.streamName(hit.row);
    return `${name}: ${trace.string(value)}\nsegment ${segment}, layer ${layer}`;
  }
  const layer = hit.part === "small" ? hit.layer : Math.min(state.layer, trace.L - 1);
  const cell = hit.row * hit.columns + hit.column;
  const [segment, within] = place(trace, layer);
  const share = trace.at("cell_probability", layer, cell);
  const chance = trace.pair ? `Δ ${number(share * 100, 1)} points` : percent(share);
  const standing = isGiven(trace, cell) ? "given" : isRight(trace, layer, cell) ? "right" : "wrong";
  const answer = isGiven(trace, cell) ? "" : `, the answer is ${trace.string(trace.at("target", cell))}`;
  return (
    `row ${hit.row + 1}, column ${hit.column + 1}: ${valueAt(trace, layer, cell)} ` +
    `(${chance}), ${standing}${answer}\nsegment ${segment}, layer ${within}` +
    (trace.pair ? "" : `: ${count(trace, layer)} cells wrong`)
  );
}
