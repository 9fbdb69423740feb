// @ts-check
// Where in memory a launch's accesses were, and when; how the lanes of warps lie, and what comes again.

import { bar, distribution } from "../chart.js";
import { choice, colour, colourText, element, line } from "../dom.js";
import { columns } from "../data.js";
import { bytes, counted, number, share, short, shown } from "../format.js";
import { Plot, fillBox, pixel, ramp } from "../plot.js";
import { table } from "../table.js";
import { kernelName } from "./schedule.js";

/** @param {HTMLElement} place @param {import("../main.js").TracePart} trace */
export async function draw(place, trace) {
  const data = trace.data.accesses;
  const rows = (data.kernels ?? []).filter((/** @type {any} */ row) => row.launches.length);
  if (!rows.length) {
    place.append(element("p", {}, data.fault ? shown(data.fault) : "No map of this trace has accesses to memory. Probe with ", element("code", {}, "-p dmat"), "."));
    return;
  }
  const state = { kernel: 0, launch: 0, against: "", kind: "all" };
  const controls = element("div", { class: "controls" });
  const picture = element("div");
  place.append(controls, picture);
  await show();

  async function show() {
    const row = rows[state.kernel];
    const drawn = row.launches[Math.min(state.launch, row.launches.length - 1)];
    const unit = trace.document.clock === "steps" ? "steps" : "cycles";
    const choices = [
      choice("Kernel and map", rows.map((/** @type {any} */ entry, /** @type {number} */ at) => ({ value: String(at), text: `${kernelName(trace, entry)} · ${shown(entry.map)}` })), String(state.kernel), (value) => { Object.assign(state, { kernel: Number(value), launch: 0 }); void show(); }),
      choice("Launch", row.launches.map((/** @type {any} */ entry, /** @type {number} */ at) => ({ value: String(at), text: `launch ${number(entry.launch)}` })), String(state.launch), (value) => { state.launch = Number(value); void show(); }),
    ];
    if (drawn.fault) {
      controls.replaceChildren(...choices);
      picture.replaceChildren(element("p", { class: "note" }, shown(drawn.fault)));
      return;
    }
    const found = await columns(drawn.block);
    const against = state.against || (drawn.far_apart ? "warp" : "time");
    const plot = against === "time" ? byTime(drawn, found, unit) : byWarp(drawn, found);
    controls.replaceChildren(
      ...choices,
      choice("Addresses against", [{ value: "time", text: "time" }, { value: "warp", text: "warps of the grid" }], against, (value) => { state.against = value; void show(); }),
      against === "time" ? choice("Accesses", [{ value: "all", text: "all" }, ...drawn.kinds.map((/** @type {number} */ kind) => ({ value: String(kind), text: data.kinds[kind] }))], state.kind, (value) => { state.kind = value; void show(); }) : "",
      element("span", { class: "zoom" }, plot.buttons()),
    );
    const parts = [
      line([[number(drawn.accesses), "accesses of lanes", "memory/accesses"], [bytes(drawn.bytes), "in all"], [bytes(drawn.footprint[drawn.footprint.length - 1]), "touched"], [counted(drawn.regions.length + drawn.regions_left_out, "region"), "of pages that follow each other"]]),
      element("p", { class: "soft" }, `From top to bottom the touched pages by address, ${bytes(drawn.page_bytes)} a row; what was not touched is left out, and a line is between regions. Stronger colour: more accesses, by powers.`),
      plot.root,
      element("p", { class: "soft" }, clocks(drawn, unit, trace.document.clock)),
      element("h3", {}, "How lanes lie in memory"), sitesOf(drawn),
      element("h3", {}, "Working set"), orderOf(drawn, unit, trace.document.clock, "what is in an interval, and touched before another, is"), workingSet(drawn, unit),
      element("h3", {}, "What comes again"), orderOf(drawn, unit, trace.document.clock, "what came between is"), reuse(drawn),
      element("h3", {}, "Regions"), regions(drawn),
    ];
    picture.replaceChildren(...parts.flatMap((part) => part ?? []));
  }

  /** @param {any} drawn @param {Record<string, any>} found @param {string} unit */
  function byTime(drawn, found, unit) {
    const kinds = state.kind === "all" ? drawn.kinds : [Number(state.kind)];
    const cells = new Float64Array(drawn.times * drawn.columns);
    for (const kind of kinds.filter((/** @type {number} */ one) => drawn.kinds.includes(one))) {
      const counts = found[`kind_${kind}`];
      for (let at = 0; at < counts.length; at += 1) cells[at] += counts[at];
    }
    const time = Math.max(drawn.time, 1);
    const shades = shadesOf(cells);
    return new Plot({
      label: `Accesses of launch ${drawn.launch} by address and time: ${drawn.accesses} over ${drawn.time} ${unit}`,
      height: heightOf(drawn), range: [0, time], least: time / drawn.times, rows: Math.min(drawn.columns, 64), unit: "", rowLabels: labels(drawn),
      draw: (ground) => paint(ground, shades, drawn.times, time, drawn),
      describe: (at, y) => {
        const moment = Math.min(Math.floor((at / time) * drawn.times), drawn.times - 1);
        const column = Math.min(Math.floor(y * drawn.columns), drawn.columns - 1);
        return `${counted(cells[moment * drawn.columns + column], "access", "accesses")} from ${address(drawn, found, column)}\nfrom ${number(Math.round((moment * time) / drawn.times))} to ${number(Math.round(((moment + 1) * time) / drawn.times))} ${unit}`;
      },
    });
  }

  /** @param {any} drawn @param {Record<string, any>} found */
  function byWarp(drawn, found) {
    const cells = Float64Array.from(found.warps);
    const shades = shadesOf(cells);
    return new Plot({
      label: `Accesses of launch ${drawn.launch} by address and warp`,
      height: heightOf(drawn), range: [0, 100], least: 400 / drawn.warp_rows, rows: Math.min(drawn.columns, 64), rowLabels: labels(drawn),
      tick: (value) => `${short(value)} %`,
      draw: (ground) => paint(ground, shades, drawn.warp_rows, 100, drawn),
      describe: (at, y) => {
        const row = Math.min(Math.floor((at * drawn.warp_rows) / 100), drawn.warp_rows - 1);
        const column = Math.min(Math.floor(y * drawn.columns), drawn.columns - 1);
        return `${counted(cells[row * drawn.columns + column], "access", "accesses")} from ${address(drawn, found, column)}\nof part ${number(row + 1)} of ${number(drawn.warp_rows)} of the grid’s warps`;
      },
    });
  }
}

