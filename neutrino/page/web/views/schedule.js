// @ts-check
// Which multiprocessor ran each block, from when to when.

import { choice, colour, element, line } from "../dom.js";
import { columns } from "../data.js";
import { counted, number, shown, unitOf } from "../format.js";
import { Plot, pixel, ramp } from "../plot.js";
import { blocksOf, firstAbove, fromOwnFirst, longest } from "../spans.js";

/** @typedef {import("../spans.js").Rows} Rows */

/** @param {HTMLElement} place @param {import("../main.js").TracePart} trace */
export async function draw(place, trace) {
  const rows = (trace.data.spans.kernels ?? []).filter((/** @type {any} */ row) => row.drawn.length);
  if (!rows.length) {
    place.append(element("p", {}, trace.data.spans.fault ? shown(trace.data.spans.fault) : "No map of this trace says when and where blocks ran. Probe with ",
      element("code", {}, "-p block_sched"), " or ", element("code", {}, "-p warp_timeline"), "."));
    return;
  }
  const state = { kernel: 0, launch: longest(rows[0].drawn), sm: "all", own: true, colour: "took" };
  const controls = element("div", { class: "controls" });
  const picture = element("div");
  place.append(
    element("p", {}, "Each band is a multiprocessor, with a row for each block that it had at once, where there is room for rows. Stronger colour: more of the time was taken by blocks; orange: blocks that took much longer than the median."),
    controls, picture,
  );
  await show();

  async function show() {
    const row = rows[state.kernel];
    const drawn = row.drawn[Math.min(state.launch, row.drawn.length - 1)];
    const unit = unitOf(row, trace.document.clock);
    const kernels = rows.map((/** @type {any} */ entry, /** @type {number} */ at) => ({ value: String(at), text: `${kernelName(trace, entry)} · ${entry.map}` }));
    const launches = row.drawn.map((/** @type {any} */ entry, /** @type {number} */ at) => ({
      value: String(at), text: `launch ${number(entry.launch)}: ${number(entry.time)} ${unit}, ${counted(entry.blocks, "block")}`,
    }));
    const picked = await (drawn.kind === "exact" ? exact(row, drawn, unit) : grid(row, drawn, unit));
    controls.replaceChildren(
      choice("Kernel and map", kernels, String(state.kernel), (value) => { Object.assign(state, { kernel: Number(value), launch: longest(rows[Number(value)].drawn), sm: "all" }); void show(); }),
      choice(row.drawn.length < row.launches ? `Launch (${row.drawn.length} of ${number(row.launches)} are in this page)` : "Launch", launches, String(state.launch), (value) => { Object.assign(state, { launch: Number(value), sm: "all" }); void show(); }),
      choice("Multiprocessor", [{ value: "all", text: "all" }, ...picked.ids.map((id) => ({ value: String(id), text: String(id) }))], state.sm, (value) => { state.sm = value; void show(); }),
      row.shared ? "" : choice("Times", [{ value: "own", text: "from each one’s first block" }, { value: "clock", text: "as its clock says" }], state.own ? "own" : "clock", (value) => { state.own = value === "own"; void show(); }),
      drawn.kind === "grid" ? "" : choice("Colour", [{ value: "took", text: "time, and slow blocks" }, { value: "busy", text: "time alone" }], state.colour, (value) => { state.colour = value; void show(); }),
      element("span", { class: "zoom" }, picked.plot.buttons()),
    );
    picture.replaceChildren(...picked.nodes);
  }

  /** @param {any} row @param {any} drawn @param {string} unit */
  async function exact(row, drawn, unit) {
    const all = await blocksOf(drawn);
    const timed = row.shared || !state.own ? all : fromOwnFirst(all);
    const groups = state.sm === "all" ? timed.groups : timed.groups.filter((group) => String(group.id) === state.sm);
    const rows_ = { ...timed, groups };
    const height = heightOf(groups.length, timed.most);
    const end = Math.max(timed.last, 1);
    const running = new Running(unit);
    const plot = new Plot({
      label: `Block schedule of launch ${drawn.launch}: ${groups.length} multiprocessors, ${drawn.blocks} blocks, ${drawn.time} ${unit}`,
      height, range: [0, end], least: Math.min(16, end), unit: "", rows: groups.length,
      rowLabels: groups.map((group, at) => ({ at: (at + 0.5) / groups.length, text: String(group.id) })),
      draw: (ground) => {
        const found = paint(ground, rows_, state.colour === "took");
        running.draw(found.total, ground);
        return found.records;
      },
      describe: (at, y) => described(rows_, at, y, unit),
    });
    return {
      ids: all.groups.map((group) => group.id), plot,
      nodes: [figures(drawn, unit, all.most, all.median), plot.root, running.root, clocks(row, unit)],
    };
  }

  /** @param {any} row @param {any} drawn @param {string} unit */
  async function grid(row, drawn, unit) {
    const { sm, cells } = await columns(drawn.block);
    const ids = Array.from(sm, Number);
    const chosen = ids.map((id, at) => ({ id, at })).filter((entry) => state.sm === "all" || String(entry.id) === state.sm);
    let most = 1;
    for (let at = 0; at < cells.length; at += 1) if (cells[at] > most) most = cells[at];
    const running = new Running(unit);
    const plot = new Plot({
      label: `Block schedule of launch ${drawn.launch}: how many blocks were on each of ${ids.length} multiprocessors`,
      height: heightOf(chosen.length, 4), range: [0, drawn.time], least: (drawn.time / drawn.columns) * 8, rows: chosen.length,
      rowLabels: chosen.map((entry, at) => ({ at: (at + 0.5) / chosen.length, text: String(entry.id) })),
      draw: (ground) => {
        const found = paintGrid(ground, cells, chosen.map((entry) => entry.at), drawn, most);
        running.draw(found.total, ground);
        return found.records;
      },
      describe: (at, y) => {
        const entry = chosen[Math.min(Math.floor(y * chosen.length), chosen.length - 1)];
        const cell = Math.min(Math.floor((at / drawn.time) * drawn.columns), drawn.columns - 1);
        return `Multiprocessor ${entry.id}, at ${number(Math.round(at))} ${unit}: ${number(cells[entry.at * drawn.columns + cell] / drawn.scale)} blocks`;
      },
    });
    return {
      ids, plot,
      nodes: [
        figures(drawn, unit, most / drawn.scale, null),
        element("p", { class: "soft" }, `This launch has too many blocks for a page to have them one by one: the picture has how many were on each multiprocessor in each of ${number(drawn.columns)} moments.`),
        plot.root, running.root, clocks(row, unit),
      ],
    };
  }
}

