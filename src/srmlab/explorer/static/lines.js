// Line charts: uPlot on the screen (cursor, zoom by dragging), the pen for export.
//
// spec: { x: [...], series: [{ label, values, color, width, opacity, dash, dots }], band: { low, high, color
// }, markers: [{ x, color }],
//         xTitle, yTitle, title, sparse }; of a sparse chart the values may be null, and lines go on over those

import { fine, h } from "./dom.js";
import uPlot from "./vendor/uPlot.esm.js";

// steps between labels
const STEPS = Array.from({ length: 21 }, (_, i) => i - 12).flatMap((power) =>
  [1, 2, 5].map((first) => Number(`${first}e${power}`)),
);
const WHOLE = STEPS.filter((step) => step >= 1);

// An axis for values from low to high: { low, high, values, texts } with round values, the ends a little
// outside or, on a log axis, of one digit.
export function axis(low, high, isLog = false) {
  if (isLog) {
    const [from, to] = oneDigit(low, high);
    const inside = STEPS.filter((step) => step >= from * 0.999 && step <= to * 1.001);
    const decades = inside.filter((step) => Number.isInteger(Number(Math.log10(step).toFixed(6))));
    const values = decades.length > 2 ? decades : inside;
    return { low: from, high: to, values, texts: labels(values, true) };
  }
  const step = STEPS.find((one) => (high - low) / one <= 5) ?? 1;
  const [first, last] = [Math.floor(low / step + 1e-9), Math.ceil(high / step - 1e-9)];
  const values = Array.from({ length: last - first + 1 }, (_, i) =>
    Number(((first + i) * step).toPrecision(9)),
  );
  return { low: values[0], high: values.at(-1), values, texts: labels(values) };
}

// The ends of a linear axis on the screen; where all values are the same, such as of a difference without a
// change, uPlot's own would be 0 and 100.
function around(low, high) {
  if (!Number.isFinite(low)) return [null, null];
  return low < high ? uPlot.rangeNum(low, high, 0.1, true) : [low - 0.5, high + 0.5];
}

function oneDigit(low, high) {
  const unit = (value) => 10 ** Math.floor(Math.log10(value));
  return [Math.floor(low / unit(low)) * unit(low), Math.ceil(high / unit(high)) * unit(high)];
}

// The round values of an axis in words: each as short as it can be on a log axis, else all with as many digits as
// the one that needs most.
function labels(values, isLog = false) {
  const exact = values.map((value) => String(Number(value.toPrecision(6))));
  const isTiny = Math.max(...values.map(Math.abs)) < 1e-3;
  if (isTiny || exact.some((text) => text.includes("e")))
    return exact.map((text) => Number(text).toExponential().replaceAll("-", "−").replace(/^0e.*/, "0"));
  const digits = isLog ? null : Math.max(...exact.map((text) => (text.split(".")[1] ?? "").length));
  return exact.map((text) => (isLog ? text : Number(text).toFixed(digits)).replace("-", "−"));
}

export function lineChart(host, spec, { width, height, theme, onpick, log = false, sync, scale = 1 }) {
  const font = `${10 * scale}px sans-serif`;
  const series = [{ label: spec.xTitle }];
  const data = [spec.x];
  const bands = [];
  if (spec.band) {
    data.push(spec.band.high, spec.band.low);
    series.push(
      { stroke: "transparent", points: { show: false } },
      { stroke: "transparent", points: { show: false } },
    );
    bands.push({ series: [1, 2], fill: spec.band.color });
  }
  for (const line of spec.series) {
    data.push(line.values);
    series.push({
      label: line.label,
      stroke: line.color,
      width: line.width ?? 1,
      alpha: line.opacity ?? 1,
      dash: line.dash,
      spanGaps: spec.sparse,
      points: { show: Boolean(line.dots), size: 5 * scale, fill: line.color },
    });
  }
  const axis = { stroke: theme.dim, font, grid: { stroke: theme.faint, width: 1 }, ticks: { show: false } };
  const plot = new uPlot(
    {
      width,
      height,
      series,
      bands,
      pxAlign: 0,
      legend: { show: false },
      padding: [10, 14 * scale, 0, 0],
      scales: {
        x: { time: false, ...(spec.x.length === 1 ? { range: [spec.x[0] - 0.5, spec.x[0] + 0.5] } : {}) },
        y: { distr: log ? 3 : 1, range: (_, low, high) => (log ? oneDigit(low, high) : around(low, high)) },
      },
      axes: [
        {
          ...axis,
          size: 22 * scale,
          gap: 4 * scale,
          space: (spec.x.at(-1) >= 100 ? 60 : 26) * scale,
          label: spec.xTitle,
          labelSize: 14 * scale,
          labelFont: font,
          labelGap: 0,
          incrs: spec.whole ? WHOLE : undefined,
        },
        {
          ...axis,
          size: 44 * scale,
          space: 30 * scale,
          gap: 3,
          label: spec.yTitle,
          labelSize: 14 * scale,
          labelFont: font,
          labelGap: 0,
          values: (_, found) => {
            const shown = found.filter((tick) => tick !== null); // on a log axis some have no label
            const texts = labels(shown, log);
            return found.map((tick) => texts[shown.indexOf(tick)] ?? "");
          },
        },
      ],
      cursor: {
        drag: { x: true, y: false },
        focus: { prox: 12 },
        points: { size: 5 },
        sync: sync ? { key: sync } : undefined,
      },
      focus: { alpha: 0.9 },
      hooks: {
        draw: [(u) => markers(u, spec, theme)],
        setSeries: [
          (u, i) => {
            u.near = i;
          },
        ],
      },
    },
    data,
    host,
  );
  if (onpick) {
    plot.over.addEventListener("click", () => {
      const near = plot.near ? plot.near - 1 - (spec.band ? 2 : 0) : -1;
      onpick(plot.cursor.idx, near >= 0 ? near : null);
    });
  }
  const tip = h("div", { class: "chart-tip" });
  plot.over.append(tip);
  plot.over.addEventListener("mousemove", () => {
    const index = plot.cursor.idx;
    const line = plot.near ? spec.series[plot.near - 1 - (spec.band ? 2 : 0)] : null;
    tip.textContent =
      index === null || index === undefined
        ? ""
        : `${spec.xName ?? "x"} ` +
          `${spec.x[index]}${line ? ` · ${line.label} ${fine(line.values[index], 3)}` : ""}`;
  });
  plot.over.addEventListener("mouseleave", () => {
    tip.textContent = "";
  });
  return plot;
}