/** @param {any} drawn */
function heightOf(drawn) {
  return Math.min(Math.max(drawn.columns, 160), 512);
}

/** @param {any} drawn */
function labels(drawn) {
  return drawn.regions.map((/** @type {any} */ region) => ({ at: (region.columns[0] + 0.5) / drawn.columns, text: region.begin }));
}

/** @param {any} drawn @param {Record<string, any>} found @param {number} column @returns {string} */
function address(drawn, found, column) {
  return `0x${(BigInt(drawn.first_page) + BigInt(found.pages[column])).toString(16)}, ${bytes(drawn.page_bytes)}`;
}

/** How strong each cell's colour is, by powers: 0 where there is none, from 1 to 256. @param {Float64Array} cells @returns {Uint16Array} */
function shadesOf(cells) {
  let most = 1;
  for (let at = 0; at < cells.length; at += 1) if (cells[at] > most) most = cells[at];
  const scale = 255 / Math.log(most);
  const shades = new Uint16Array(cells.length);
  for (let at = 0; at < cells.length; at += 1) if (cells[at]) shades[at] = 1 + (most > 1 ? Math.round(Math.log(cells[at]) * scale) : 128);
  return shades;
}

/**
 * @param {import("../plot.js").Ground} ground @param {Uint16Array} shades `[across][column]` @param {number} across @param {number} range @param {any} drawn
 */
