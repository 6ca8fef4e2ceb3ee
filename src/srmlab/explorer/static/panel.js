// A panel: the frame around one view. It owns the canvas, the tooltip, maximising and export; the view owns
// the picture. What a view is, views.js says.

import { CanvasPen, SvgPen } from "./pen.js";
import { ink } from "./color.js";
import { h } from "./dom.js";

export class Panel {
  constructor(view, ctx) {
    this.view = view;
    this.ctx = ctx;
    this.dirty = true;
    this.seen = false;
    this.controls = h("div", { class: "controls" });
    this.note = h("span", { class: "note" });
    this.canvas = h("canvas", { class: "picture", role: "img", "aria-label": view.title });
    this.body = h("div", { class: "body" }, this.canvas);
    this.caption = h("p", { class: "caption", hidden: true });
    this.menu = h(
      "div",
      { class: "menu", hidden: true },
      [
        ["PNG", () => this.savePng()],
        ["SVG", () => this.saveSvg()],
        ["CSV", () => this.saveCsv()],
        ["Python", () => this.showPython()],
      ].map(([label, action]) =>
        h(
          "button",
          {
            type: "button",
            "data-export": label.toLowerCase(),
            onclick: () => {
              this.menu.hidden = true;
              action();
            },
          },
          label,
        ),
      ),
    );
    this.bigButton = h(
      "button",
      {
        type: "button",
        class: "icon",
        title: "Maximise (m)",
        "aria-label": `Maximise ${view.title}`,
        onclick: () => this.toggleBig(),
      },
      "⤢",
    );
    this.element = h(
      "section",
      { class: view.place === "wide" ? "panel full" : "panel", id: `panel-${view.name}`, tabindex: "-1" },
      h(
        "header",
        {},
        h("h2", { title: `${view.shows} ${view.reading}` }, view.title),
        this.note,
        this.controls,
        h(
          "div",
          { class: "actions" },
          h(
            "button",
            {
              type: "button",
              class: "icon",
              title: "Export",
              "aria-label": `Export ${view.title}`,
              onclick: () => this.toggleMenu(),
            },
            "↓",
          ),
          this.bigButton,
          this.menu,
        ),
      ),
      this.body,
      this.caption,
    );
    this.drawn = { height: () => 220, ...view.mount(this, ctx) };
    for (const [label, part] of [
      ["csv", "table"],
      ["python", "python"],
    ])
      this.menu.querySelector(`[data-export=${label}]`).hidden = !this.drawn[part];
    this.watchPointer();
    new ResizeObserver(() => this.redraw()).observe(this.body);
    new IntersectionObserver(
      ([entry]) => {
        this.seen = entry.isIntersecting;
        if (this.seen && this.dirty) this.redraw();
      },
      { rootMargin: "200px" },
    ).observe(this.element);
  }

  // Open until something is chosen, Escape is pressed, or anything else is clicked.
  toggleMenu() {
    this.menu.hidden = !this.menu.hidden;
    if (this.menu.hidden) return;
    const actions = this.menu.parentElement;
    const close = (event) => {
      const isEscape = event.type === "keydown" && event.key === "Escape";
      const isOutside = event.type === "pointerdown" && !event.composedPath().includes(actions);
      if (!this.menu.hidden && !isEscape && !isOutside) return;
      if (!this.menu.hidden && isEscape) event.stopPropagation(); // the maximised panel stays
      this.menu.hidden = true;
      for (const type of ["keydown", "pointerdown"]) document.removeEventListener(type, close, true);
    };
    for (const type of ["keydown", "pointerdown"]) document.addEventListener(type, close, true);
  }

  get big() {
    return this.ctx.store.get("big") === this.view.name;
  }

  toggleBig() {
    this.ctx.store.set({ big: this.big ? "" : this.view.name });
  }

  changed(keys) {
    this.drawn.update?.(keys);
    if (
      keys.has("trace") ||
      keys.has("theme") ||
      keys.has("big") ||
      this.view.uses.some((key) => keys.has(key))
    ) {
      this.redraw();
    }
  }

  redraw() {
    this.dirty = true;
    if (this.seen || this.view.eager) this.draw();
    else this.reserve();
  }

  // The picture's width, or 0 where there is nothing to draw or no room.
  widthNow() {
    if (!this.ctx.trace) return 0;
    // on a very large screen a picture is drawn as if on a smaller one, and enlarged
    this.scale = window.innerWidth >= 3000 ? 1.5 : 1;
    const width = Math.floor((this.body.clientWidth - 20) / this.scale);
    return width < 40 ? 0 : width;
  }

  // Room for a picture that is not drawn yet, so that nothing moves on the page when it is.
  reserve() {
    const width = this.widthNow();
    if (!width || this.size) return;
    const height = this.drawn.height(width) * this.scale;
    if (this.drawn.paint) this.body.style.minHeight = `${height + 16}px`;
    else this.canvas.style.height = `${height}px`;
  }

