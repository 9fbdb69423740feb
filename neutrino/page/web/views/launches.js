// @ts-check
// When the program submitted its launches.

import { choice, colour, element, line } from "../dom.js";
import { columns } from "../data.js";
import { counted, duration, number, shown } from "../format.js";
import { Plot, pixel, ramp } from "../plot.js";
import { firstAbove } from "../spans.js";

const STATES = ["not used", "its data had not arrived", "its data are in the trace", "its data were lost", "ran without probes", "was measured only"];

/** A row of the picture: its name, and the places of its launches, in their order. @typedef {{text: string, at: number[]}} Row */

/** @param {HTMLElement} place @param {import("../main.js").TracePart} trace */
export async function draw(place, trace) {
  const data = trace.data.launches;
  if (!data?.launches) {
    place.append(element("p", {}, data?.fault ? shown(data.fault) : "No launch of a probed kernel is in this trace."));
    return;
  }
  const names = new Map(trace.document.kernels.map((/** @type {any} */ kernel) => [kernel.kernel, kernel.demangled]));
  const without = trace.document.coverage.launches - trace.document.coverage.probed;
  place.append(
    element("p", {}, "When the program submitted each launch. How long a launch took is not in these records: Block schedule has the times on the multiprocessors."),
    line([[number(data.launches), data.launches === 1 ? "launch" : "launches", "launches/count"], data.launches > 1 && [duration(data.time), "from the first to the last"]]),
  );
  if (without) place.append(element("p", { class: "soft" }, `${counted(without, "launch", "launches")} without probes ${without === 1 ? "has" : "have"} no time in the trace.`));
  if (data.kind === "moments") await moments(place, data, names);
  else await exact(place, data, names);
}

/** @param {HTMLElement} place @param {any} data @param {Map<number, string>} names */
async function exact(place, data, names) {
  const all = await columns(data.block);
  const controls = element("div", { class: "controls" });
  const picture = element("div");
  place.append(controls, picture);
  /** @type {Record<string, (at: number) => string>} */
  const ways = {
    kernel: (at) => shown(names.get(all.kernel[at]) ?? `kernel ${all.kernel[at]}`, 60),
    stream: (at) => `stream ${data.streams[all.stream[at]] ?? all.stream[at]}`,
    thread: (at) => `thread ${data.threads[all.thread[at]] ?? all.thread[at]}`,
    device: (at) => `device ${all.device[at]}`,
  };
  show("kernel");

  /** @param {string} by */
  function show(by) {
    /** @type {Map<number, Row>} */
    const groups = new Map();
    for (let at = 0; at < all.time.length; at += 1) {
      const id = all[by][at];
      let row = groups.get(id);
      if (!row) groups.set(id, (row = { text: ways[by](at), at: [] }));
      row.at.push(at);
    }
    const rows = [...groups.values()].sort((a, b) => b.at.length - a.at.length);
    const times = rows.map((row) => Float64Array.from(row.at, (at) => all.time[at]));
    const plot = new Plot({
      label: `${data.launches} launches over ${duration(data.time)}, in ${rows.length} rows`,
      height: Math.min(Math.max(rows.length * 22, 66), 900), range: [0, Math.max(data.time, 1)], rows: rows.length, least: Math.min(1000, Math.max(data.time, 1)),
      tick: (value) => duration(value, data.time),
      rowLabels: rows.map((row, at) => ({ at: (at + 0.5) / rows.length, text: row.text })),
      draw: (ground) => {
        const cells = new Float64Array(ground.width * rows.length);
        let touched = 0;
        times.forEach((time, row) => {
          let at = firstAbove(time, 0, time.length, ground.from - 1e-9);
          for (; at < time.length && time[at] <= ground.to; at += 1, touched += 1) {
            cells[row * ground.width + Math.min(Math.floor(((time[at] - ground.from) / (ground.to - ground.from)) * ground.width), ground.width - 1)] += 1;
          }
        });
        strips(ground, cells, rows.length, ground.width);
        return touched;
      },
      describe: (at, y, seen) => {
        const row = Math.min(Math.floor(y * rows.length), rows.length - 1);
        const next = firstAbove(times[row], 0, times[row].length, at);
        const near = [next - 1, next].filter((one) => one >= 0 && one < times[row].length).sort((a, b) => Math.abs(times[row][a] - at) - Math.abs(times[row][b] - at))[0];
        if (near === undefined || Math.abs(times[row][near] - at) > (seen.to - seen.from) / 60) return `${rows[row].text}, at ${duration(at, data.time)}: no launch`;
        const launch = rows[row].at[near];
        const grid = `${all.grid_x[launch]} × ${all.grid_y[launch]} × ${all.grid_z[launch]}`;
        const block = `${all.block_x[launch]} × ${all.block_y[launch]} × ${all.block_z[launch]}`;
        return `Launch ${number(all.number[launch])}: ${ways.kernel(launch)}\nafter ${number(all.time[launch])} ns, grid ${grid}, block ${block}\n${ways.stream(launch)}, ${ways.thread(launch)}${all.graph[launch] ? `, graph ${all.graph[launch]}` : ""}\n${STATES[all.state[launch]] ?? ""}`;
      },
    });
    controls.replaceChildren(
      choice("Rows", [["kernel", "kernels"], ["stream", "streams"], ["thread", "host threads"], ["device", "devices"]].map(([value, text]) => ({ value, text })), by, show),
      element("span", { class: "zoom" }, plot.buttons()),
    );
    picture.replaceChildren(plot.root);
  }
}

