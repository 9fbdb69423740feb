// @ts-check
// A picture with an axis at the bottom that can be zoomed and moved: by wheel, by drag, by buttons and by keys.

import { button, colour, colourText, element, say } from "./dom.js";
import { number, short, ticks } from "./format.js";

/**
 * What a picture is drawn into: pixels of the device, without axes.
 * @typedef {{image: ImageData, width: number, height: number, from: number, to: number, ratio: number}} Ground
 */

/**
 * @typedef {object} PlotOptions
 * @property {string} label what the picture shows, for screen readers
 * @property {number} height of the picture in the page's pixels, without the axis
 * @property {[number, number]} range of the axis
 * @property {(ground: Ground) => number} draw draws; returns how many records were touched
 * @property {(at: number, y: number, ground: {from: number, to: number}) => string} describe what is at a place: on the axis, and from the top, 0 to 1
 * @property {number} [rows] how many rows the arrow keys go through
 * @property {{at: number, text: string}[]} [rowLabels] at: from the top, 0 to 1
 * @property {string} [unit] of the axis
 * @property {(from: number, to: number) => void} [moved] called when the range that is seen has changed
 * @property {(value: number) => string} [tick] of the axis
 * @property {number} [least] the least range that is seen
 */

const BOTTOM = 22;
/** Between labels of rows and the picture. */
const GAP = 5;
const FONT = "system-ui, sans-serif";

/** How much was drawn last, for tests: in the page's `data-drawn`. @param {string} label @param {number} records @param {number} pixels @param {number} ms */
function noted(label, records, pixels, ms) {
  document.body.dataset.drawn = JSON.stringify({ label, records, pixels, ms: Math.round(ms) });
}

export class Plot {
  /** @param {PlotOptions} options */
  constructor(options) {
    this.options = options;
    this.from = options.range[0];
    this.to = options.range[1];
    this.cursor = { at: (this.from + this.to) / 2, y: 0.5, seen: false };
    this.canvas = /** @type {HTMLCanvasElement} */ (element("canvas", {
      tabindex: 0, role: "application", "aria-roledescription": "picture",
      "aria-label": `${options.label}. Arrow keys move, plus and minus zoom, Home shows all, End goes to the end.`,
    }));
    this.canvas.style.height = `${options.height + BOTTOM}px`;
    this.tip = element("div", { class: "tip", hidden: true });
    this.readout = element("div", { class: "readout" }, "Point at the picture, or move in it by arrow keys, to read it.");
    this.root = element("div", {}, element("div", { class: "plot" }, this.canvas, this.tip), this.readout);
    this._listen();
    this._queued = false;
    /** The width of the longest label. */
    this._widest = 0;
    this._sizes = new ResizeObserver(() => this.redraw());
    this._sizes.observe(this.canvas);
    this._scheme = matchMedia("(prefers-color-scheme: dark)");
    this._scheme.addEventListener("change", () => this.redraw());
  }

  /** The buttons to zoom. @returns {HTMLElement[]} */
  buttons() {
    return [
      button("Zoom in", () => { this.zoom(0.5, this._centre()); this._sayRange(); }), button("Zoom out", () => { this.zoom(2, this._centre()); this._sayRange(); }),
      button("All", () => { this.show(...this.options.range); this._sayRange(); }),
    ];
  }

  /** Show a range of the axis. @param {number} from @param {number} to */
  show(from, to) {
    const [least, most] = this.options.range;
    const width = Math.min(Math.max(to - from, this.options.least ?? (most - least) * 1e-7), most - least);
    const begin = Math.min(Math.max(from, least), most - width);
    if (begin === this.from && begin + width === this.to) return;
    this.from = begin;
    this.to = begin + width;
    this.options.moved?.(this.from, this.to);
    this.redraw();
  }

  /** @param {number} times @param {number} centre */
  zoom(times, centre) {
    this.show(centre - (centre - this.from) * times, centre + (this.to - centre) * times);
  }

  redraw() {
    if (this._queued) return;
    this._queued = true;
    requestAnimationFrame(() => {
      this._queued = false;
      if (this.canvas.isConnected) this._draw();
    });
  }

  _centre() {
    return this.cursor.seen ? Math.min(Math.max(this.cursor.at, this.from), this.to) : (this.from + this.to) / 2;
  }

  _gutter() {
    if (!this.options.rowLabels?.length) return 0;
    if (!this._widest) {
      const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
      context.font = `12px ${FONT}`;
      this._widest = this.options.rowLabels.reduce((most, label) => Math.max(most, context.measureText(label.text).width), 1);
    }
    return Math.min(Math.ceil(this._widest) + GAP + 4, this.canvas.clientWidth / 4);
  }

