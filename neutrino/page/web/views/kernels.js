// @ts-check
// Kernels by the time that their launches took, as their blocks' own times say.

import { bar } from "../chart.js";
import { element } from "../dom.js";
import { counted, number, shown, unitOf } from "../format.js";
import { table } from "../table.js";

/** @param {HTMLElement} place @param {import("../main.js").TracePart} trace */
export function draw(place, trace) {
  const { document: facts } = trace;
  const rows = (trace.data.spans.kernels ?? []).map((/** @type {any} */ row) => ({
    ...row, facts: facts.kernels.find((/** @type {any} */ kernel) => kernel.kernel === row.kernel) ?? {},
  }));
  if (!rows.length) {
    place.append(element("p", {}, "No map of this trace has times of blocks or warps. Probe with ",
      element("code", {}, "-p block_sched"), " or ", element("code", {}, "-p warp_timeline"), " for them."));
    return;
  }
  const sampled = rows.some((/** @type {any} */ row) => row.timed < row.launches);
  place.append(element("p", {},
    "A launch takes from its first block’s begin to its last one’s end; where multiprocessors have clocks of their own, ",
    "that is the longest such time on one of them. What the probes cost is in these times.",
    sampled ? " Of kernels with very many launches, some that are evenly chosen were timed." : ""));
  const units = new Set(rows.map((/** @type {any} */ row) => unitOf(row, facts.clock)));
  for (const unit of units) {
    const chosen = rows.filter((/** @type {any} */ row) => unitOf(row, facts.clock) === unit);
    chosen.sort((/** @type {any} */ a, /** @type {any} */ b) => b.time.sum - a.time.sum);
    const all = Math.max(...chosen.map((/** @type {any} */ row) => row.time.sum), 1);
    place.append(
      element("h3", {}, `In ${unit}, of ${counted(chosen.length, "map")} with times`),
      table(`Kernels by time in ${unit}`, [
        { title: "kernel", kind: "name", value: (row) => row.facts.demangled ?? "" },
        { title: "map", value: (row) => row.map },
        { title: "", value: (row) => row.time.sum, cell: (row) => bar(row.time.sum / all) },
        { title: "in all", kind: "number", value: (row) => row.time.sum },
        { title: "launches timed", kind: "number", value: (row) => row.timed, cell: (row) => (row.timed < row.launches ? `${number(row.timed)} of ${number(row.launches)}` : number(row.timed)) },
        { title: "least", kind: "number", value: (row) => row.time.min },
        { title: "median", kind: "number", value: (row) => row.time.median },
        { title: "most", kind: "number", value: (row) => row.time.max },
        { title: "blocks", kind: "number", value: (row) => row.blocks },
        { title: "time of blocks", kind: "number", value: (row) => row.busy },
      ], chosen, { figures: "times" }),
    );
  }
  const others = facts.kernels.filter((/** @type {any} */ kernel) => !rows.some((/** @type {any} */ row) => row.kernel === kernel.kernel));
  if (others.length) {
    place.append(element("p", { class: "soft" }, `Without times of blocks: ${others.slice(0, 8).map((/** @type {any} */ kernel) => shown(kernel.demangled, 120)).join("; ")}${others.length > 8 ? ` and ${others.length - 8} more` : ""}.`));
  }
}
