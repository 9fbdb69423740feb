// @ts-check
// What warps did between their begin and end: ranges, marks, and what each warp of a block is for.

import { bar } from "../chart.js";
import { choice, colour, colourText, element, line } from "../dom.js";
import { columns } from "../data.js";
import { number, share, shown } from "../format.js";
import { Plot, fillBox, pixel } from "../plot.js";
import { table } from "../table.js";
import { kernelName } from "./schedule.js";

const ROWS = 64;
const SERIES = 8;

/** @param {HTMLElement} place @param {import("../main.js").TracePart} trace */
export async function draw(place, trace) {
  const rows = trace.data.ranges.kernels ?? [];
  if (!rows.length) {
    place.append(element("p", {}, trace.data.ranges.fault ? shown(trace.data.ranges.fault) : "No map of this trace says what warps did on their way. Probe with ",
      element("code", {}, "-p program_progress"), ", or mark ranges (docs/timelines.md)."));
    return;
  }
  const state = { kernel: 0, sm: 0, page: 0 };
  const controls = element("div", { class: "controls" });
  const picture = element("div");
  place.append(element("p", {}, "Each row is a warp, named by its block and its number there: pale while it ran, coloured in its ranges, or from each mark to the next."), controls, picture);
  await show();

  async function show() {
    const row = rows[state.kernel];
    const all = await columns(row.block);
    const sms = [...new Set(/** @type {Iterable<number>} */ (all.sm))];
    const sm = sms[Math.min(state.sm, sms.length - 1)];
    const first = all.sm.indexOf(sm);
    const count = all.sm.filter((/** @type {number} */ id) => id === sm).length;
    const from = first + Math.min(state.page * ROWS, Math.max(count - 1, 0));
    const to = Math.min(from + ROWS, first + count);
    const used = summed(all);
    // Those with most time have colours of their own.
    const series = new Map(used.map((entry, at) => [entry.name, Math.min(at, SERIES - 1)]));
    // The ranges of these warps: they are sorted by warp.
    const begin = lowest(all.row, from);
    const end = lowest(all.row, to);
    const time = Math.max(...Array.from({ length: to - from }, (_, at) => all.begin[from + at] + all.took[from + at]), 1);
    const plot = new Plot({
      label: `Warps ${numbered(row, all.warp[from])} to ${numbered(row, all.warp[to - 1])} (block.warp) of multiprocessor ${sm - 1} in launch ${row.launch}, with ${end - begin} ranges and marks`,
      height: Math.max((to - from) * 14, 60), range: [0, time], rows: to - from, least: Math.min(16, time),
      rowLabels: Array.from({ length: to - from }, (_, at) => ({ at: (at + 0.5) / (to - from), text: named(row, all.warp[from + at]) })),
      draw: (ground) => paint(ground, all, from, to, begin, end, series),
      describe: (at, y) => {
        const warp = Math.min(from + Math.floor(y * (to - from)), to - 1);
        const about = `${described(row, all.warp[warp])}, at ${number(Math.round(at))} ${row.unit}`;
        const inside = [];
        let mark = -1;
        for (let range = lowest(all.row, warp); range < end && all.row[range] === warp && all.from[range] <= at; range += 1) {
          if (all.mark[range]) mark = range;
          else if (all.from[range] + all.length[range] >= at) inside.push(`in ${nameOf(row, all.name[range])}: from ${number(all.from[range])}, ${number(all.length[range])} ${row.unit} long`);
        }
        if (mark >= 0) inside.push(`${number(Math.round(at - all.from[mark]))} ${row.unit} after ${nameOf(row, all.name[mark])}`);
        return [about, ...inside].join("\n");
      },
    });
    const pages = Math.ceil(count / ROWS);
    controls.replaceChildren(
      choice("Kernel", rows.map((/** @type {any} */ entry, /** @type {number} */ at) => ({ value: String(at), text: kernelName(trace, entry) })), String(state.kernel), (value) => { Object.assign(state, { kernel: Number(value), sm: 0, page: 0 }); void show(); }),
      choice("Multiprocessor", sms.map((id, at) => ({ value: String(at), text: id ? String(id - 1) : "not known" })), String(state.sm), (value) => { Object.assign(state, { sm: Number(value), page: 0 }); void show(); }),
      pages > 1 ? choice("Warps (block.warp)", Array.from({ length: pages }, (_, at) => ({ value: String(at), text: `${numbered(row, all.warp[first + at * ROWS])} to ${numbered(row, all.warp[first + Math.min((at + 1) * ROWS, count) - 1])}` })), String(state.page), (value) => { state.page = Number(value); void show(); }) : "",
      element("span", { class: "zoom" }, plot.buttons()),
    );
    picture.replaceChildren(
      line([[number(row.events), "ranges and marks", "inside/events"], [`${number(row.warps_here)} of ${number(row.warps)}`, `warps of launch ${number(row.launch)}`]]),
      element("div", { class: "key" }, used.slice(0, used.length > SERIES ? SERIES - 1 : SERIES).map((entry, at) => key(at, nameOf(row, entry.name))), used.length > SERIES ? key(SERIES - 1, `${number(used.length - SERIES + 1)} others`) : null),
      plot.root,
      element("p", { class: "soft" }, row.unit === "cycles" ? "Times are cycles of each multiprocessor, from its first warp on." : `Times are ${row.unit} from the launch’s first warp on.`, row.left_out.length ? ` Left out, since their times are of another clock or they are too many: ${row.left_out.map((/** @type {string} */ name) => shown(name)).join(", ")}.` : ""),
      ...roles(row),
      element("h3", {}, "By name, of all these warps"),
      table("Ranges and marks by name", [
        { title: "name", kind: "name", value: (entry) => nameOf(row, entry.name) }, { title: "", value: (entry) => entry.time, cell: (entry) => bar(entry.time / (used[0]?.time || 1)) },
        { title: "count", kind: "number", value: (entry) => entry.count }, { title: "time", kind: "number", value: (entry) => entry.time },
        { title: "mean", kind: "number", value: (entry) => entry.time / entry.count }, { title: "most", kind: "number", value: (entry) => entry.most },
        { title: "of warps’ time", value: (entry) => entry.time, cell: (entry) => share(entry.time, used.lived) },
        { title: "is", value: (entry) => (entry.mark ? "a mark: until the warp’s next one" : "a range") },
      ], used, { most: 24, figures: "inside" }),
    );
  }
}

