// @ts-check
// The source and the text of a kernel side by side, with what was recorded at each line.

import { choice, colour, element, say } from "../dom.js";
import { jsonOf } from "../data.js";
import { counted, number, shown } from "../format.js";

/** @typedef {Map<number, number>} Values of lines */

/** @param {HTMLElement} place @param {import("../main.js").TracePart} trace */
export async function draw(place, trace) {
  const data = trace.data.sources;
  if (!data?.kernels?.length) {
    place.append(element("p", {}, data?.fault ? shown(data.fault) : "The texts of this trace’s kernels cannot be read: its folder kernel/ has none."));
    return;
  }
  const names = new Map(trace.document.kernels.map((/** @type {any} */ kernel) => [kernel.kernel, kernel.demangled]));
  const best = data.kernels.findIndex((/** @type {any} */ kernel) => kernel.measures.length);
  const state = { kernel: Math.max(best, 0), measure: 0, file: -1 };
  const controls = element("div", { class: "controls" });
  const panes = element("div", { class: "panes" });
  const readout = element("div", { class: "readout" });
  const below = element("p", { class: "soft" });
  place.append(element("p", {}, "Numbers are what the probes recorded at a line; the stronger its colour, the more. Choose a line, by a click or by arrow keys, to see which ones belong together."), controls, readout, panes, below);
  await show();

  async function show() {
    const kernel = data.kernels[state.kernel];
    const text = await jsonOf(kernel.block);
    const measure = kernel.measures[Math.min(state.measure, kernel.measures.length - 1)];
    const lineOf = new Map(text.sites);
    /** @type {Map<number, [number, number]>} */
    const placeOf = new Map(text.places.map((/** @type {number[]} */ [line, file, at]) => [line, [file, at]]));
    /** @type {Map<number, number>} */
    const inFile = new Map();
    for (const [line] of placeOf.values()) inFile.set(line, (inFile.get(line) ?? 0) + 1);
    if (state.file < 0) {
      // The file with most lines that were probed.
      for (const [, line] of text.sites) {
        const found = placeOf.get(line);
        if (found) inFile.set(found[0], (inFile.get(found[0]) ?? 0) + 1e6);
      }
      state.file = [...inFile].sort((a, b) => b[1] - a[1])[0]?.[0] ?? -1;
    }
    const values = valuesOf(measure, (site) => lineOf.get(site));
    const sourceValues = valuesOf(measure, (site) => {
      const found = placeOf.get(lineOf.get(site) ?? -1);
      return found && found[0] === state.file ? found[1] : undefined;
    });
    const path = kernel.files[state.file];
    const block = path === undefined ? undefined : data.files[path];
    /** @type {string[]} */
    const lines = typeof block === "number" ? await jsonOf(block) : [];
    controls.replaceChildren(
      choice("Kernel", data.kernels.map((/** @type {any} */ entry, /** @type {number} */ at) => ({ value: String(at), text: shown(names.get(entry.kernel) ?? "", 90) })), String(state.kernel), (value) => { Object.assign(state, { kernel: Number(value), measure: 0, file: -1 }); void show(); }),
      kernel.measures.length ? choice("Numbers", kernel.measures.map((/** @type {any} */ entry, /** @type {number} */ at) => ({ value: String(at), text: shown(entry.name) })), String(state.measure), (value) => { state.measure = Number(value); void show(); }) : element("span", { class: "soft" }, "No map of this kernel has numbers by site."),
      kernel.files.length > 1 ? choice("Source", kernel.files.map((/** @type {string} */ file, /** @type {number} */ at) => ({ value: String(at), text: shown(file, 80) })), String(state.file), (value) => { state.file = Number(value); void show(); }) : "",
    );
    /** @type {Map<number, number[]>} */
    const textLinesOf = new Map();
    for (const [line, [file, at]] of placeOf) {
      if (file === state.file) textLinesOf.set(at, [...(textLinesOf.get(at) ?? []), line]);
    }
    const right = pane(`${kernel.text}${kernel.cut ? ", of this kernel" : ""}`, text.lines, values, text.shown, (line) => {
      const found = placeOf.get(line);
      choose([line], found && found[0] === state.file ? [found[1]] : [], "text");
    });
    const seen = lines.length ? window_(lines, [...textLinesOf.keys(), ...sourceValues.keys()]) : [];
    const left = seen.length ? pane(shown(path, 120), seen, sourceValues, null, (line) => choose(textLinesOf.get(line) ?? [], [line], "source")) : null;
    const code = text.code?.lines ? codePane(text.code.lines, (line) => {
      const found = placeOf.get(line);
      choose(line ? [line] : [], found && found[0] === state.file ? [found[1]] : [], "code");
    }) : null;
    panes.replaceChildren(...[left, right, code].flatMap((one) => (one ? [one.root] : [])));
    readout.replaceChildren(left ? "" : note(path, block));
    const elsewhere = kernel.elsewhere ? `${counted(kernel.elsewhere, "instruction")} that probes matched ${kernel.elsewhere === 1 ? "is" : "are"} in functions whose text the trace has not. ` : "";
    below.textContent = elsewhere + shown(text.code?.says ?? text.code?.fault ?? (kernel.text.endsWith(".ptx") ? "neutrino-report --html PAGE --sass adds machine code." : ""), 1000);
    right.find([...values.keys()].sort((a, b) => a - b)[0]);
    left?.find([...sourceValues.keys()].sort((a, b) => a - b)[0]);

    /** @param {number[]} texts @param {number[]} sources @param {string} from the pane whose line is chosen */
    function choose(texts, sources, from) {
      right.mark(texts, from !== "text");
      left?.mark(sources, from !== "source");
      code?.mark(texts, from !== "code");
      const parts = [sources.length ? `line ${sources[0]} of the source${sourceValues.has(sources[0]) ? `: ${number(sourceValues.get(sources[0]))}` : ""}` : "", `${counted(texts.length, "line")} of the text`];
      readout.textContent = parts.filter(Boolean).join(", ");
      say(readout.textContent);
    }
  }
}

