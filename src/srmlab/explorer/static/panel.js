// A panel: the frame around one view. It owns the canvas, the tooltip, maximising and export; the view owns
// the picture. What a view is, views.js says.

import { CanvasPen, SvgPen } from "./pen.js";
import { ink } from "./color.js";
import { h, openDialog } from "./dom.js";
import { definitions } from "./glossary.js";

export class Panel {
  constructor(view, ctx) {
    this.view = view;
    this.ctx = ctx;
    const sentences = [view.reading, ctx.client && view.asking].filter(Boolean).join(" ");
    const [title, shows, reading] = [view.title, view.shows, sentences].map((one) => ctx.said(one));
    this.title = title;
    this.dirty = true;
    this.seen = false;
    this.controls = h("div", { class: "controls" });
    this.note = h("span", { class: "note" });
    this.note.addEventListener("mouseenter", () => {
      this.note.title = this.note.textContent; // it may be cut off
    });
    this.beside = h("span", { class: "beside" });
    this.canvas = h("canvas", { class: "picture", role: "img", "aria-label": title });
    this.cursor = h("div", { class: "cursor", hidden: true });
    this.spoken = h("div", { class: "spoken", "aria-live": "polite" });
    this.body = h("div", { class: "body" }, this.canvas, this.cursor, this.spoken);
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
              this.menu.hidden = true; // its button notices at the next key or click
              action();
            },
          },
          label,
        ),
      ),
    );
    this.about = h(
      "div",
      { class: "about", id: `about-${view.name}`, role: "note", hidden: true },
      h("p", {}, shows),
      h("p", {}, reading),
      definitions(h, ctx.isBoard, view.terms ?? []),
    );
    this.aboutButton = this.opener(
      "i",
      `About ${title}`,
      "What this shows, and how to read it",
      this.about,
    );
    this.menuButton = this.opener("↓", `Export ${title}`, "Export", this.menu);
    this.bigButton = h(
      "button",
      {
        type: "button",
        class: "icon",
        title: "Maximise (m)",
        "aria-label": `Maximise ${title}`,
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
        h("h2", { title: `${shows} ${reading}` }, title, h("span", { class: "version" })),
        this.note,
        this.beside,
        this.controls,
        h(
          "div",
          { class: "actions" },
          this.aboutButton,
          this.menuButton,
          this.bigButton,
          this.menu,
          this.about,
        ),
      ),
      this.body,
      this.caption,
    );
    this.element.dataset.versions = String(view.versions ?? true);
    this.drawn = { height: () => 220, ...view.mount(this, ctx) };
    for (const [label, part] of [
      ["csv", "table"],
      ["python", "python"],
    ])
      this.menu.querySelector(`[data-export=${label}]`).hidden = !this.drawn[part];
    this.watchPointer();
    this.watchKeys();
    new ResizeObserver(() => this.redraw()).observe(this.body);
    new IntersectionObserver(
      ([entry]) => {
        this.seen = entry.isIntersecting;
        if (this.seen && this.dirty) this.redraw();
      },
      { rootMargin: "200px" },
    ).observe(this.element);
  }

  // A button that opens what is hidden, until something is chosen in it, Escape is pressed, or anything else is
  // clicked.
  opener(sign, name, title, opened) {
    const button = h(
      "button",
      { type: "button", class: "icon", title, "aria-label": name, "aria-expanded": "false" },
      sign,
    );
    const close = (event) => {
      const isEscape = event.type === "keydown" && event.key === "Escape";
      const path = event.composedPath();
      const isOutside = event.type === "pointerdown" && !path.includes(opened) && !path.includes(button);
      if (!opened.hidden && !isEscape && !isOutside) return;
      if (!opened.hidden && isEscape) {
        event.stopPropagation(); // the maximised panel stays
        button.focus();
      }
      show(false);
    };
    const show = (isOpen) => {
      opened.hidden = !isOpen;
      button.setAttribute("aria-expanded", String(isOpen));
      for (const type of ["keydown", "pointerdown"])
        document[isOpen ? "addEventListener" : "removeEventListener"](type, close, true);
    };
    button.addEventListener("click", () => show(opened.hidden));
    return button;
  }

  get big() {
    return this.ctx.store.get("big") === this.view.name;
  }

  toggleBig() {
    this.ctx.store.set({ big: this.big ? "" : this.view.name });
  }

  // The view's one number, and an untrained twin's: what is not learned is in both.
  compareWithTwin() {
    const { statistic } = this.view;
    const { base, trace, store, twin, failed } = this.ctx;
    if (!statistic) return;
    const isWanted = Boolean(store.get("twin") && this.ctx.info?.twin);
    const said = (one) => statistic(one, store.state);
    const theirs = twin ? said(twin) : failed.has("twin") ? "no answer" : "…";
    const whose = trace === base ? "" : "baseline: "; // the twin is as it is, too
    this.beside.textContent = isWanted ? `${whose}${said(base)} · untrained ${theirs}` : "";
  }

  changed(keys) {
    this.drawn.update?.(keys);
    if (["twin", "trace", "threshold"].some((key) => keys.has(key))) this.compareWithTwin();
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

  // The picture's own height; more when it fills the page, or when its column, or on a large screen the one
  // beside it, leaves room to spare (up to as much again, or more on a large screen).
  heightFor(width) {
    const natural = this.drawn.height(width);
    if (this.big)
      return Math.max(
        natural,
        Math.min((window.innerHeight - this.body.getBoundingClientRect().top - 24) / this.scale, width),
      );
    const isLarge = window.innerWidth >= 2100; // there are four columns then, of unlike length
    const isPaired = isLarge && this.element.classList.contains("half");
    if (!this.view.stretches || (this.element.nextElementSibling && !isPaired)) return natural;
    const picture = this.drawn.stretched?.() ?? this.canvas;
    picture.style.height = `${natural * this.scale}px`;
    const most = isLarge ? 3.4 : 2;
    return Math.min(natural * most, Math.max(natural, (this.body.clientHeight - 18) / this.scale));
  }

  drawOnCanvas(width, height) {
    this.canvas.style.width = `${width * this.scale}px`;
    this.canvas.style.height = `${height * this.scale}px`;
    this.pen = new CanvasPen(this.canvas, width, height, (window.devicePixelRatio || 1) * this.scale);
    this.drawn.render(this.pen, width, height, ink(this.element));
    const isMap = this.pen.regions.some((region) => region.keys !== false);
    this.canvas.tabIndex = isMap ? 0 : -1;
    this.canvas.setAttribute("role", isMap ? "application" : "img");
    this.canvas.setAttribute(
      "aria-label",
      isMap ? `${this.title}: arrows move over its cells, Enter selects` : this.title,
    );
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

  // The same without a pointer: with the focus on the picture, arrows move over the cells, whose words are
  // spoken, page up and down go to the next map, and Enter clicks.
  watchKeys() {
    let at = null; // { map, row, column }
    const maps = () => (this.pen?.regions ?? []).filter((region) => region.keys !== false);
    const hit = () => ({ ...maps()[at.map], row: at.row, column: at.column });
    const show = () => {
      const { x, y, w, h: tall, rows, columns } = maps()[at.map];
      const box = [x + (at.column * w) / columns, y + (at.row * tall) / rows, w / columns, tall / rows];
      const [left, top, width, height] = box.map((value) => `${value * this.scale}px`);
      Object.assign(this.cursor.style, { width, height });
      this.cursor.style.left = `calc(${left} + ${this.canvas.offsetLeft}px)`;
      this.cursor.style.top = `calc(${top} + ${this.canvas.offsetTop}px)`;
      this.cursor.hidden = false;
      this.spoken.textContent = this.drawn.tip?.(hit()) ?? "";
      this.drawn.hover?.(hit());
    };
    const moves = {
      ArrowLeft: [0, -1, 0],
      ArrowRight: [0, 1, 0],
      ArrowUp: [-1, 0, 0],
      ArrowDown: [1, 0, 0],
      PageUp: [0, 0, -1],
      PageDown: [0, 0, 1],
    };
    this.canvas.addEventListener("keydown", (event) => {
      if (!maps().length || !(event.key in moves || event.key === "Enter")) return;
      event.preventDefault();
      event.stopPropagation(); // not the page's arrows
      at ??= { map: 0, row: 0, column: 0 };
      const [down, right, map] = moves[event.key] ?? [0, 0, 0];
      const within = (value, size) => Math.max(0, Math.min(size - 1, value));
      at.map = within(at.map + map, maps().length);
      at.row = within(at.row + down, maps()[at.map].rows);
      at.column = within(at.column + right, maps()[at.map].columns);
      if (event.key === "Enter") this.drawn.click?.(hit(), event);
      show();
    });
    this.canvas.addEventListener("blur", () => {
      this.cursor.hidden = true;
      this.drawn.hover?.(null);
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

  // The file's name: the view's, and the version of the prompt it is about.
  get name() {
    const version = this.view.versions === false ? "baseline" : (this.ctx.grid.dataset.version ?? "baseline");
    return version === "baseline" ? this.view.name : `${this.view.name}-${version}`;
  }

  saveSvg() {
    download(`${this.name}.svg`, new Blob([this.svg()], { type: "image/svg+xml" }));
  }

  saveCsv() {
    download(`${this.name}.csv`, new Blob([this.csv()], { type: "text/csv" }));
  }

  savePng() {
    const [width, height] = this.exportSize();
    const canvas = document.createElement("canvas");
    const pen = new CanvasPen(canvas, width, height, 2);
    const theme = ink(this.element);
    pen.rect(0, 0, width, height, { fill: theme.panel });
    this.drawn.render(pen, width, height, theme);
    canvas.toBlob((blob) => download(`${this.name}.png`, blob));
  }

  showPython() {
    const code = this.drawn.python();
    const text = h("textarea", {
      readonly: true,
      rows: Math.min(24, code.split("\n").length + 1),
      spellcheck: "false",
    });
    text.value = code;
    text.setSelectionRange(0, 0); // from the first letter, not the last
    const copy = () => {
      text.select();
      navigator.clipboard?.writeText(code).catch(() => document.execCommand("copy"));
    };
    const title = h("h2", {}, `${this.title} in Python`);
    const dialog = openDialog(this.element, { class: "python" }, title, text);
    dialog.querySelector("form").prepend(h("button", { type: "button", onclick: copy }, "Copy"));
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