  _draw() {
    const began = performance.now();
    const ratio = Math.min(devicePixelRatio || 1, 2);
    const width = Math.max(Math.round(this.canvas.clientWidth * ratio), 1);
    const height = Math.round((this.options.height + BOTTOM) * ratio);
    if (this.canvas.width !== width) this.canvas.width = width;
    if (this.canvas.height !== height) this.canvas.height = height;
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    const gutter = Math.round(this._gutter() * ratio);
    const inner = Math.max(width - gutter, 1);
    const tall = Math.round(this.options.height * ratio);
    context.clearRect(0, 0, width, height);
    const image = context.createImageData(inner, tall);
    const records = this.options.draw({ image, width: inner, height: tall, from: this.from, to: this.to, ratio });
    context.putImageData(image, gutter, 0);
    this._axis(context, gutter, inner, tall, ratio);
    noted(this.options.label, records, inner * tall, performance.now() - began);
  }

  /** @param {CanvasRenderingContext2D} context @param {number} gutter @param {number} inner @param {number} tall @param {number} ratio */
  _axis(context, gutter, inner, tall, ratio) {
    context.font = `${12 * ratio}px ${FONT}`;
    context.fillStyle = colourText("soft");
    context.textBaseline = "middle";
    context.textAlign = "right";
    let below = -Infinity;
    for (const label of this.options.rowLabels ?? []) {
      const y = label.at * tall;
      if (y - below < 13 * ratio) continue;
      below = y;
      context.fillText(fitted(context, label.text, gutter - (GAP + 1) * ratio), gutter - GAP * ratio, Math.min(Math.max(y, 6 * ratio), tall - 6 * ratio));
    }
    context.textBaseline = "alphabetic";
    const written = this.options.tick ?? short;
    for (const tick of ticks(this.from, this.to, inner / ratio / 110)) {
      const x = gutter + ((tick - this.from) / (this.to - this.from)) * inner;
      context.fillRect(Math.round(x), tall, Math.max(Math.round(ratio), 1), 4 * ratio);
      const text = `${written(tick)}${this.options.unit ? ` ${this.options.unit}` : ""}`;
      const half = context.measureText(text).width / 2;
      context.textAlign = "center";
      context.fillText(text, Math.min(Math.max(x, gutter + half), gutter + inner - half), tall + 17 * ratio);
    }
    if (this.cursor.seen && this.cursor.at >= this.from && this.cursor.at <= this.to) {
      const x = gutter + ((this.cursor.at - this.from) / (this.to - this.from)) * inner;
      const [red, green, blue] = colour("text");
      context.fillStyle = `rgba(${red}, ${green}, ${blue}, 0.45)`;
      context.fillRect(Math.round(x), 0, Math.max(Math.round(ratio), 1), tall);
      context.fillRect(gutter, Math.round(this.cursor.y * tall), inner, Math.max(Math.round(ratio), 1));
    }
  }

  /** @param {MouseEvent} event */
  _place(event) {
    const box = this.canvas.getBoundingClientRect();
    const gutter = this._gutter();
    const across = Math.min(Math.max((event.clientX - box.left - gutter) / Math.max(box.width - gutter, 1), 0), 1);
    return {
      at: this.from + across * (this.to - this.from),
      y: Math.min(Math.max((event.clientY - box.top) / this.options.height, 0), 0.999999),
      x: event.clientX - box.left, top: event.clientY - box.top, wide: box.width,
    };
  }