/**
 * Machine code beside the text. Lines are marked by those of the text that they come from.
 * @param {[string, string, number][]} lines offset, instruction, and the text's line, 0 if that is not known
 * @param {(line: number) => void} chosen
 */
function codePane(lines, chosen) {
  /** @type {Map<number, number[]>} */
  const rowsOf = new Map();
  lines.forEach(([, , line], at) => { if (line) rowsOf.set(line, [...(rowsOf.get(line) ?? []), at]); });
  const made = pane("machine code", lines.map(([, text], at) => [at, text]), new Map(), lines.map(([offset]) => offset), (at) => chosen(lines[at][2]));
  made.root.classList.add("machine");
  return {
    root: made.root,
    /** @param {number[]} texts @param {boolean} scrolls */
    mark(texts, scrolls) {
      made.mark(texts.flatMap((line) => rowsOf.get(line) ?? []).sort((a, b) => a - b), scrolls);
    },
  };
}

/** @param {string | undefined} path @param {any} why */
function note(path, why) {
  return element("p", { class: "soft" }, path === undefined ? "The kernel’s text names no source: it was compiled without line numbers (-lineinfo, or -g)." : `${shown(path)}: ${shown(why)}.`);
}

/**
 * The values of lines from those of sites.
 * @param {any} measure @param {(site: number) => number | undefined} lineOf @returns {Values}
 */
function valuesOf(measure, lineOf) {
  /** @type {Map<number, number[]>} */
  const known = new Map();
  for (const [site, value, count] of measure?.values ?? []) {
    const line = lineOf(site);
    if (line === undefined) continue;
    const had = known.get(line);
    if (!had) known.set(line, [value, count ?? 1]);
    else if (measure.kind === "max") had[0] = Math.max(had[0], value);
    else if (measure.kind === "min") had[0] = Math.min(had[0], value);
    else known.set(line, [had[0] + value, had[1] + (count ?? 0)]);
  }
  return new Map([...known].map(([line, [value, count]]) => [line, measure.kind === "mean" ? value / count : value]));
}

/** The lines about those that are used. @param {string[]} lines @param {number[]} used @returns {[number, string][]} */
function window_(lines, used) {
  const from = Math.max(Math.min(...used, lines.length) - 12, 1);
  const to = Math.min(Math.max(...used, 1) + 12, lines.length);
  return lines.slice(from - 1, to).map((text, at) => [from + at, text]);
}

/**
 * A text with a value at some lines.
 * @param {string} title @param {[number, string][]} lines @param {Values} values @param {(number | string)[] | null} named what to show for their numbers
 * @param {(line: number) => void} chosen
 */
function pane(title, lines, values, named, chosen) {
  const most = Math.max(...values.values(), 0);
  const [red, green, blue] = colour("slow");
  // So that the numbers can be read on it.
  const strongest = colour("text")[0] > 127 ? 0.3 : 0.6;
  /** @type {Map<number, HTMLElement>} */
  const rows = new Map();
  const body = element("div", { class: "code lines", tabindex: 0, role: "region", "aria-label": title });
  for (const [at, [line, text]] of lines.entries()) {
    const value = values.get(line);
    const amount = element("span", { class: "amount", "data-figure": value === undefined ? false : "source", "data-value": value === undefined ? false : String(value) }, value === undefined ? "" : number(value));
    if (value !== undefined) amount.style.background = `rgba(${red}, ${green}, ${blue}, ${most > 0 ? 0.12 + strongest * (value / most) : 0.12})`;
    const row = element(value === undefined ? "div" : "button", { class: "line", type: value === undefined ? false : "button", onclick: () => chosen(line), "data-line": line },
      element("span", { class: "at" }, named ? named[at] : line), amount, element("span", { class: "text" }, shown(text.replaceAll("\t", "    "), 400) || " "));
    rows.set(line, row);
    body.append(row);
  }
  let current = -1;
  body.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    current = Math.min(Math.max(current + step, 0), lines.length - 1);
    const line = lines[current][0];
    chosen(line);
    rows.get(line)?.scrollIntoView({ block: "nearest" });
  });
  return {
    root: element("section", { class: "pane" }, element("h3", { class: "name" }, title), body),
    /** @param {number[]} marked @param {boolean} scrolls */
    mark(marked, scrolls) {
      for (const row of rows.values()) row.classList.remove("marked");
      for (const line of marked) rows.get(line)?.classList.add("marked");
      const at = lines.findIndex(([line]) => line === marked[0]);
      if (at >= 0) current = at;
      if (scrolls && marked.length) this.find(marked[0]);
    },
    /** Scroll to a line. @param {number} line */
    find(line) {
      const row = rows.get(line);
      if (row) body.scrollTop = row.offsetTop - body.clientHeight / 3;
    },
  };
}