/** The first place of a sorted column whose value is not below a number. @param {Float64Array} values @param {number} least @returns {number} */
function lowest(values, least) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const half = (low + high) >> 1;
    if (values[half] < least) low = half + 1;
    else high = half;
  }
  return low;
}

/** @param {any} row @param {number} name @returns {string} */
function nameOf(row, name) {
  return shown(row.names[name] ?? "another one", 90);
}

/** @param {any} row @param {number} warp of the grid @returns {string} */
function named(row, warp) {
  const role = row.roles[warp % row.warps_of_block];
  return `${numbered(row, warp)}${role ? ` ${role}` : ""}`;
}

/** The one name of a warp: its block's number, and its own there. @param {any} row @param {number} warp of the grid @returns {string} */
function numbered(row, warp) {
  return `${Math.floor(warp / row.warps_of_block)}.${warp % row.warps_of_block}`;
}

/** @param {any} row @param {number} warp @returns {string} */
function described(row, warp) {
  const role = row.roles[warp % row.warps_of_block];
  return `Block ${number(Math.floor(warp / row.warps_of_block))}, warp ${warp % row.warps_of_block}${role ? ` (${shown(role)})` : ""}`;
}

/** @param {number} series @param {string} text */
function key(series, text) {
  const mark = element("i");
  mark.style.background = colourText(`series-${series}`);
  return element("span", { class: "name" }, mark, text);
}

/** @param {any} row */
function roles(row) {
  if (!row.role_sentences.length) return [];
  return [element("h3", {}, "What the warps of a block are for"), element("ul", {}, row.role_sentences.map((/** @type {string} */ text) => element("li", {}, shown(text))))];
}

