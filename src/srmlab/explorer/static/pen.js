// A pen draws the same picture on a canvas (for the screen and PNG) or as SVG text. Views draw with a pen and
// nothing else, so every panel can be exported. A canvas pen also remembers regions, grids of cells that
// answer to the mouse.

const SANS = 'ui-sans-serif, "Inter", "Segoe UI", system-ui, "Helvetica Neue", Arial, sans-serif';
const MONO = 'ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace';

function font({ size = 11, weight = 400, mono = false } = {}) {
  return `${weight} ${size}px ${mono ? MONO : SANS}`;
}

const ruler = new OffscreenCanvas(1, 1).getContext("2d");

export function textWidth(string, style) {
  ruler.font = font(style);
  return ruler.measureText(string).width;
}

// The text's words in lines of at most this width.
export function wrapped(string, width, style) {
  const lines = [];
  for (const word of string.split(" ").filter(Boolean)) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && textWidth(longer, style) <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

export class CanvasPen {
  constructor(canvas, width, height, ratio = window.devicePixelRatio || 1) {
    canvas.width = Math.max(1, Math.round(width * ratio));
    canvas.height = Math.max(1, Math.round(height * ratio));
    this.context = canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    Object.assign(this, { width, height, regions: [] });
  }

  rect(x, y, w, h, { fill, stroke, width = 1, radius = 0, opacity = 1 } = {}) {
    const c = this.context;
    c.globalAlpha = opacity;
    c.beginPath();
    if (radius) c.roundRect(x, y, w, h, radius);
    else c.rect(x, y, w, h);
    if (fill) {
      c.fillStyle = fill;
      c.fill();
    }
    if (stroke) {
      c.strokeStyle = stroke;
      c.lineWidth = width;
      c.stroke();
    }
    c.globalAlpha = 1;
  }

  path(d, { fill, stroke, width = 1, opacity = 1, dash = [] } = {}) {
    const c = this.context;
    const path = new Path2D(d);
    c.globalAlpha = opacity;
    c.setLineDash(dash);
    if (fill) {
      c.fillStyle = fill;
      c.fill(path);
    }
    if (stroke) {
      c.strokeStyle = stroke;
      c.lineWidth = width;
      c.lineJoin = "round";
      c.stroke(path);
    }
    c.setLineDash([]);
    c.globalAlpha = 1;
  }

  text(string, x, y, { color, align = "left", rotate = 0, max, ...style } = {}) {
    const c = this.context;
    c.font = font(style);
    c.fillStyle = color;
    c.textAlign = align === "middle" ? "center" : align;
    c.textBaseline = "alphabetic";
    c.save();
    c.translate(x, y);
    if (rotate) c.rotate((rotate * Math.PI) / 180);
    c.fillText(string, 0, 0, max);
    c.restore();
  }

  measure(string, style) {
    this.context.font = font(style);
    return this.context.measureText(string).width;
  }

  // A grid of colours: rgba bytes, row by row, stretched over the box without smoothing.
  cells(x, y, w, h, rows, columns, rgba) {
    const small = new OffscreenCanvas(columns, rows);
    small.getContext("2d").putImageData(new ImageData(rgba, columns, rows), 0, 0);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(small, x, y, w, h);
  }

  region(region) {
    this.regions.push(region);
  }

  // The region under a point, with its row and column.
  find(x, y) {
    for (let i = this.regions.length - 1; i >= 0; i--) {
      const r = this.regions[i];
      if (x < r.x || y < r.y || x >= r.x + r.w || y >= r.y + r.h) continue;
      const row = Math.min(r.rows - 1, Math.floor(((y - r.y) / r.h) * r.rows));
      const column = Math.min(r.columns - 1, Math.floor(((x - r.x) / r.w) * r.columns));
      return { ...r, row, column };
    }
    return null;
  }
}

export class SvgPen {
  constructor(width, height) {
    Object.assign(this, { width, height, parts: [] });
    this.regions = [];
  }

  rect(x, y, w, h, { fill = "none", stroke, width = 1, radius = 0, opacity = 1 } = {}) {
    this.parts.push(
      `<rect x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}" ` +
        `fill="${fill}"${line(stroke, width)}${radius ? ` rx="${radius}"` : ""}${faded(opacity)}/>`,
    );
  }

  path(d, { fill = "none", stroke, width = 1, opacity = 1, dash = [], title } = {}) {
    const dashes = dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : "";
    const label = title ? `<title>${escape(title)}</title>` : "";
    this.parts.push(
      `<path d="${d}" fill="${fill}"${line(stroke, width)} ` +
        `stroke-linejoin="round"${dashes}${faded(opacity)}>${label}</path>`,
    );
  }

  text(string, x, y, { color, align = "left", rotate = 0, size = 11, weight = 400, mono = false } = {}) {
    const anchor = { left: "start", middle: "middle", center: "middle", right: "end" }[align];
    const turn = rotate ? ` transform="rotate(${rotate} ${n(x)} ${n(y)})"` : "";
    this.parts.push(
      `<text x="${n(x)}" y="${n(y)}" fill="${color}" text-anchor="${anchor}" ` +
        `font-size="${size}" font-weight="${weight}" ` +
        `font-family="${escape(mono ? MONO : SANS)}"${turn}>${escape(string)}</text>`,
    );
  }

  measure(string, style) {
    return textWidth(string, style);
  }

  cells(x, y, w, h, rows, columns, rgba) {
    const cw = w / columns,
      ch = h / rows;
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < columns;) {
        const at = (r * columns + c) * 4;
        let run = 1; // equal neighbours are one rectangle
        while (c + run < columns && same(rgba, at, at + run * 4)) run++;
        this.parts.push(
          `<rect x="${n(x + c * cw)}" y="${n(y + r * ch)}" width="${n(cw * run)}" ` +
            `height="${n(ch)}" fill="rgb(${rgba[at]},${rgba[at + 1]},${rgba[at + 2]})"/>`,
        );
        c += run;
      }
    }
  }

  region(region) {
    this.regions.push(region);
  }

  toString() {
    return (
      `<svg xmlns="http://www.w3.org/2000/svg" width="${n(this.width)}" ` +
      `height="${n(this.height)}" viewBox="0 0 ${n(this.width)} ${n(this.height)}" ` +
      `shape-rendering="geometricPrecision">${this.parts.join("")}</svg>`
    );
  }
}
SvgPen.prototype.find = CanvasPen.prototype.find;

function n(value) {
  return String(Math.round(value * 100) / 100);
}

function line(stroke, width) {
  return stroke ? ` stroke="${stroke}" stroke-width="${n(width)}"` : "";
}

function faded(opacity) {
  return opacity < 1 ? ` opacity="${n(opacity)}"` : "";
}

function same(bytes, a, b) {
  return bytes[a] === bytes[b] && bytes[a + 1] === bytes[b + 1] && bytes[a + 2] === bytes[b + 2];
}

function escape(text) {
  return String(text)
    .replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c])
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "\ufffd");
}
