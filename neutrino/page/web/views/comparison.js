// @ts-check
// Two runs compared: what changed by more than the launches of each differ among themselves.

import { element, line } from "../dom.js";
import { counted, number, shown } from "../format.js";
import { table } from "../table.js";

const SVG = "http://www.w3.org/2000/svg";

/** @param {HTMLElement} place @param {import("../main.js").TracePart} trace @param {import("../main.js").Page} page */
export function draw(place, trace, page) {
  const found = page.comparison;
  if (!found) {
    place.append(element("p", {}, "This page is of one run. ", element("code", {}, "neutrino-report A --diff B --html PAGE"), " compares two in a page."));
    return;
  }
  const changed = found.kernels.filter((/** @type {any} */ kernel) => kernel.changed);
  const others = found.kernels.filter((/** @type {any} */ kernel) => !kernel.changed);
  place.append(
    element("p", { class: "name" }, `${shown(found.first)} → ${shown(found.second)}`),
    line([[counted(changed.length, "kernel"), "changed", "comparison/changed"], [number(others.length), "did not, or are not judged"],
      [`${number(found.threshold_percent)} %`, "and more beyond the noise of the launches count as a change"]]),
    element("p", { class: "soft" }, found.figures_judged_together ? `A bar is where the change is: all ${number(found.figures_judged_together)} intervals together miss in ${number(found.false_alarms_percent)} % of comparisons at most. The grey band is the threshold.` : "No figure has noise that intervals could be made of."),
  );
  if (!changed.length) place.append(element("p", {}, "Nothing changed beyond the threshold."));
  for (const kernel of changed) place.append(kernelOf(kernel, found));
  for (const [title, groups] of /** @type {[string, any[]][]} */ ([["Only in the first", found.only_first], ["Only in the second", found.only_second], ["Probed in one alone, and launched in both", found.probed_in_one]])) {
    if (groups.length) place.append(element("h3", {}, title), element("ul", {}, groups.map((group) => element("li", { class: "name" }, titleOf(group)))));
  }
  if (others.length) {
    place.append(element("details", {}, element("summary", {}, `${counted(others.length, "kernel")} without a change`), others.map((/** @type {any} */ kernel) => kernelOf(kernel, found))));
  }
}

/** @param {any} kernel @returns {string} */
function titleOf(kernel) {
  return `${shown(kernel.demangled, 120)}: grid ${kernel.grid.join(" × ")}, block ${kernel.block.join(" × ")}${kernel.shared ? `, shared ${number(kernel.shared)} B` : ""}`;
}

/** @param {any} kernel @param {any} found */
function kernelOf(kernel, found) {
  const facts = [`${number(kernel.launches)} → ${number(kernel.launches_second)} launches`];
  if (kernel.code_differs !== null) facts.push(kernel.code_differs ? "its code differs" : "the same code");
  const rows = [...kernel.figures, ...kernel.details];
  const far = Math.max(...rows.map((row) => Math.abs(percent(row.low ?? row.ratio)), 0), ...rows.map((row) => Math.abs(percent(row.high ?? row.ratio))), found.threshold_percent * 2, 1);
  return element("section", {},
    element("h3", { class: "name" }, titleOf(kernel)),
    element("p", { class: "soft" }, [...facts, ...kernel.notes].map((text) => shown(text)).join("; ")),
    table(`Figures of ${shown(kernel.demangled, 60)}`, [
      { title: "figure", kind: "name", value: (row) => `${row.where ? `${row.where}, ` : ""}${row.name}` },
      { title: "first", kind: "number", value: (row) => row.first }, { title: "second", kind: "number", value: (row) => row.second },
      { title: "unit", value: (row) => row.unit },
      { title: "change", kind: "short", value: (row) => Number(row.ratio), cell: (row) => (row.verdict === "not judged" ? "" : changeOf(row)) },
      { title: "where it is", value: (row) => Number(row.ratio), cell: (row) => interval(row, far, found.threshold_percent) },
      { title: "verdict", kind: "short", value: (row) => row.verdict, cell: (row) => (row.verdict === "not judged" ? `not judged: ${shown(row.reason)}` : row.verdict) },
    ], rows, { most: 30, figures: "comparison" }));
}

/** @param {any} ratio @returns {number} */
function percent(ratio) {
  const value = 100 * (Number(ratio) - 1);
  return Number.isFinite(value) ? value : 0;
}

/** @param {any} row @returns {string} */
function changeOf(row) {
  if (typeof row.ratio !== "number") return "from 0";
  const signed = (/** @type {number} */ value) => `${value >= 0 ? "+" : ""}${value.toFixed(1)} %`;
  if (row.low === null) return `${signed(percent(row.ratio))}${row.without_noise ? ", without noise" : ""}`;
  return `${signed(percent(row.ratio))} (${signed(percent(row.low))} to ${signed(percent(row.high))})`;
}

/** A bar from the least to the greatest change, around none. @param {any} row @param {number} far @param {number} threshold */
function interval(row, far, threshold) {
  if (row.verdict === "not judged" || row.low === null) return "";
  const x = (/** @type {number} */ value) => 80 + Math.max(Math.min(value / far, 1), -1) * 76;
  const drawn = document.createElementNS(SVG, "svg");
  drawn.setAttribute("viewBox", "0 0 160 16");
  drawn.setAttribute("class", `interval ${row.verdict}`);
  drawn.setAttribute("aria-hidden", "true");
  for (const [left, right, top, height, name] of /** @type {[number, number, number, number, string][]} */ ([
    [x(-threshold), x(threshold), 0, 16, "band"], [80, 80.8, 0, 16, "none"],
    [x(percent(row.low)), Math.max(x(percent(row.high)), x(percent(row.low)) + 1.5), 5, 6, "mark"], [x(percent(row.ratio)) - 1, x(percent(row.ratio)) + 1, 2, 12, "mark"],
  ])) {
    const part = document.createElementNS(SVG, "rect");
    for (const [key, value] of Object.entries({ x: left, y: top, width: right - left, height, class: name })) part.setAttribute(key, String(value));
    drawn.append(part);
  }
  return drawn;
}
