// @ts-check
// What was not probed, why, and what helps.

import { bar } from "../chart.js";
import { element, line, unbroken } from "../dom.js";
import { number, share, shown } from "../format.js";
import { table } from "../table.js";

/** @param {HTMLElement} place @param {import("../main.js").TracePart} trace */
export function draw(place, trace) {
  const { coverage, kernels } = trace.document;
  // Those that were not chosen are not missed: they come last.
  const rows = trace.document.not_probed.filter((/** @type {any} */ row) => row.launches > 0).sort((/** @type {any} */ a, /** @type {any} */ b) => last(a) - last(b));
  place.append(line([
    [`${number(coverage.probed)} of ${number(coverage.launches)}`, `launches probed (${share(coverage.probed, coverage.launches)})`],
    [`${number(coverage.kernels_probed)} of ${number(coverage.kernels)}`, "kernels"],
    coverage.left_out > 0 && [number(coverage.left_out), coverage.left_out === 1 ? "launch was not chosen" : "launches were not chosen"],
  ]));
  /** @type {Map<string, any>} */
  const reasons = new Map();
  for (const row of rows) {
    const known = reasons.get(row.reason) ?? { reason: row.reason, text: row.text, launches: 0, kernels: 0, remedy: trace.data.coverage.remedies?.[row.reason] ?? "" };
    known.launches += row.launches;
    known.kernels += 1;
    reasons.set(row.reason, known);
  }
  const all = [...reasons.values()].sort((a, b) => last(a) - last(b) || b.launches - a.launches);
  const most = Math.max(...all.map((row) => row.launches), 1);
  if (!all.length) place.append(element("p", {}, "Every launch that was chosen was probed."));
  else {
    place.append(
      element("h3", {}, "Reasons"),
      table("Reasons why launches were not probed", [
        { title: "reason", kind: "name", value: (row) => `${row.reason}: ${row.text}`, cell: (row) => element("span", {}, unbroken(shown(`${row.reason}: ${row.text}`))) },
        { title: "", value: (row) => row.launches, cell: (row) => bar(row.launches / most) },
        { title: "launches", kind: "number", value: (row) => row.launches }, { title: "kernels", kind: "number", value: (row) => row.kernels },
        { title: "what helps", kind: "text", value: remedyOf, cell: (row) => element("span", {}, unbroken(shown(remedyOf(row), 1000))) },
      ], all, { figures: "reasons" }),
      element("h3", {}, "Kernels"),
      table("Kernels that were not probed", [
        { title: "kernel", kind: "name", value: (row) => row.demangled }, { title: "launches", kind: "number", value: (row) => row.launches },
        { title: "reason", value: (row) => row.reason }, { title: "detail", kind: "text", value: (row) => row.detail },
      ], rows, { most: 40, figures: "not-probed" }),
    );
  }
  const left = kernels.flatMap((/** @type {any} */ kernel) => kernel.probes_left_out.map((/** @type {any} */ probe) => ({ ...probe, kernel: kernel.demangled })));
  if (left.length) {
    place.append(element("h3", {}, "Probes that are left out of a kernel"), table("Probes that are left out", [
      { title: "kernel", kind: "name", value: (row) => row.kernel }, { title: "probe", value: (row) => row.probe }, { title: "tracepoint", kind: "code", value: (row) => row.tracepoint },
      { title: "why", kind: "text", value: (row) => row.detail }, { title: "what helps", kind: "text", value: (row) => row.remedy || "nothing is known" },
    ], left, { most: 40 }));
  }
  const cost = kernels.filter((/** @type {any} */ kernel) => kernel.launches.lost || kernel.launches.pending || kernel.launches.removed);
  if (cost.length) {
    place.append(element("h3", {}, "Probed launches without data"), table("Probed launches without data", [
      { title: "kernel", kind: "name", value: (row) => row.demangled }, { title: "lost", kind: "number", value: (row) => row.launches.lost },
      { title: "not arrived", kind: "number", value: (row) => row.launches.pending }, { title: "removed", kind: "number", value: (row) => row.launches.removed ?? 0 },
    ], cost));
  }
  if (trace.document.notes.length) place.append(element("p", { class: "soft" }, "Notes are in Overview."));
}

/** @param {any} row @returns {number} */
function last(row) {
  return row.reason === "not-selected" ? 1 : 0;
}

/** @param {any} row @returns {string} */
function remedyOf(row) {
  return row.remedy || (row.reason === "not-selected" ? "choose them, too" : "nothing is known");
}