/** @param {HTMLElement} place @param {any} data @param {Map<number, string>} names */
async function moments(place, data, names) {
  const { kernel, cells } = await columns(data.block);
  const rows = Array.from(kernel, (id) => shown(names.get(Number(id)) ?? `kernel ${id}`, 60));
  const plot = new Plot({
    label: `${data.launches} launches over ${duration(data.time)}, of ${rows.length} kernels`,
    height: Math.min(Math.max(rows.length * 22, 66), 900), range: [0, Math.max(data.time, 1)], rows: rows.length, least: (data.time / data.moments) * 8,
    tick: (value) => duration(value, data.time),
    rowLabels: rows.map((text, at) => ({ at: (at + 0.5) / rows.length, text })),
    draw: (ground) => {
      const drawn = new Float64Array(ground.width * rows.length);
      const scale = data.moments / data.time;
      let touched = 0;
      for (let row = 0; row < rows.length; row += 1) {
        for (let at = Math.floor(ground.from * scale); at < Math.min(ground.to * scale, data.moments); at += 1, touched += 1) {
          const x = Math.min(Math.max(Math.floor(((at / scale - ground.from) / (ground.to - ground.from)) * ground.width), 0), ground.width - 1);
          drawn[row * ground.width + x] += cells[row * data.moments + at];
        }
      }
      strips(ground, drawn, rows.length, ground.width);
      return touched;
    },
    describe: (at, y) => {
      const row = Math.min(Math.floor(y * rows.length), rows.length - 1);
      const moment = Math.min(Math.floor((at / data.time) * data.moments), data.moments - 1);
      return `${rows[row]}: ${counted(cells[row * data.moments + moment], "launch", "launches")} about ${duration(at, data.time)}`;
    },
  });
  place.append(
    element("p", { class: "soft" }, `There are too many launches for a page to have them one by one: it has how many of each kernel were submitted in each of ${number(data.moments)} moments.${data.left_out ? ` The ${data.left_out} kernels with fewest launches are left out.` : ""}`),
    element("div", { class: "controls" }, element("span", { class: "zoom" }, plot.buttons())), plot.root,
  );
}

/**
 * Paint rows of counts: stronger where there are more, and never so weak that a single one is not seen.
 * @param {import("../plot.js").Ground} ground @param {Float64Array} cells @param {number} rows @param {number} columns_
 */
export function strips(ground, cells, rows, columns_) {
  const { width, height, ratio } = ground;
  const pixels = new Uint32Array(ground.image.data.buffer);
  const empty = pixel(...colour("heat-0"));
  const colours = ramp([colour("heat-1"), colour("heat-2")]);
  let most = 1;
  for (let at = 0; at < cells.length; at += 1) if (cells[at] > most) most = cells[at];
  const scale = 255 / Math.log(most);
  pixels.fill(empty);
  const thick = Math.max(Math.round(ratio), 1);
  for (let row = 0; row < rows; row += 1) {
    const top = Math.floor((row * height) / rows);
    const bottom = Math.max(Math.floor(((row + 1) * height) / rows) - (height / rows >= 4 ? 2 : 0), top + 1);
    const start = top * width;
    for (let x = 0; x < width; x += 1) {
      const count = cells[row * columns_ + x];
      if (!count) continue;
      const value = colours[most > 1 ? Math.round(Math.log(count) * scale) : 102];
      const right = Math.min(x + thick + 1, width);
      for (let at = x; at < right; at += 1) pixels[start + at] = value;
    }
    for (let y = top + 1; y < bottom; y += 1) pixels.copyWithin(y * width, start, start + width);
  }
}
