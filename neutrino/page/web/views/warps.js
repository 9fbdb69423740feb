// @ts-check
// From when to when each warp of a multiprocessor ran.

import { choice, element, line } from "../dom.js";
import { columns } from "../data.js";
import { counted, number, shown, unitOf } from "../format.js";
import { Plot } from "../plot.js";
import { firstAbove, longest, rowsOf } from "../spans.js";
import { kernelName, paint } from "./schedule.js";

/** @param {HTMLElement} place @param {import("../main.js").TracePart} trace */
export async function draw(place, trace) {
  const rows = (trace.data.spans.kernels ?? []).map((/** @type {any} */ row) => ({
    ...row, drawn: row.drawn.filter((/** @type {any} */ drawn) => drawn.warps !== undefined),
  })).filter((/** @type {any} */ row) => row.drawn.length);
  if (!rows.length) {
    place.append(element("p", {}, trace.data.spans.fault ? shown(trace.data.spans.fault) : "No map of this trace has times of warps. Probe with ",
      element("code", {}, "-p block_sched"), " or ", element("code", {}, "-p warp_timeline"), "."));
    return;
  }
  const state = { kernel: 0, launch: longest(rows[0].drawn), sm: 0 };
  const controls = element("div", { class: "controls" });
  const picture = element("div");
  place.append(element("p", {}, "Each row is a place for a warp on one multiprocessor, with the warps that were there one after the other; orange ones took much longer than the median."), controls, picture);
  await show();

  async function show() {
    const row = rows[state.kernel];
    const drawn = row.drawn[Math.min(state.launch, row.drawn.length - 1)];
    const unit = unitOf(row, trace.document.clock);
    const all = await columns(drawn.warps);
    const sms = [...new Set(/** @type {Iterable<number>} */ (all.sm))];
    const sm = sms[Math.min(state.sm, sms.length - 1)];
    const from = all.sm.indexOf(sm);
    const to = from + all.sm.filter((/** @type {number} */ id) => id === sm).length;
    const first = from < to ? all.begin[from] : 0;
    const begin = Float64Array.from(all.begin.subarray(from, to), (time) => time - first);
    const took = all.took.subarray(from, to);
    // The name of a warp: its place among the multiprocessor's.
    const warps = rowsOf(begin, took, Float64Array.from(begin, (_, at) => from + at), [{ id: sm, from: 0, to: to - from }]);
    const lanes = warps.groups[0].to - warps.groups[0].from;
    const plot = new Plot({
      label: `Warps of multiprocessor ${sm} in launch ${drawn.launch}: ${to - from} warps, ${lanes} at most at once`,
      height: Math.min(Math.max(lanes * 12, 80), 640), range: [0, Math.max(warps.last, 1)], rows: lanes, least: Math.min(16, Math.max(warps.last, 1)),
      draw: (ground) => paint(ground, warps, true).records,
      describe: (at, y) => {
        const lane = Math.min(Math.floor(y * lanes), lanes - 1);
        const found = firstAbove(warps.end, warps.rowFrom[lane], warps.rowFrom[lane + 1], at);
        if (found >= warps.rowFrom[lane + 1] || warps.begin[found] > at) return `At ${number(Math.round(at))} ${unit}: no warp in this row`;
        const warp = warps.name[found];
        return `Block ${number(all.block[warp])}, warp ${number(all.warp[warp])}\nfrom ${number(warps.begin[found])} to ${number(warps.end[found])} ${unit}\ntook ${number(warps.end[found] - warps.begin[found])} ${unit}, the median warp ${number(warps.median)}`;
      },
    });
    controls.replaceChildren(
      choice("Kernel and map", rows.map((/** @type {any} */ entry, /** @type {number} */ at) => ({ value: String(at), text: `${kernelName(trace, entry)} · ${entry.map}` })), String(state.kernel), (value) => { Object.assign(state, { kernel: Number(value), launch: longest(rows[Number(value)].drawn), sm: 0 }); void show(); }),
      choice("Launch", row.drawn.map((/** @type {any} */ entry, /** @type {number} */ at) => ({ value: String(at), text: `launch ${number(entry.launch)}` })), String(state.launch), (value) => { Object.assign(state, { launch: Number(value), sm: 0 }); void show(); }),
      choice("Multiprocessor", sms.map((id, at) => ({ value: String(at), text: String(id) })), String(state.sm), (value) => { state.sm = Number(value); void show(); }),
      element("span", { class: "zoom" }, plot.buttons()),
    );
    const left = drawn.blocks && drawn.warp_sms < drawn.sms ? ` The page has the warps of the first ${counted(drawn.warp_sms, "multiprocessor")} of ${number(drawn.sms)}.` : "";
    picture.replaceChildren(
      line([[number(to - from), "warps", "warps/count"], [number(lanes), "at most at once"], [`${number(warps.median)} ${unit}`, "for the median warp"]]),
      plot.root,
      element("p", { class: "soft" }, `Times from the multiprocessor’s first warp on, in ${unit}.${left}`),
    );
  }
}