/** @param {import("../main.js").TracePart} trace @param {any} row @returns {string} */
export function kernelName(trace, row) {
  const kernel = trace.document.kernels.find((/** @type {any} */ entry) => entry.kernel === row.kernel);
  return shown(kernel ? kernel.demangled : `kernel ${row.kernel}`, 90);
}

/** @param {any} drawn @param {string} unit @param {number} most @param {number | null} median */
function figures(drawn, unit, most, median) {
  return line([
    [`${number(drawn.time)} ${unit}`, "for the launch", "schedule/time"], [number(drawn.blocks), "blocks", "schedule/blocks"],
    [drawn.of >= drawn.sms ? `${number(drawn.sms)} of ${number(drawn.of)}` : number(drawn.sms), "multiprocessors had some", "schedule/multiprocessors"], [number(most), "at most at once on one"],
    median !== null && [`${number(median)} ${unit}`, "for the median block"],
  ]);
}

/** @param {any} row @param {string} unit */
function clocks(row, unit) {
  if (row.shared) return element("p", { class: "soft" }, `All multiprocessors have the same clock, in ${unit}.`);
  return element("p", { class: "soft" },
    "Each multiprocessor has a clock of its own. What is beside each other in two bands need not have been at the same moment: unless “as its clock says” is chosen, each band begins with its own first block.");
}

/** @param {number} bands @param {number} rows */
function heightOf(bands, rows) {
  const wanted = bands * Math.max(Math.min(rows, 24) * (bands > 40 ? 1 : 3) + 1, 4);
  return Math.min(Math.max(Math.min(wanted, 900), bands === 1 ? 120 : 60, bands), 1000);
}

/**
 * How much longer spans took than the median: 0 up to a quarter longer, 1 from twice as long on.
 * @param {Rows} rows @returns {Float32Array}
 */
function slownessOf(rows) {
  let found = slownesses.get(rows.rowFrom);
  if (!found) {
    found = new Float32Array(rows.begin.length);
    if (rows.median > 0) for (let at = 0; at < found.length; at += 1) found[at] = Math.min(Math.max(((rows.end[at] - rows.begin[at]) / rows.median - 1.25) / 0.75, 0), 1);
    slownesses.set(rows.rowFrom, found);
  }
  return found;
}

/** Computed once: by what rows have in common whose times are told from another moment on. @type {WeakMap<Uint32Array, Float32Array>} */
const slownesses = new WeakMap();

/**
 * Paint spans: how much of each pixel's time they take, and how long they took against the median.
 * @param {import("../plot.js").Ground} ground @param {Rows} rows @param {boolean} bySlowness
 */
