// @ts-check
// The blocks of data in the page: base64 of gzip, read when a view needs them.

/** @typedef {{name: string, count: number, bytes: number, differences?: boolean, float?: boolean}} Column */

/** @type {Map<number, Promise<Uint8Array>>} */
const inflated = new Map();
/** @type {Map<number, Promise<Record<string, Float64Array | Float32Array | Uint32Array>>>} */
const columnsOf = new Map();

/** The bytes of a block. @param {number} number @returns {Promise<Uint8Array>} */
function bytesOf(number) {
  let found = inflated.get(number);
  if (!found) {
    found = inflate(document.getElementById(`block-${number}`)?.textContent ?? "");
    inflated.set(number, found);
  }
  return found;
}

/** @param {string} text @returns {Promise<Uint8Array>} */
async function inflate(text) {
  const packed = atob(text);
  const bytes = new Uint8Array(packed.length);
  for (let at = 0; at < packed.length; at += 1) bytes[at] = packed.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** A block's JSON document. @param {number} number @returns {Promise<any>} */
export async function jsonOf(number) {
  return JSON.parse(new TextDecoder().decode(await bytesOf(number)));
}

/**
 * A block's columns by name: whole numbers of up to four bytes as Uint32Array, larger ones and differences as
 * Float64Array, fractions as Float32Array.
 * @param {number} number
 * @returns {Promise<Record<string, any>>}
 */
export function columns(number) {
  let found = columnsOf.get(number);
  if (!found) {
    found = bytesOf(number).then((bytes) => {
      inflated.delete(number);
      return parted(bytes);
    });
    columnsOf.set(number, found);
  }
  return found;
}

/** @param {Uint8Array} bytes */
function parted(bytes) {
  const end = bytes.indexOf(10);
  /** @type {Column[]} */
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)));
  /** @type {Record<string, any>} */
  const found = {};
  let at = end + 1;
  for (const column of header) {
    found[column.name] = numbers(bytes, at, column);
    at += column.count * column.bytes;
  }
  return found;
}

/** @param {Uint8Array} bytes @param {number} at @param {Column} column */
function numbers(bytes, at, column) {
  const { count, bytes: width } = column;
  if (width > 4) {
    const wide = new Float64Array(count);
    for (let weight = width - 1; weight >= 0; weight -= 1) {
      for (let i = 0; i < count; i += 1) wide[i] = wide[i] * 256 + bytes[at + weight * count + i];
    }
    return column.differences ? added(wide) : wide;
  }
  const whole = new Uint32Array(count);
  for (let weight = 0; weight < width; weight += 1) {
    const from = at + weight * count;
    const shift = 8 * weight;
    for (let i = 0; i < count; i += 1) whole[i] |= bytes[from + i] << shift;
  }
  if (column.float) return new Float32Array(whole.buffer);
  return column.differences ? added(whole) : whole;
}

/** Sums of differences, which are 0, -1, 1, -2 … as 0, 1, 2, 3 …. @param {Uint32Array | Float64Array} differences */
function added(differences) {
  const sums = new Float64Array(differences.length);
  let sum = 0;
  for (let i = 0; i < sums.length; i += 1) {
    const value = differences[i];
    sum += value % 2 ? -(value + 1) / 2 : value / 2;
    sums[i] = sum;
  }
  return sums;
}