/** How long a mark lasts: until the warp's next one, or its end. @param {Record<string, any>} all @param {number} range @returns {number} */
function lasts(all, range) {
  if (!all.mark[range]) return all.length[range];
  const warp = all.row[range];
  for (let next = range + 1; next < all.row.length && all.row[next] === warp; next += 1) if (all.mark[next]) return all.from[next] - all.from[range];
  return Math.max(all.begin[warp] + all.took[warp] - all.from[range], 0);
}

/** @param {Record<string, any>} all */
function summed(all) {
  /** @type {Map<number, {name: number, count: number, time: number, most: number, mark: boolean}>} */
  const known = new Map();
  for (let range = 0; range < all.row.length; range += 1) {
    const entry = known.get(all.name[range]) ?? { name: all.name[range], count: 0, time: 0, most: 0, mark: Boolean(all.mark[range]) };
    const took = lasts(all, range);
    entry.count += 1;
    entry.time += took;
    entry.most = Math.max(entry.most, took);
    known.set(entry.name, entry);
  }
  const lived = all.took.reduce((/** @type {number} */ sum, /** @type {number} */ took) => sum + took, 0);
  return Object.assign([...known.values()].sort((a, b) => b.time - a.time), { lived });
}

/** @param {import("../plot.js").Ground} ground @param {Record<string, any>} all @param {number} from @param {number} to @param {number} begin @param {number} end @param {Map<number, number>} series of names */
function paint(ground, all, from, to, begin, end, series) {
  const { width, height } = ground;
  const pixels = new Uint32Array(ground.image.data.buffer);
  pixels.fill(pixel(...colour("heat-0")));
  const scale = width / (ground.to - ground.from);
  const lived = pixel(...colour("line"));
  const colours = Array.from({ length: SERIES }, (_, at) => colour(`series-${at}`));
  const solid = colours.map((parts) => pixel(...parts));
  const empty = colour("line");
  const pale = colours.map((parts) => pixel(...blend(parts, empty, 0.55)));
  const rows = to - from;
  let touched = 0;
  for (let warp = from; warp < to; warp += 1, touched += 1) box(warp, all.begin[warp], all.begin[warp] + all.took[warp], lived, 0);
  for (let range = begin; range < end; range += 1) {
    const last = all.from[range] + (all.mark[range] ? 0 : all.length[range]);
    if (all.mark[range]) {
      const until = range + 1 < end && all.row[range + 1] === all.row[range] ? all.from[range + 1] : all.begin[all.row[range]] + all.took[all.row[range]];
      if (until < ground.from || all.from[range] > ground.to) continue;
      touched += 1;
      box(all.row[range], all.from[range], until, pale[seriesOf(range)], 1);
      box(all.row[range], all.from[range], all.from[range] + 1.5 / scale, solid[seriesOf(range)], 0);
    } else if (last >= ground.from && all.from[range] <= ground.to) {
      touched += 1;
      box(all.row[range], all.from[range], last, solid[seriesOf(range)], 1);
    }
  }
  return touched;

  /** @param {number} range @returns {number} */
  function seriesOf(range) {
    return series.get(all.name[range]) ?? SERIES - 1;
  }

  /** @param {number} warp @param {number} first @param {number} last @param {number} value @param {number} inset */
  function box(warp, first, last, value, inset) {
    const left = Math.max(Math.round((first - ground.from) * scale), 0);
    const right = Math.min(Math.max(Math.round((last - ground.from) * scale), left + 1), width);
    if (left >= width) return;
    const top = Math.floor(((warp - from) * height) / rows) + Math.round(inset * ground.ratio);
    const bottom = Math.floor(((warp - from + 1) * height) / rows) - Math.round((1 + inset) * ground.ratio);
    fillBox(pixels, width, left, right, top, Math.max(bottom, top + 1), value);
  }
}

/** @param {[number, number, number]} one @param {[number, number, number]} other @param {number} part @returns {[number, number, number]} */
function blend(one, other, part) {
  const mixed = (/** @type {number} */ at) => Math.round(one[at] * part + other[at] * (1 - part));
  return [mixed(0), mixed(1), mixed(2)];
}