export function paint(ground, rows, bySlowness) {
  const { width, height, from, to } = ground;
  const pixels = new Uint32Array(ground.image.data.buffer);
  const empty = colour("heat-0");
  const full = colour("heat-1");
  const slow = colour("slow");
  const edge = colour("edge");
  pixels.fill(pixel(...empty));
  const steady = ramp([empty, full]);
  const { begin: begins, end: ends, rowFrom } = rows;
  const slowness = slownessOf(rows);
  const scale = width / (to - from);
  const total = new Float64Array(width);
  const busy = new Float64Array(width);
  const late = new Float64Array(width);
  const marked = new Uint8Array(width);
  // Of spans over many pixels only where they begin and end there: what a span takes does not grow with the zoom.
  const busySteps = new Float64Array(width + 1);
  const lateSteps = new Float64Array(width + 1);
  const bands = rows.groups.length;
  let touched = 0;
  for (let band = 0; band < bands; band += 1) {
    const group = rows.groups[band];
    const count = Math.max(group.to - group.from, 1);
    const top = Math.floor((band * height) / bands);
    const bottom = Math.max(Math.floor(((band + 1) * height) / bands) - (height / bands >= 4 ? 1 : 0), top + 1);
    const lines = bottom - top;
    // Several rows share a line of pixels where there are more rows than lines.
    const perLine = Math.max(count / lines, 1);
    let line = -1;
    for (let row = 0; row <= count; row += 1) {
      const next = row === count ? lines : Math.floor((row * lines) / count);
      if (next !== line) {
        if (line >= 0) fillLines(top + line, Math.max(next, line + 1) - line, count, perLine);
        line = next;
        busy.fill(0); late.fill(0); marked.fill(0); busySteps.fill(0); lateSteps.fill(0);
      }
      if (row < group.to - group.from) touched += addRow(group.from + row);
    }
  }
  return { records: touched, total };

  /** Paint what has been added into lines of pixels. @param {number} first @param {number} many @param {number} count rows of the band @param {number} perLine rows of a line */
  function fillLines(first, many, count, perLine) {
    const start = first * width;
    const share = 1 / perLine;
    let steadyBusy = 0;
    let steadyLate = 0;
    for (let x = 0; x < width; x += 1) {
      steadyBusy += busySteps[x];
      steadyLate += lateSteps[x];
      const sum = busy[x] + steadyBusy;
      if (sum <= 1e-6) continue;
      total[x] += sum;
      const part = sum * share > 1 ? 1 : sum * share;
      const slower = late[x] + steadyLate;
      if (!marked[x] && (slower <= 1e-6 || !bySlowness)) {
        pixels[start + x] = steady[(part * 255 + 0.5) | 0];
        continue;
      }
      const over = bySlowness ? Math.min(Math.max(slower / sum, 0), 1) : 0;
      const strong = marked[x] ? part * 0.55 : part;
      const ground_ = marked[x] ? edge : empty;
      pixels[start + x] = pixel(
        ground_[0] + (full[0] + (slow[0] - full[0]) * over - ground_[0]) * strong,
        ground_[1] + (full[1] + (slow[1] - full[1]) * over - ground_[1]) * strong,
        ground_[2] + (full[2] + (slow[2] - full[2]) * over - ground_[2]) * strong,
      );
    }
    // Thick rows have a thin line between them.
    const gap = count > 1 && many >= 6 * ground.ratio ? Math.round(ground.ratio) : 0;
    for (let other = first + 1; other < first + many - gap && other < height; other += 1) pixels.copyWithin(other * width, start, start + width);
  }

  /** Add the spans of a row; returns how many. @param {number} row @returns {number} */
  function addRow(row) {
    const past = rowFrom[row + 1];
    const first = firstAbove(ends, rowFrom[row], past, from);
    let at = first;
    for (; at < past; at += 1) {
      const begin = begins[at];
      if (begin >= to) break;
      const left = begin > from ? (begin - from) * scale : 0;
      const end = ends[at] < to ? (ends[at] - from) * scale : width;
      const right = end < width ? end : width;
      const x0 = left | 0;
      const x1 = right < width ? right | 0 : width - 1;
      if (x0 >= width) break;
      const weight = slowness[at];
      if (x0 === x1) {
        // A span without length is a thin line all the same.
        const part = right - left > 0.02 ? right - left : 0.02;
        busy[x0] += part;
        late[x0] += part * weight;
        continue;
      }
      const before = x0 + 1 - left;
      const after = right - x1;
      busy[x0] += before;
      busy[x1] += after;
      late[x0] += before * weight;
      late[x1] += after * weight;
      if (x1 > x0 + 1) {
        busySteps[x0 + 1] += 1;
        busySteps[x1] -= 1;
        lateSteps[x0 + 1] += weight;
        lateSteps[x1] -= weight;
      }
      if (right - left >= 5 && begin >= from) marked[x0] = 1;
    }
    return at - first;
  }
}