function markers(plot, spec, theme) {
  for (const marker of spec.markers ?? []) {
    const x = plot.valToPos(marker.x, "x", true);
    const { top, height } = plot.bbox;
    plot.ctx.save();
    plot.ctx.strokeStyle = marker.color ?? theme.mark;
    plot.ctx.lineWidth = devicePixelRatio;
    plot.ctx.setLineDash((marker.dash ?? [4, 3]).map((d) => d * devicePixelRatio));
    plot.ctx.beginPath();
    plot.ctx.moveTo(x, top);
    plot.ctx.lineTo(x, top + height);
    plot.ctx.stroke();
    plot.ctx.restore();
  }
}

// Where penLines draws its lines in a box that includes the axes.
export function plotBox(box, spec) {
  const left = box.x + (spec.yTitle ? 54 : 40);
  return { left, top: box.y + 18, w: box.x + box.w - 16 - left, height: box.h - 50 };
}

// The same chart through a pen, in a box that includes its axes; returns where a value stands in it.
export function penLines(pen, box, spec, theme, { log = false } = {}) {
  const { left, top, w, height } = plotBox(box, spec);
  const all = spec.series
    .flatMap((line) => Array.from(line.values))
    .filter((value) => Number.isFinite(value) && (!log || value > 0));
  const f = log ? Math.log10 : (value) => value;
  let least = Math.min(...all),
    most = Math.max(...all);
  if (!(least < most)) [least, most] = log ? [least / 2, most * 2] : [least - 0.5, most + 0.5];
  const { values, texts, ...ends } = axis(least, most, log);
  const [low, high] = [f(ends.low), f(ends.high)];
  const [x0, x1] = [spec.x[0], spec.x[spec.x.length - 1]];
  const px = (x) => left + (x1 > x0 ? (x - x0) / (x1 - x0) : 0.5) * w;
  const py = (y) => top + height - ((f(y) - low) / (high - low)) * height;
  if (spec.title) pen.text(spec.title, left, box.y + 12, { color: theme.ink, size: 11, weight: 600 });
  values.forEach((value, i) => {
    pen.path(`M${left} ${py(value)}h${w}`, { stroke: theme.faint });
    pen.text(texts[i], left - 5, py(value) + 3.5, { ...theme.small, align: "right" });
  });
  const every = WHOLE.find((step) => (x1 - x0) / step <= 10);
  for (let x = Math.ceil(x0 / every) * every; x <= x1; x += every)
    pen.text(String(x), px(x), top + height + 13, { ...theme.small, align: "middle" });
  pen.text(spec.xTitle ?? "", left + w / 2, top + height + 27, { ...theme.small, align: "middle" });
  if (spec.yTitle)
    pen.text(spec.yTitle, box.x + 10, top + height / 2, { ...theme.small, rotate: -90, align: "middle" });
  if (spec.band) {
    const up = spec.x.map((x, i) => `${px(x)} ${py(spec.band.high[i])}`);
    const down = spec.x.map((x, i) => `${px(x)} ${py(spec.band.low[i])}`).reverse();
    pen.path(`M${[...up, ...down].join("L")}Z`, { fill: spec.band.solid ?? theme.faint, opacity: 0.35 });
  }
  for (const line of spec.series) {
    const points = spec.x
      .map((x, i) => [px(x), py(line.values[i] ?? NaN)])
      .filter(([, y]) => Number.isFinite(y));
    if (points.length)
      pen.path(`M${points.map((p) => p.map((v) => v.toFixed(2)).join(" ")).join("L")}`, {
        stroke: line.color,
        width: line.width ?? 1,
        opacity: line.opacity ?? 1,
        dash: line.dash,
      });
    if (line.dots)
      for (const [x, y] of points) pen.rect(x - 2.5, y - 2.5, 5, 5, { fill: line.color, radius: 2.5 });
  }
  for (const marker of spec.markers ?? [])
    pen.path(`M${px(marker.x)} ${top}v${height}`, {
      stroke: marker.color ?? theme.mark,
      dash: marker.dash ?? [4, 3],
    });
  return { x: px, y: py };
}