function paint(ground, shades, across, range, drawn) {
  const { width, height, from, to } = ground;
  const pixels = new Uint32Array(ground.image.data.buffer);
  pixels.fill(pixel(...colour("heat-0")));
  const colours = ramp([colour("heat-1"), colour("heat-2")]);
  const rule = pixel(...colour("line"));
  const xOf = (/** @type {number} */ at) => Math.round((((at * range) / across - from) / (to - from)) * width);
  let touched = 0;
  for (let at = Math.max(Math.floor((from / range) * across), 0); at < across && (at * range) / across < to; at += 1) {
    const left = Math.max(xOf(at), 0);
    const right = Math.min(Math.max(xOf(at + 1), left + 1), width);
    for (let column = 0; column < drawn.columns; column += 1, touched += 1) {
      const shade = shades[at * drawn.columns + column];
      if (!shade) continue;
      const top = Math.floor((column * height) / drawn.columns);
      const bottom = Math.max(Math.floor(((column + 1) * height) / drawn.columns), top + 1);
      fillBox(pixels, width, left, right, top, bottom, colours[shade - 1]);
    }
  }
  if (drawn.regions.length < 64) {
    for (const region of drawn.regions) {
      const y = Math.floor((region.columns[0] * height) / drawn.columns);
      if (y > 0) pixels.fill(rule, y * width, (y + 1) * width);
    }
  }
  return touched;
}

/**
 * What the order of the clocks is worth, beside figures that are counted in it: nothing where all have the same clock.
 * @param {any} drawn @param {string} unit @param {string} clock @param {string} what is counted @returns {HTMLElement | null}
 */
function orderOf(drawn, unit, clock, what) {
  if (clock === "steps") return null;
  const apart = drawn.starts_apart === null ? "by how much they differ is not known"
    : `blocks that begin together were ${number(drawn.starts_apart)} ${unit} apart, of ${number(drawn.time)} in all`;
  const far = drawn.far_apart ? ` That is more than half: ${what} as the clocks say, which need not be as it was.` : "";
  return element("p", { class: drawn.far_apart ? "note" : "soft" }, `In the order of clocks that different multiprocessors do not share: ${apart}.${far}`);
}

/** @param {any} drawn @param {string} unit @param {string} clock @returns {string} */
function clocks(drawn, unit, clock) {
  const strange = drawn.strange ? ` ${counted(drawn.strange, "record has", "records have")} no instruction or kind that there is, and are left out.` : "";
  const empty = drawn.empty ? ` ${counted(drawn.empty, "record is", "records are")} of 0 bytes, as of masked copies: they access nothing and are not counted.` : "";
  if (clock === "steps") return `Times are steps of the interpreter, the same for all.${strange}${empty}`;
  return `Clocks of different multiprocessors have no common order; ${drawn.starts_apart === null ? "how far they are apart is not known" : `the first accesses of blocks that begin together were ${number(drawn.starts_apart)} ${unit} apart`}.${drawn.far_apart ? " That is more than half of the whole time: the picture begins with the warps of the grid." : ""}${strange}${empty}`;
}

/** @param {any} drawn */
function sitesOf(drawn) {
  const most = Math.max(...drawn.sites.map((/** @type {any} */ row) => row.accesses), 1);
  return table("Accesses by instruction", [
    { title: "site", kind: "number", value: (row) => row.site }, { title: "", value: (row) => row.accesses, cell: (row) => bar(row.accesses / most) },
    { title: "accesses", kind: "number", value: (row) => row.accesses }, { title: "kind", value: (row) => row.kind },
    { title: "pattern", value: (row) => `${row.pattern}${row.stride === null ? "" : ` of ${row.stride} bytes`}` },
    { title: "of executions", value: (row) => share(row.patterns[row.pattern], row.executions) },
    { title: "sectors an execution", kind: "number", value: (row) => row.sectors / row.executions },
    { title: "at least", kind: "number", value: (row) => row.sectors_least / row.executions },
    { title: "place", kind: "name", value: (row) => row.place }, { title: "instruction", kind: "code", value: (row) => row.instruction },
  ], drawn.sites, { most: 24, figures: "accesses" });
}

