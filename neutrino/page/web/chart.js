// @ts-check
// Bars: of a distribution side by side, of names below each other.

import { element } from "./dom.js";
import { number, short } from "./format.js";
import { table } from "./table.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDEST = 900;
const HEIGHT = 192;
const BOTTOM = 22;
const LEFT = 52;

/** @param {string} tag @param {Record<string, string | number>} attributes @param {string} [text] */
function shape(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  if (text) made.textContent = text;
  return made;
}

/**
 * A distribution as bars side by side, with its numbers as a table below.
 * @param {string} label
 * @param {{low: any, high: any, count: number}[]} buckets
 * @param {{figures?: string, write?: (value: any) => string}} [options] figures: a name by which tests find the numbers; write: how values are written
 * @returns {HTMLElement}
 */
export function distribution(label, buckets, options = {}) {
  const write = options.write ?? number;
  const filled = buckets.flatMap((bucket, at) => (bucket.count ? [at] : []));
  const seen = filled.length ? buckets.slice(filled[0], filled[filled.length - 1] + 1) : [];
  const drawn = shape("svg", { class: "chart", role: "img", "aria-label": label });
  const most = seen.reduce((sum, bucket) => Math.max(sum, bucket.count), 1);
  const tall = HEIGHT - BOTTOM - 8;
  const first = seen[0]?.low;
  // Of values that are close together and far from zero, such as addresses, how far they are from the first.
  const far = typeof first === "number" && first > 1e4 && typeof seen[seen.length - 1].high === "number" && seen[seen.length - 1].high - first < first / 50;
  let width = 0;
  // In the page's pixels, so that texts have their size at any width.
  new ResizeObserver(() => {
    const now = Math.round(Math.min(drawn.clientWidth, WIDEST));
    if (now && now !== width) fill((width = now));
  }).observe(drawn);

  /** @param {number} across */
  function fill(across) {
    drawn.replaceChildren();
    drawn.setAttribute("viewBox", `0 0 ${across} ${HEIGHT}`);
    const wide = (across - LEFT - 4) / Math.max(seen.length, 1);
    for (const part of [0, 0.5, 1]) {
      const y = 8 + tall * (1 - part);
      drawn.append(shape("line", { class: "rule", x1: LEFT, x2: across, y1: y, y2: y }), shape("text", { x: LEFT - 5, y: y + 4, "text-anchor": "end" }, short(Math.round(most * part))));
    }
    const step = Math.ceil(seen.length / Math.max(Math.min(Math.floor((across - LEFT) / 76), 10), 2));
    let past = -Infinity;
    seen.forEach((bucket, at) => {
      const height = bucket.count ? Math.max((bucket.count / most) * tall, 1) : 0;
      const x = LEFT + at * wide;
      const mark = shape("rect", { class: "mark", x: x + Math.min(wide * 0.08, 1), y: 8 + tall - height, width: Math.max(wide - Math.min(wide * 0.16, 2), 0.5), height });
      mark.append(shape("title", {}, `${ends(bucket, write)}: ${number(bucket.count)}`));
      drawn.append(mark);
      if (at % step) return;
      const text = options.write && !(far && at) ? write(bucket.low) : axisText(bucket.low, far && at ? first : null);
      const written = /** @type {SVGTextElement} */ (shape("text", { y: HEIGHT - 6, "text-anchor": "middle" }, text));
      drawn.append(written);
      const half = written.getComputedTextLength() / 2 + 1;
      const centre = Math.min(Math.max(x + wide / 2, half), across - half);
      if (centre - half < past) written.remove();
      else written.setAttribute("x", String(centre));
      past = Math.max(past, written.isConnected ? centre + half + 4 : past);
    });
  }

  const numbers = table(label, [
    .../** @type {[string, string][]} */ ([["from", "low"], ["to", "high"]]).map(([title, name]) => /** @type {import("./table.js").TableColumn} */ ({
      title, kind: "number", value: (row) => row[name], ...(options.write ? { cell: (/** @type {any} */ row) => write(row[name]) } : {}),
    })),
    { title: "count", kind: "number", value: (row) => row.count },
  ], seen.filter((bucket) => bucket.count), { most: 64, figures: options.figures });
  const widths = ofWidths(seen);
  return element("div", {}, drawn, widths && element("p", { class: "soft" }, widths), element("details", {}, element("summary", {}, "as numbers"), numbers));
}

/**
 * What is to be said of the widths of buckets; "" if they are equal. `page/distributions.py` says the same of pictures.
 * @param {{low: any, high: any}[]} buckets ascending; those of a histogram's ends may be open, or cut at the greatest value
 * @returns {string}
 */
export function ofWidths(buckets) {
  const seen = buckets.filter((bucket) => Number.isFinite(bucket.low) && Number.isFinite(bucket.high));
  const widths = seen.map(({ low, high }) => high - low + (Number.isInteger(low) && Number.isInteger(high) ? 1 : 0));
  const count = widths.length;
  const isCut = count > 1 && widths[count - 1] < widths[count - 2] && seen[count - 1].low >= 0;
  const [from, to] = count > 3 ? [1, count - 1] : [0, Math.min(count, 2) - (count === 2 && isCut ? 1 : 0)];
  const inner = widths.slice(from, to);
  if (!inner.length) return "";
  const most = Math.max(...inner);
  if (most < 2 * Math.min(...inner)) {
    const wide = [from === 1 && widths[0] >= 2 * most && "first", to < count && widths[count - 1] >= 2 * most && "last"].filter(Boolean);
    if (!wide.length) return "";
    return wide.length > 1 ? "The first and the last bucket are wider than the others." : `The ${wide[0]} bucket is wider than the others.`;
  }
  for (let at = from + 1; at < to; at += 1) {
    // Towards 0 they may become narrower.
    const falls = (seen[at - 1].low >= 0 && widths[at] < widths[at - 1] * 0.999) || (seen[at].high <= 0 && widths[at - 1] < widths[at] * 0.999);
    if (falls) return "Buckets are not equally wide: equal bars may be of different numbers of values each.";
  }
  return "Buckets are wider the larger the values are: equal bars are fewer values each the further they are from 0.";
}

/** @param {any} value @param {number | null} from */
function axisText(value, from) {
  if (typeof value !== "number") return String(value);
  return from === null ? (value > 1e6 ? number(value) : short(value)) : `+${short(value - from)}`;
}

/** @param {{low: any, high: any}} bucket @param {(value: any) => string} write */
function ends(bucket, write) {
  return bucket.low === bucket.high ? write(bucket.low) : `${write(bucket.low)} to ${write(bucket.high)}`;
}

/** A bar of a table: a part of the whole. @param {number} part 0 to 1 @returns {HTMLElement} */
export function bar(part) {
  const filled = element("i");
  filled.style.width = `${Math.min(Math.max(part, 0), 1) * 100}%`;
  return element("div", { class: "bar", "aria-hidden": "true" }, filled);
}
