// @ts-check
// What the maps have: distributions of records, histograms, totals, and tables by key or site.

import { bar, distribution } from "../chart.js";
import { choice, element } from "../dom.js";
import { address, counted, number, share, shown } from "../format.js";
import { table } from "../table.js";

const MOST_FIELDS = 6;

/** @param {HTMLElement} place @param {import("../main.js").TracePart} trace */
export function draw(place, trace) {
  const kernels = trace.document.kernels.filter((/** @type {any} */ kernel) => kernel.maps.length);
  if (!kernels.length) {
    place.append(element("p", {}, "No kernel of this trace has a map."));
    return;
  }
  const picture = element("div");
  const options = kernels.map((/** @type {any} */ kernel, /** @type {number} */ at) => ({ value: String(at), text: shown(kernel.demangled, 90) }));
  place.append(element("div", { class: "controls" }, choice("Kernel", options, "0", (value) => show(Number(value)))), picture);
  show(0);

  /** @param {number} at */
  function show(at) {
    const kernel = kernels[at];
    picture.replaceChildren(...kernel.maps.map((/** @type {any} */ map) => mapOf(kernel, map)));
  }

  /** @param {any} kernel @param {any} map */
  function mapOf(kernel, map) {
    const section = element("section", {}, element("h3", {}, shown(map.name)), element("p", { class: "soft" }, says(map)));
    if (map.buckets) section.append(distribution(`${map.name}: values by bucket`, map.buckets, { figures: "buckets", write: map.unit === "address" ? address : undefined }));
    if (map.keys) section.append(keysOf(map));
    if (map.fields.length) {
      const totals = map.fields.some((/** @type {any} */ field) => field.total !== null);
      section.append(table(`Fields of ${map.name}`, [
        { title: "field", kind: "name", value: (row) => row.name },
        ...["min", "median", "max"].map((title) => /** @type {import("../table.js").TableColumn} */ ({ title, kind: "number", value: (row) => row[title], cell: (row) => fieldText(row, title) })),
        .../** @type {any[]} */ (totals ? [{ title: "total", kind: "number", value: (/** @type {any} */ row) => row.total ?? "" }] : []),
        .../** @type {any[]} */ (map.fields.some((/** @type {any} */ field) => "mean" in field) ? [{ title: "values", kind: "number", value: (/** @type {any} */ row) => row.values }, { title: "mean", kind: "number", value: (/** @type {any} */ row) => row.mean }] : []),
        .../** @type {any[]} */ (map.fields.some((/** @type {any} */ field) => field.since_first) ? [{ title: "since the launch’s first", value: (/** @type {any} */ row) => (row.since_first ? `in ${row.unit}${row.since_first.clocks ? "; not comparable between multiprocessors" : ""}` : "") }] : []),
      ], map.fields, { figures: "fields" }));
    }
    if (map.sites.length) section.append(sitesOf(map));
    const values = trace.data.distributions.maps?.find((/** @type {any} */ entry) => entry.kernel === kernel.kernel && entry.map === map.name);
    for (const field of values?.fields.slice(0, MOST_FIELDS) ?? []) {
      if (field.buckets.filter((/** @type {any} */ bucket) => bucket.count).length < 2) continue;
      const part = values.counted < values.records ? ` of ${number(values.counted)} of ${number(values.records)} records` : "";
      section.append(element("h4", {}, `${shown(field.name)}${part}`), distribution(`${map.name}.${field.name}: records by value`, field.buckets, { write: map.fields.find((/** @type {any} */ row) => row.name === field.name)?.unit === "address" ? address : undefined }));
    }
    return section;
  }
}

/** A number of a field: an address in hexadecimal, a time since its launch’s first one. @param {any} field @param {string} name @returns {string} */
function fieldText(field, name) {
  return field.unit === "address" ? address(field[name]) : number(field.since_first ? field.since_first[name] : field[name]);
}

/** @param {any} map @returns {string} */
function says(map) {
  const keeps = ["array", "ring", "log"].includes(map.kind);
  const words = [keeps ? `${counted(map.records, "record")}, ${map.kind === "log" ? "as many as fit" : `up to ${map.cap}`} per ${map.level}`
    : `${map.kind} over all ${map.level}s${map.per ? ` of each ${map.per}` : ""}: ${counted(map.records, map.per ? "result" : "launch", map.per ? "results" : "launches")}`];
  if (map.dropped) words.push(`${number(map.dropped)} dropped`);
  if (map.all_zero) words.push(`${number(map.all_zero)} all zeros, which may be of places that nothing was saved to`);
  return words.join("; ");
}

/** @param {any} map */
function keysOf(map) {
  const kept = Object.keys(map.keys[0]?.kept ?? {});
  const by = kept.includes("sum") ? "sum" : "count";
  /** @param {any} row */
  const size = (row) => Number(by === "sum" ? row.kept.sum : row.count) || 0;
  const most = map.keys.reduce((/** @type {number} */ sum, /** @type {any} */ row) => Math.max(sum, size(row)), 1);
  const places = map.keys.some((/** @type {any} */ row) => row.place || row.instruction);
  /** @type {import("../table.js").TableColumn[]} */
  const columns = [
    { title: shown(map.key ?? "key"), kind: "number", value: (row) => row.key, ...(map.unit === "address" ? { cell: (/** @type {any} */ row) => address(row.key) } : {}) },
    { title: "", value: size, cell: (row) => bar(size(row) / most) },
    { title: "count", kind: "number", value: (row) => row.count },
    ...kept.map((name) => /** @type {import("../table.js").TableColumn} */ ({ title: name, kind: "number", value: (row) => row.kept[name] })),
  ];
  if (kept.includes("sum")) columns.push({ title: "mean", kind: "number", value: (row) => (row.count ? Number(row.kept.sum) / row.count : 0) });
  if (places) columns.push({ title: "place", kind: "name", value: (row) => row.place }, { title: "instruction", kind: "code", value: (row) => row.instruction });
  return table(`Keys of ${map.name}`, columns, map.keys, { most: 24, figures: "keys" });
}

/** @param {any} map */
function sitesOf(map) {
  const all = map.sites.reduce((/** @type {number} */ sum, /** @type {any} */ row) => sum + row.records, 0);
  const most = map.sites[0]?.records || 1;
  return table(`Records of ${map.name} by site`, [
    { title: "site", kind: "number", value: (row) => row.number }, { title: "", value: (row) => row.records, cell: (row) => bar(row.records / most) },
    { title: "records", kind: "number", value: (row) => row.records }, { title: "share", value: (row) => row.records, cell: (row) => share(row.records, all) },
    { title: "place", kind: "name", value: (row) => row.place }, { title: "instruction", kind: "code", value: (row) => row.instruction },
  ], map.sites, { most: 24, figures: "sites" });
}
