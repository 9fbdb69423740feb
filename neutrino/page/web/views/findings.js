// @ts-check
// What the analyses found, the worst first.

import { element, unbroken } from "../dom.js";
import { counted, shown } from "../format.js";

/** Of a state that are seen at once. */
const MOST = 8;
const WORDS = { issue: "Issue", minor: "Minor", ok: "Within its thresholds", open: "Not judged" };

/** @param {HTMLElement} place @param {import("../main.js").TracePart} trace */
export function draw(place, trace) {
  const { findings, not_analysed: notRun } = trace.document;
  if (!findings?.length) place.append(element("p", {}, "No finding: the trace has nothing that an analysis looks at."));
  for (const state of /** @type {(keyof typeof WORDS)[]} */ (["issue", "minor", "ok", "open"])) {
    const found = (findings ?? []).filter((/** @type {any} */ finding) => stateOf(finding) === state);
    if (!found.length) continue;
    const cards = found.map((/** @type {any} */ finding) => card(finding, state));
    const isBad = state === "issue" || state === "minor";
    if (isBad && cards.length > MOST + 1) cards.push(element("details", { class: "calm" }, element("summary", {}, `${cards.length - MOST} more: ${WORDS[state].toLowerCase()}`), cards.splice(MOST)));
    if (!isBad) place.append(element("details", { class: "calm" }, element("summary", {}, `${counted(found.length, "finding")} ${state === "ok" ? "within their thresholds" : "not judged"}`), cards));
    else place.append(...cards);
  }
  if (notRun?.length) {
    place.append(element("h3", {}, "Not looked at"), element("p", {}, "The trace has no data for these; the probes would give them."),
      element("ul", {}, notRun.map((/** @type {any} */ row) => element("li", {}, `${shown(row.analysis)}: `, element("code", {}, row.probes.map((/** @type {string} */ probe) => `-p ${shown(probe)}`).join(" "))))));
  }
}

/** @param {any} finding @returns {keyof typeof WORDS} */
function stateOf(finding) {
  return finding.thresholds.length ? finding.state : "open";
}

/** @param {any} finding @param {keyof typeof WORDS} state */
function card(finding, state) {
  return element("article", { class: `finding ${state}`, "data-figure": "findings", "data-value": `${finding.analysis} ${finding.state}` },
    element("h3", {}, element("span", { class: "state" }, WORDS[state]), ` · ${shown(finding.analysis)} · `, element("span", { class: "name" }, shown(finding.demangled, 120))),
    element("p", { class: "sentence" }, shown(finding.sentence, 2000)),
    element("dl", { class: "numbers" }, finding.figures.map((/** @type {any} */ figure) => element("div", {},
      element("dt", { title: shown(figure.meaning) }, shown(figure.name)), element("dd", { "data-figure": `finding/${finding.analysis}/${figure.name}` }, shown(figure.text)),
    ))),
    finding.places.length ? element("ul", {}, finding.places.map((/** @type {any} */ entry) => element("li", { class: "name" }, shown([entry.place, entry.instruction].filter(Boolean).join(" · ") || "an unknown place"), entry.note ? `: ${shown(entry.note)}` : ""))) : null,
    finding.remedies.length && state !== "ok" ? element("p", {}, element("b", {}, "What to try: "), unbroken(shown(finding.remedies.join("; "), 1000))) : null,
    element("p", { class: "soft" }, `How sure: ${finding.sure.word}: ${shown(finding.sure.sentences.join("; "), 2000)}`),
    finding.thresholds.length ? element("p", { class: "soft" }, finding.thresholds.map(threshold).join("; ")) : null,
    element("p", { class: "soft" }, "Again: ", element("code", {}, shown(finding.command, 1000))),
  );
}

/** @param {any} row @returns {string} */
function threshold(row) {
  const way = row.below ? "at most" : "at least";
  const parts = [row.minor !== null ? `minor where ${row.figure} is ${way} ${row.minor}` : "", row.issue !== null ? `issue ${row.minor === null ? `where ${row.figure} is ` : ""}${way} ${row.issue}` : ""];
  return shown(parts.filter(Boolean).join(", "));
}
