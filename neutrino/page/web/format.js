// @ts-check
// Numbers and names as the page shows them.

const whole = new Intl.NumberFormat("en");

/** A number: whole ones in full, others with six digits. @param {any} value numbers; those beyond 2^53, and `nan`, as text @returns {string} */
export function number(value) {
  if (typeof value === "string" && /^-?\d{1,400}$/.test(value)) return whole.format(BigInt(value));
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return Math.abs(value) < 2 ** 53 ? whole.format(value) : String(value);
  const text = String(Number(value.toPrecision(6)));
  return text.includes("e") ? text : Number(text).toLocaleString("en", { maximumSignificantDigits: 6 });
}

/**
 * How the numbers of a column are written: its fractions with as many decimals each.
 * @param {any[]} values @returns {(value: any) => string}
 */
export function alike(values) {
  const fractions = values.filter((value) => typeof value === "number" && !Number.isInteger(value) && Number.isFinite(value));
  const texts = fractions.map((value) => String(Number(value.toPrecision(6))));
  const decimals = Math.min(texts.reduce((most, text) => Math.max(most, text.split(".")[1]?.length ?? 0), 0), 3);
  // Small ones would lose their digits.
  if (texts.some((text) => text.includes("e")) || fractions.some((value) => Math.abs(value) < 10 ** (1 - decimals))) return number;
  return (value) => (typeof value === "number" && !Number.isInteger(value) && Number.isFinite(value) ? value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }) : number(value));
}

/** An address in hexadecimal. @param {any} value whole numbers; those beyond 2^53 as text @returns {string} */
export function address(value) {
  if (typeof value === "number" ? !Number.isSafeInteger(value) : !/^-?\d{1,400}$/.test(String(value))) return number(value);
  const exact = BigInt(value);
  return exact < 0n ? `-0x${(-exact).toString(16)}` : `0x${exact.toString(16)}`;
}

/** A number with a noun. @param {number} count @param {string} one @param {string} [many] @returns {string} */
export function counted(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

/** A share, rounded down: 100 % only if nothing is missing. @param {number} part @param {number} all @returns {string} */
export function share(part, all) {
  if (!all) return "none";
  if (part === all) return "100\u00a0%";
  const percent = Math.floor((part / all) * 1000) / 10;
  return percent < 0.1 ? (part ? "under 0.1\u00a0%" : "0\u00a0%") : `${percent}\u00a0%`;
}

/** A number that is short, for axes. @param {number} value @returns {string} */
export function short(value) {
  const size = Math.abs(value);
  for (const [limit, letter] of /** @type {[number, string][]} */ ([[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])) {
    if (size >= limit) return `${trimmed(value / (letter === "k" ? 1e3 : limit))}${letter}`;
  }
  return trimmed(value);
}

/** @param {number} value */
function trimmed(value) {
  return String(Number(value.toPrecision(4)));
}

/** A time with its unit. @param {number} ns @param {number} [span] the time whose unit it has @returns {string} */
export function duration(ns, span = ns) {
  const size = Math.abs(span);
  const [scale, unit] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return `${trimmed(ns / scale)} ${unit}`;
}

/** Bytes with their unit. @param {number} value @returns {string} */
export function bytes(value) {
  let unit = 0;
  let size = value;
  while (size >= 1024 && unit < 4) {
    size /= 1024;
    unit += 1;
  }
  return `${trimmed(size)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/gu;

/**
 * A text of a trace as it is shown: characters that are not seen, or turn the direction of others, by their numbers.
 * @param {any} text
 * @param {number} [most] characters; the middle of longer texts is left out
 * @returns {string}
 */
export function shown(text, most = 400) {
  const all = String(text ?? "");
  const end = Math.min(Math.floor(most / 3), 50);
  const cut = all.length > most ? `${all.slice(0, most - end - 3)} … ${all.slice(-end)}` : all;
  return cut.replace(HIDDEN, (character) => `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`);
}

/** The unit of a schedule's times. @param {{ns: boolean}} spans @param {string} clock @returns {string} */
export function unitOf(spans, clock) {
  if (clock === "steps") return "steps";
  return spans.ns ? "ns" : "cycles";
}

/** Places of ticks: round numbers, about as many as wanted. @param {number} from @param {number} to @param {number} wanted @returns {number[]} */
export function ticks(from, to, wanted) {
  const rough = (to - from) / Math.max(wanted, 1);
  if (!(rough > 0)) return [from];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough) ?? rough;
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}