  _listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY) && document.activeElement !== canvas) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const far = (event.deltaX / canvas.clientWidth) * (this.to - this.from);
        this.show(this.from + far, this.to + far);
      } else this.zoom(2 ** (event.deltaY / 240), this._place(event).at);
    }, { passive: false });
    /** @type {{x: number, from: number, to: number} | null} */
    let dragged = null;
    canvas.addEventListener("pointerdown", (event) => {
      dragged = { x: event.clientX, from: this.from, to: this.to };
      if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (dragged && event.buttons) {
        const far = ((dragged.x - event.clientX) / Math.max(canvas.clientWidth - this._gutter(), 1)) * (dragged.to - dragged.from);
        this.show(dragged.from + far, dragged.to + far);
        return;
      }
      const place = this._place(event);
      const text = this.options.describe(place.at, place.y, this);
      this.tip.hidden = !text;
      this.tip.textContent = text;
      this.tip.style.top = `${place.top + 14}px`;
      if (place.x > place.wide / 2) {
        this.tip.style.left = "auto";
        this.tip.style.right = `${place.wide - place.x + 10}px`;
      } else {
        this.tip.style.right = "auto";
        this.tip.style.left = `${place.x + 12}px`;
      }
    });
    canvas.addEventListener("pointerup", (event) => {
      const still = dragged && Math.abs(event.clientX - dragged.x) < 3;
      dragged = null;
      if (still) {
        const place = this._place(event);
        this._look(place.at, place.y);
      }
    });
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; dragged = null; });
    canvas.addEventListener("dblclick", (event) => this.zoom(0.25, this._place(event).at));
    canvas.addEventListener("keydown", (event) => this._key(event));
  }

  /** @param {KeyboardEvent} event */
  _key(event) {
    const width = this.to - this.from;
    const row = 1 / Math.max(this.options.rows ?? 10, 1);
    const { at, y } = this.cursor.seen ? this.cursor : { at: this._centre(), y: row / 2 };
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowLeft: () => (event.shiftKey ? this.show(this.from - width / 4, this.to - width / 4) : this._look(at - width / 50, y)),
      ArrowRight: () => (event.shiftKey ? this.show(this.from + width / 4, this.to + width / 4) : this._look(at + width / 50, y)),
      ArrowUp: () => this._look(at, y - row),
      ArrowDown: () => this._look(at, y + row),
      "+": () => this.zoom(0.5, this._centre()),
      "=": () => this.zoom(0.5, this._centre()),
      "-": () => this.zoom(2, this._centre()),
      Home: () => this.show(...this.options.range),
      End: () => this._look(this.options.range[1], y),
    };
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
    // What moves the cursor says what is there.
    const moves = event.shiftKey && (event.key === "ArrowLeft" || event.key === "ArrowRight");
    if (moves || ["+", "=", "-", "Home"].includes(event.key)) this._sayRange();
  }

  /** Say which part of the axis is seen. */
  _sayRange() {
    const [least, most] = this.options.range;
    const { tick, unit } = this.options;
    const written = (/** @type {number} */ value) => `${tick ? tick(value) : number(Number(value.toPrecision(6)))}${unit ? ` ${unit}` : ""}`;
    const text = `Shown: ${this.from === least && this.to === most ? "all, " : ""}from ${written(this.from)} to ${written(this.to)}`;
    this.readout.textContent = text;
    say(text);
  }

  /** Put the cursor somewhere, and say what is there. @param {number} at @param {number} y */
  _look(at, y) {
    const [least, most] = this.options.range;
    const row = 1 / Math.max(this.options.rows ?? 10, 1);
    const place = Math.min(Math.max(at, least), most);
    this.cursor = { at: place, y: Math.min(Math.max(y, row / 2), 1 - row / 2), seen: true };
    if (place < this.from || place > this.to) {
      const width = this.to - this.from;
      this.show(place - width / 2, place + width / 2);
    }
    const text = this.options.describe(this.cursor.at, this.cursor.y, this);
    this.readout.textContent = text || "nothing there";
    say(text || "nothing there");
    this.redraw();
  }
}

/**
 * A text without its middle, where it is too wide.
 * @param {CanvasRenderingContext2D} context @param {string} text @param {number} room in the canvas's pixels @returns {string}
 */
function fitted(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let kept = Math.max(Math.floor((text.length * room) / context.measureText(text).width), 2);
  const cut = () => `${text.slice(0, Math.ceil(kept / 2))}…${text.slice(text.length - Math.floor(kept / 2))}`;
  while (kept > 2 && context.measureText(cut()).width > room) kept -= 1;
  return cut();
}

/**
 * A table of colours, from one to another by way of a third, for numbers from 0 to 1.
 * @param {[number, number, number][]} stops
 * @returns {Uint32Array} of pixels
 */
export function ramp(stops) {
  const pixels = new Uint32Array(256);
  for (let i = 0; i < 256; i += 1) {
    const place = (i / 255) * (stops.length - 1);
    const at = Math.min(Math.floor(place), stops.length - 2);
    const part = place - at;
    const [red, green, blue] = [0, 1, 2].map((c) => Math.round(stops[at][c] * (1 - part) + stops[at + 1][c] * part));
    pixels[i] = pixel(red, green, blue);
  }
  return pixels;
}

/**
 * Fill a rectangle of an image, from left and top to before right and bottom.
 * @param {Uint32Array} pixels @param {number} width of the image @param {number} left @param {number} right @param {number} top @param {number} bottom @param {number} value
 */
export function fillBox(pixels, width, left, right, top, bottom, value) {
  // A call for each line takes longer than what a narrow line has.
  if (right - left > 16) for (let y = top; y < bottom; y += 1) pixels.fill(value, y * width + left, y * width + right);
  else for (let y = top; y < bottom; y += 1) for (let at = y * width + left; at < y * width + right; at += 1) pixels[at] = value;
}

/** A pixel of an image, as a number. @param {number} red @param {number} green @param {number} blue @returns {number} */
export function pixel(red, green, blue) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