/** @param {any} drawn @param {string} unit */
function workingSet(drawn, unit) {
  const intervals = drawn.working_set.length;
  const most = Math.max(...drawn.footprint, 1);
  const plot = new Plot({
    label: `Working set over ${drawn.time} ${unit}: bytes in each interval, and touched so far`,
    height: 140, range: [0, Math.max(drawn.time, 1)], rows: 1,
    draw: (ground) => {
      const pixels = new Uint32Array(ground.image.data.buffer);
      pixels.fill(pixel(...colour("heat-0")));
      for (let x = 0; x < ground.width; x += 1) {
        const at = Math.min(Math.floor(((ground.from + ((ground.to - ground.from) * x) / ground.width) / Math.max(drawn.time, 1)) * intervals), intervals - 1);
        for (const [values, name] of /** @type {[number[], string][]} */ ([[drawn.footprint, "series-7"], [drawn.working_set, "accent"]])) {
          const value = pixel(...colour(name));
          const top = ground.height - Math.round((values[at] / most) * (ground.height - 2));
          for (let y = Math.max(top, 0); y < (name === "accent" ? ground.height : Math.min(top + Math.ceil(2 * ground.ratio), ground.height)); y += 1) pixels[y * ground.width + x] = value;
        }
      }
      return intervals;
    },
    describe: (at) => {
      const interval = Math.min(Math.floor((at / Math.max(drawn.time, 1)) * intervals), intervals - 1);
      return `${bytes(drawn.working_set[interval])} in interval ${interval + 1} of ${intervals}, ${bytes(drawn.footprint[interval])} so far`;
    },
  });
  const key = element("div", { class: "key" }, keyed("accent", `in each of ${intervals} equal intervals, at most ${bytes(Math.max(...drawn.working_set))}`), keyed("series-7", `touched so far, in the end ${bytes(most)}`));
  return element("div", {}, key, plot.root, element("p", { class: "soft" }, `In lines of ${bytes(drawn.line)}.`));
}

/** @param {string} name @param {string} text */
function keyed(name, text) {
  const mark = element("i");
  mark.style.background = colourText(name);
  return element("span", {}, mark, text);
}

/** @param {any} drawn */
function reuse(drawn) {
  const buckets = drawn.reuse.map((/** @type {number} */ count, /** @type {number} */ at) => ({ low: at ? 2 ** (at - 1) : 0, high: at ? 2 ** at - 1 : 0, count }));
  const all = drawn.reuse.reduce((/** @type {number} */ sum, /** @type {number} */ count) => sum + count, drawn.reuse_first);
  const sampled = drawn.reuse_sample < 1 ? ` It is estimated from ${short(drawn.reuse_sample * 100)} % of the lines.` : "";
  return element("div", {},
    element("p", { class: "soft" }, `${share(drawn.reuse_first, all)} of the accesses to lines are the first to their line. The others come again after so many other lines, in the order of the clocks: a cache with more lines than that may have them still.${sampled}`),
    buckets.length ? distribution("Accesses to lines by how many other lines came between", buckets) : null);
}

/** @param {any} drawn */
function regions(drawn) {
  const most = Math.max(...drawn.regions.map((/** @type {any} */ row) => row.accesses), 1);
  const left = drawn.regions_left_out ? ` ${counted(drawn.regions_left_out, "region")} with fewest accesses are left out.` : "";
  return element("div", {}, element("p", { class: "soft" }, `Pages of 4 KiB that were touched and follow each other. What the program allocated is not in the trace.${left}`), table("Regions of memory", [
    { title: "from", kind: "code", value: (row) => row.begin }, { title: "bytes", kind: "number", value: (row) => row.bytes },
    { title: "", value: (row) => row.accesses, cell: (row) => bar(row.accesses / most) }, { title: "accesses", kind: "number", value: (row) => row.accesses },
    { title: "accesses a byte", kind: "number", value: (row) => row.accesses / row.bytes },
  ], drawn.regions, { most: 24, figures: "regions" }));
}
