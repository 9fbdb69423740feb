// @ts-check
// The blocks of a launch as they are drawn: by multiprocessor, and there in as many rows as blocks were there at once.

import { columns } from "./data.js";

/**
 * Spans in rows, which do not overlap in a row. rowFrom: the first span of each row, and the end; begin, end: of each,
 * from the launch's first begin on; name: block or warp. groups: of rows, one for each multiprocessor.
 * @typedef {{rowFrom: Uint32Array, begin: Float64Array, end: Float64Array, name: Float64Array, groups: {id: number, from: number, to: number, first: number}[], median: number, last: number, count: number, most: number}} Rows
 */

/**
 * Lay spans out in rows.
 * @param {ArrayLike<number>} begin sorted within each group
 * @param {ArrayLike<number>} took
 * @param {ArrayLike<number>} name
 * @param {{id: number, from: number, to: number}[]} groups of spans
 * @returns {Rows}
 */
export function rowsOf(begin, took, name, groups) {
  const count = begin.length;
  const rowOf = new Uint32Array(count);
  /** @type {Rows["groups"]} */
  const made = [];
  let rows = 0;
  let last = 0;
  let most = 0;
  for (const group of groups) {
    // A span goes into the first row that is free, as a block takes a free place.
    const free = new Heap();
    const taken = new Heap();
    let count_ = 0;
    for (let at = group.from; at < group.to; at += 1) {
      const from = begin[at];
      while (taken.size && taken.least <= from) {
        const row = taken.take();
        free.add(row, row);
      }
      const row = free.size ? free.take() : count_++;
      const end = from + took[at];
      taken.add(end, row);
      if (end > last) last = end;
      rowOf[at] = rows + row;
    }
    made.push({ id: group.id, from: rows, to: rows + count_, first: group.to > group.from ? begin[group.from] : 0 });
    most = Math.max(most, count_);
    rows += count_;
  }
  const rowFrom = new Uint32Array(rows + 1);
  for (let at = 0; at < count; at += 1) rowFrom[rowOf[at] + 1] += 1;
  for (let row = 0; row < rows; row += 1) rowFrom[row + 1] += rowFrom[row];
  const next = rowFrom.slice();
  const sorted = { begin: new Float64Array(count), end: new Float64Array(count), name: new Float64Array(count) };
  for (let at = 0; at < count; at += 1) {
    const place = next[rowOf[at]];
    next[rowOf[at]] += 1;
    sorted.begin[place] = begin[at];
    sorted.end[place] = begin[at] + took[at];
    sorted.name[place] = name[at];
  }
  return { rowFrom, ...sorted, groups: made, median: middle(took), last, count, most };
}

/** Rows by a number, the least of which comes first. */
class Heap {
  constructor() {
    /** @type {number[]} */
    this.keys = [];
    /** @type {number[]} */
    this.rows = [];
  }

  get size() {
    return this.keys.length;
  }

  get least() {
    return this.keys[0];
  }

  /** @param {number} key @param {number} row */
  add(key, row) {
    const { keys, rows } = this;
    let at = keys.length;
    while (at > 0) {
      const above = (at - 1) >> 1;
      if (keys[above] <= key) break;
      keys[at] = keys[above];
      rows[at] = rows[above];
      at = above;
    }
    keys[at] = key;
    rows[at] = row;
  }

  /** Take the row with the least number. @returns {number} */
  take() {
    const { keys, rows } = this;
    const found = rows[0];
    const key = /** @type {number} */ (keys.pop());
    const row = /** @type {number} */ (rows.pop());
    const { length } = keys;
    if (!length) return found;
    let at = 0;
    for (;;) {
      let below = 2 * at + 1;
      if (below >= length) break;
      if (below + 1 < length && keys[below + 1] < keys[below]) below += 1;
      if (keys[below] >= key) break;
      keys[at] = keys[below];
      rows[at] = rows[below];
      at = below;
    }
    keys[at] = key;
    rows[at] = row;
    return found;
  }
}

/** The place of the longest launch, with which views begin; of equally long ones the first. @param {{time: number}[]} drawn @returns {number} */
export function longest(drawn) {
  return drawn.reduce((best, launch, at) => (launch.time > drawn[best].time ? at : best), 0);
}

/** The median, the lower one of two. @param {ArrayLike<number>} values @returns {number} */
function middle(values) {
  const sorted = Float64Array.from(values).sort();
  return sorted.length ? sorted[(sorted.length - 1) >> 1] : 0;
}

/** The blocks of the launch that was drawn last: of a million they take a quarter of a second. @type {{block: number, rows: Promise<Rows>} | null} */
let latest = null;

/** The blocks of a launch that has all of them. @param {any} drawn @returns {Promise<Rows>} */
export function blocksOf(drawn) {
  if (!latest || latest.block !== drawn.block) latest = { block: drawn.block, rows: laidOut(drawn) };
  return latest.rows;
}

/** @param {any} drawn @returns {Promise<Rows>} */
async function laidOut(drawn) {
  const { sm, first, count, gap, took, block } = await columns(drawn.block);
  const begin = new Float64Array(gap.length);
  const groups = [];
  let at = 0;
  for (let group = 0; group < sm.length; group += 1) {
    let time = first[group];
    const from = at;
    for (let i = 0; i < count[group]; i += 1, at += 1) {
      time += gap[at];
      begin[at] = time;
    }
    groups.push({ id: sm[group], from, to: at });
  }
  return rowsOf(begin, took, block, groups);
}

/** The same with the times of each group from its own first begin on. @param {Rows} rows @returns {Rows} */
export function fromOwnFirst(rows) {
  const begin = rows.begin.slice();
  const end = rows.end.slice();
  let last = 0;
  for (const group of rows.groups) {
    for (let at = rows.rowFrom[group.from]; at < rows.rowFrom[group.to]; at += 1) {
      begin[at] -= group.first;
      end[at] -= group.first;
      if (end[at] > last) last = end[at];
    }
  }
  return { ...rows, begin, end, last };
}

/** The first place from `from` on, below `to`, whose value is above a number. @param {Float64Array} values @param {number} from @param {number} to @param {number} number @returns {number} */
export function firstAbove(values, from, to, number) {
  let low = from;
  let high = to;
  while (low < high) {
    const half = (low + high) >> 1;
    if (values[half] > number) high = half;
    else low = half + 1;
  }
  return low;
}