  draw() {
    const width = this.widthNow();
    if (!width) return;
    this.dirty = false;
    this.body.style.minHeight = "";
    const height = this.heightFor(width);
    const began = performance.now();
    this.size = [width, height];
    if (this.drawn.paint) this.drawn.paint(width, height);
    else this.drawOnCanvas(width, height);
    this.took = performance.now() - began;
    this.element.dataset.drawn = String(Number(this.element.dataset.drawn ?? 0) + 1);
  }

  // The picture's own height; more when it fills the page, or when its column has room to spare (up to half
  // as much again).
  heightFor(width) {
    const natural = this.drawn.height(width);
    if (this.big)
      return Math.max(
        natural,
        Math.min((window.innerHeight - this.body.getBoundingClientRect().top - 24) / this.scale, width),
      );
    if (!this.view.stretches || this.element.nextElementSibling) return natural;
    const picture = this.drawn.stretched?.() ?? this.canvas;
    picture.style.height = `${natural * this.scale}px`;
    return Math.min(natural * 1.6, Math.max(natural, (this.body.clientHeight - 18) / this.scale));
  }

  drawOnCanvas(width, height) {
    this.canvas.style.width = `${width * this.scale}px`;
    this.canvas.style.height = `${height * this.scale}px`;
    this.pen = new CanvasPen(this.canvas, width, height, (window.devicePixelRatio || 1) * this.scale);
    this.drawn.render(this.pen, width, height, ink(this.element));
  }

  watchPointer() {
    const hit = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return (
        this.pen?.find((event.clientX - box.left) / this.scale, (event.clientY - box.top) / this.scale) ??
        null
      );
    };
    this.canvas.addEventListener("mousemove", (event) => {
      const found = hit(event);
      this.canvas.style.cursor = found && this.drawn.click ? "pointer" : "default";
      this.ctx.tooltip.show(found ? this.drawn.tip?.(found) : null, event);
      this.drawn.hover?.(found);
      this.drawn.drag?.(found, event);
    });
    this.canvas.addEventListener("mouseleave", () => {
      this.ctx.tooltip.show(null);
      this.drawn.hover?.(null);
    });
    this.canvas.addEventListener("mousedown", (event) => {
      const found = hit(event);
      if (found) this.drawn.press?.(found, event);
    });
    this.canvas.addEventListener("click", (event) => {
      const found = hit(event);
      if (found) this.drawn.click?.(found, event);
    });
  }

  // --- export ----------

  // As large as on the screen, and at least as high as the picture is.
  exportSize() {
    const [width, height] = this.size ?? [800, 0];
    return [width, Math.max(height, this.drawn.height(width))];
  }

  svg() {
    const [width, height] = this.exportSize();
    const theme = ink(this.element);
    const pen = new SvgPen(width, height);
    pen.rect(0, 0, width, height, { fill: theme.panel });
    this.drawn.render(pen, width, height, theme);
    return pen.toString();
  }

  csv() {
    const { columns, rows } = this.drawn.table();
    const cell = (value) =>
      typeof value === "string" && /[",\n\r]/.test(value)
        ? `"${value.replaceAll('"', '""')}"`
        : String(value);
    return [columns, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
  }

  saveSvg() {
    download(`${this.view.name}.svg`, new Blob([this.svg()], { type: "image/svg+xml" }));
  }

  saveCsv() {
    download(`${this.view.name}.csv`, new Blob([this.csv()], { type: "text/csv" }));
  }

  savePng() {
    const [width, height] = this.exportSize();
    const canvas = document.createElement("canvas");
    const pen = new CanvasPen(canvas, width, height, 2);
    const theme = ink(this.element);
    pen.rect(0, 0, width, height, { fill: theme.panel });
    this.drawn.render(pen, width, height, theme);
    canvas.toBlob((blob) => download(`${this.view.name}.png`, blob));
  }

  showPython() {
    const code = this.drawn.python();
    const text = h("textarea", {
      readonly: true,
      rows: Math.min(24, code.split("\n").length + 1),
      spellcheck: "false",
    });
    text.value = code;
    const dialog = h(
      "dialog",
      { class: "python" },
      h("h2", {}, `${this.view.title} in Python`),
      text,
      h(
        "form",
        { method: "dialog" },
        h(
          "button",
          {
            type: "button",
            onclick: () => {
              text.select();
              navigator.clipboard?.writeText(code).catch(() => document.execCommand("copy"));
            },
          },
          "Copy",
        ),
        h("button", {}, "Close"),
      ),
    );
    dialog.addEventListener("close", () => dialog.remove());
    this.element.append(dialog);
    dialog.showModal();
  }
}

function download(name, blob) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// The line of text beside the pointer.
export class Tooltip {
  constructor(host) {
    this.element = h("div", { class: "tooltip", role: "status", hidden: true });
    host.append(this.element);
  }

  show(content, event) {
    this.element.hidden = !content;
    if (!content) return;
    this.element.textContent = content;
    const { width, height } = this.element.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, window.innerWidth - width - 8);
    const y =
      event.clientY + 16 + height > window.innerHeight ? event.clientY - height - 8 : event.clientY + 16;
    this.element.style.transform = `translate(${Math.max(4, x)}px, ${y}px)`;
  }
}