/**
 * @param {import("../plot.js").Ground} ground @param {Uint32Array} cells @param {number[]} chosen @param {any} drawn @param {number} most
 */
function paintGrid(ground, cells, chosen, drawn, most) {
  const { width, height, from, to } = ground;
  const pixels = new Uint32Array(ground.image.data.buffer);
  const empty = colour("heat-0");
  const full = colour("heat-1");
  const total = new Float64Array(width);
  const perCell = drawn.time / drawn.columns;
  let touched = 0;
  chosen.forEach((sm, band) => {
    const top = Math.floor((band * height) / chosen.length);
    const bottom = Math.max(Math.floor(((band + 1) * height) / chosen.length) - (height / chosen.length >= 4 ? 1 : 0), top + 1);
    for (let x = 0; x < width; x += 1) {
      const first = Math.floor((from + ((to - from) * x) / width) / perCell);
      const last = Math.min(Math.max(Math.ceil((from + ((to - from) * (x + 1)) / width) / perCell), first + 1), drawn.columns);
      let sum = 0;
      for (let at = first; at < last; at += 1) sum += cells[sm * drawn.columns + at];
      touched += last - first;
      const mean = sum / Math.max(last - first, 1);
      total[x] += mean / drawn.scale;
      const part = mean / most;
      const value = pixel(empty[0] + (full[0] - empty[0]) * part, empty[1] + (full[1] - empty[1]) * part, empty[2] + (full[2] - empty[2]) * part);
      for (let y = top; y < bottom; y += 1) pixels[y * width + x] = value;
    }
    for (let y = bottom; y < Math.floor(((band + 1) * height) / chosen.length); y += 1) pixels.fill(pixel(...colour("ground")), y * width, (y + 1) * width);
  });
  return { records: touched, total };
}

/** @param {Rows} rows @param {number} at @param {number} y @param {string} unit @returns {string} */
export function described(rows, at, y, unit) {
  const place = y * rows.groups.length;
  const group = rows.groups[Math.min(Math.floor(place), rows.groups.length - 1)];
  if (group.from === group.to) return `Multiprocessor ${group.id}: no block of this launch`;
  const row = group.from + Math.min(Math.floor((place - Math.floor(place)) * (group.to - group.from)), group.to - group.from - 1);
  const found = firstAbove(rows.end, rows.rowFrom[row], rows.rowFrom[row + 1], at);
  if (found >= rows.rowFrom[row + 1] || rows.begin[found] > at) return `Multiprocessor ${group.id}, at ${number(Math.round(at))} ${unit}: no block in this row`;
  const took = rows.end[found] - rows.begin[found];
  return `Multiprocessor ${group.id}, block ${number(rows.name[found])}\nfrom ${number(rows.begin[found])} to ${number(rows.end[found])} ${unit}\ntook ${number(took)} ${unit}, the median block ${number(rows.median)}`;
}

/** The line of how many blocks were running, below a schedule. */
class Running {
  /** @param {string} unit */
  constructor(unit) {
    this.unit = unit;
    this.canvas = /** @type {HTMLCanvasElement} */ (element("canvas", { role: "img" }));
    this.canvas.style.height = "64px";
    this.text = element("p", { class: "soft" });
    this.root = element("div", { class: "plot" }, this.text, this.canvas);
  }

  /** @param {Float64Array} total @param {import("../plot.js").Ground} ground */
  draw(total, ground) {
    const height = Math.round(64 * ground.ratio);
    const width = Math.max(Math.round(this.canvas.clientWidth * ground.ratio), 1);
    this.canvas.width = width;
    this.canvas.height = height;
    let most = 0;
    let sum = 0;
    for (const value of total) {
      if (value > most) most = value;
      sum += value;
    }
    const mean = sum / Math.max(total.length, 1);
    this.text.textContent = `Blocks at once on the multiprocessors above: ${number(Number(mean.toPrecision(4)))} on average here, ${number(Number(most.toPrecision(4)))} at most.`;
    this.canvas.setAttribute("aria-label", this.text.textContent);
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    const [red, green, blue] = colour("accent");
    context.fillStyle = `rgb(${red}, ${green}, ${blue})`;
    context.beginPath();
    const left = width - ground.width;
    context.moveTo(left, height);
    for (let x = 0; x < total.length; x += 1) context.lineTo(left + x, height - (total[x] / (most || 1)) * (height - 2));
    context.lineTo(width, height);
    context.fill();
  }
}
