// @ts-check
// What ran, and what share of it was seen.

import { element, fact } from "../dom.js";
import { counted, number, share, shown } from "../format.js";
import { table } from "../table.js";

/** @param {HTMLElement} place @param {import("../main.js").TracePart} trace @param {import("../main.js").Page} page */
export function draw(place, trace, page) {
  const { document: facts } = trace;
  const { coverage } = facts;
  place.append(
    element("div", { class: "facts" },
      fact(`${number(coverage.probed)} of ${number(coverage.launches)}`, `launches probed (${share(coverage.probed, coverage.launches)})`, "coverage"),
      fact(`${number(coverage.kernels_probed)} of ${number(coverage.kernels)}`, "kernels with probed launches", "coverage-kernels"),
      coverage.left_out ? fact(number(coverage.left_out), coverage.left_out === 1 ? "launch was not chosen" : "launches were not chosen") : null,
      fact(facts.complete ? "complete" : "not complete", facts.complete ? "the process ended the trace itself" : "the process was killed or still runs"),
    ),
  );
  if (facts.clock === "steps") {
    place.append(element("p", { class: "note" }, "This is the embedded device: times are steps of the interpreter, an order of events and no durations."));
  }
  for (const note of facts.notes) place.append(element("p", { class: "note name" }, shown(note, 2000)));
  place.append(element("h3", {}, "Probed kernels"));
  if (!facts.kernels.length) place.append(element("p", {}, "No kernel was probed; Coverage says why."));
  else {
    place.append(table("Probed kernels", [
      { title: "kernel", kind: "name", value: (row) => row.demangled },
      { title: "launches", kind: "number", value: (row) => row.launches.probed },
      { title: "with data", kind: "number", value: (row) => row.launches.written },
      { title: "not probed", kind: "number", value: (row) => row.launches.not_probed },
      { title: "registers", value: (row) => (row.registers ? `${row.registers.original} → ${row.registers.twin}` : "–") },
      { title: "sites", kind: "number", value: (row) => row.sites },
      { title: "maps", kind: "short", value: (row) => listed(row.maps.map((/** @type {any} */ map) => map.name)) },
    ], facts.kernels, { figures: "kernels" }));
  }
  const lost = coverage.launches - coverage.probed;
  if (lost > 0) {
    place.append(element("p", {}, `${counted(lost, "launch", "launches")} that ${lost === 1 ? "was" : "were"} chosen ran without probes. `,
      element("button", { type: "button", onclick: () => page.go("coverage") }, "Why, and what helps")));
  }
}

/** The first of some names, and how many more there are. @param {string[]} names @returns {string} */
function listed(names) {
  return names.length <= 4 ? names.join(", ") : `${names.slice(0, 3).join(", ")} and ${number(names.length - 3)} more`;
}
