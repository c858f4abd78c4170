/** A canvas that is as sharp as the screen, follows its box, and has a reading for pointer and keys. */

import { make, write } from "./dom.js";

export class Plot {
  /**
   * draw(context, width, height): in CSS pixels.  find(x, y): what is there, as an index, or -1.
   * tell(index): its words, and {x, y} of its middle, as {words, x, y}; null: there is none any more.
   * move(index, key): the index that a key leads to; -1 for a first one.
   */
  constructor({ name, label, draw, find, tell, move }) {
    this._draw = draw;
    this._find = find;
    this._tell = tell;
    this._move = move;
    this._at = -1;
    this.canvas = make("canvas", {
      tabindex: 0, role: "img", "aria-label": label, "aria-describedby": `live-${name}-reading`,
    });
    this._tip = make("output", { class: "lv-tip", id: `live-${name}-reading`, "aria-live": "polite", hidden: true });
    this.node = make("div", { class: `lv-plot lv-${name}-plot` }, this.canvas, this._tip);
    this._observer = new ResizeObserver(() => this.redraw());
    this._observer.observe(this.node);
    this._listen();
  }

  get at() {
    return this._at;
  }

  label(words) {
    if (this.canvas.getAttribute("aria-label") !== words) this.canvas.setAttribute("aria-label", words);
  }

  redraw() {
    const { width, height } = this.node.getBoundingClientRect();
    if (!width || !height) return;
    const ratio = globalThis.devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      this.canvas.width = wide;
      this.canvas.height = high;
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(wide / width, 0, 0, high / height, 0, 0);
    context.clearRect(0, 0, width, height);
    this._draw(context, width, height);
    this._show();
  }

  stop() {
    this._observer.disconnect();
  }

  _listen() {
    const { canvas } = this;
    const point = (event) => this._go(this._find(event.offsetX, event.offsetY));
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("pointerleave", () => this._go(-1));
    canvas.addEventListener("focus", () => {
      if (canvas.matches(":focus-visible") && this._at < 0) this._go(this._move(-1, ""));
    });
    canvas.addEventListener("blur", () => this._go(-1));
    canvas.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this._go(-1);
      else if (/^(Arrow(Left|Right|Up|Down)|Home|End|Page(Up|Down))$/.test(event.key)) {
        event.preventDefault();
        this._go(this._move(this._at, event.key));
      }
    });
  }

  _go(index) {
    if (index === this._at) return;
    this._at = index;
    this.redraw();
  }

  _show() {
    const told = this._at < 0 ? null : this._tell(this._at);
    this._tip.hidden = told === null;
    if (told === null) return;
    write(this._tip, told.words);
    const box = this.node.getBoundingClientRect();
    const half = this._tip.offsetWidth / 2;
    const x = Math.min(Math.max(told.x, half), Math.max(half, box.width - half));
    const above = told.y > this._tip.offsetHeight + 10;
    this._tip.style.setProperty("--x", `${x}px`);
    this._tip.style.setProperty("--y", `${above ? told.y - 8 - this._tip.offsetHeight : told.y + 12}px`);
  }
}

/** The colour that an element is painted with: custom properties and mixes come out resolved. */
export const colourOf = (element) => getComputedStyle(element).backgroundColor;

/** A swatch of a legend: a key to a colour, and where the drawing takes it from. */
export function swatch(kind) {
  return make("span", { class: "lv-swatch", "data-kind": kind, "aria-hidden": "true" });
}

/** The round number at or above a value, for the end of an axis. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}
