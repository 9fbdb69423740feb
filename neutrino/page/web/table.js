// @ts-check
// Tables whose columns sort by a press on their titles.

import { append, element, say } from "./dom.js";
import { alike, number, shown } from "./format.js";

/**
 * @typedef {{title: string, kind?: "number" | "name" | "code" | "short" | "text", value: (row: any) => any, cell?: (row: any) => Node | string}} TableColumn
 */

/**
 * Make a table. Only the first rows are drawn; a button draws the others.
 * @param {string} caption
 * @param {TableColumn[]} columns
 * @param {any[]} rows
 * @param {{most?: number, chosen?: (row: any) => void, figures?: string}} [options] figures: a name by which tests find the cells
 * @returns {HTMLElement}
 */
export function table(caption, columns, rows, options = {}) {
  const most = options.most ?? 50;
  let sorted = rows;
  let shownRows = most;
  /** @type {{at: number, down: boolean} | null} */
  let order = null;
  const isText = columns.some((column) => column.kind === "text");
  const body = element("tbody", { role: isText ? "rowgroup" : false });
  const written = columns.map((column) => (column.kind === "number" ? alike(rows.map(column.value)) : shown));
  const heads = columns.map((column, at) => {
    // A column without a title has bars of what another one says.
    if (!column.title) return element("td", { "aria-hidden": "true" });
    const head = element("th", { scope: "col", role: isText ? "columnheader" : false, class: column.kind === "number" ? "number" : false });
    head.appendChild(element("button", { type: "button", onclick: () => sort(at) }, column.title));
    return head;
  });
  const more = element("button", { type: "button", onclick: () => { shownRows = Infinity; fill(); } });
  const controls = element("div", { class: "controls" }, more);

  /** @param {number} at */
  function sort(at) {
    const down = order?.at === at ? !order.down : columns[at].kind === "number";
    order = { at, down };
    const value = columns[at].value;
    sorted = [...rows].sort((a, b) => compared(value(a), value(b)) * (down ? -1 : 1));
    heads.forEach((head, place) => {
      if (place === at) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    say(`sorted by ${columns[at].title}, ${down ? "descending" : "ascending"}`);
    fill();
  }

  function fill() {
    body.replaceChildren();
    for (const row of sorted.slice(0, shownRows)) {
      const line = element("tr", { role: isText ? "row" : false });
      columns.forEach((column, at) => {
        const value = column.value(row);
        const cell = element(column.title && at === 0 && column.kind !== "number" ? "th" : "td", {
          class: column.kind ?? false, scope: at === 0 && column.kind !== "number" ? "row" : false,
          // Where sentences are stacked, a cell says which column it is of.
          role: isText ? (column.title && at === 0 && column.kind !== "number" ? "rowheader" : "cell") : false,
          "data-title": isText && column.title && at ? column.title : false,
          "data-figure": options.figures && column.kind === "number" ? `${options.figures}/${column.title}` : false,
          "data-value": options.figures && column.kind === "number" ? String(value) : false,
        });
        append(cell, [column.cell ? column.cell(row) : written[at](value)]);
        line.appendChild(cell);
      });
      body.appendChild(line);
    }
    more.textContent = `All ${number(rows.length)} rows`;
    controls.hidden = shownRows >= rows.length;
  }

  fill();
  const made = element("table", { class: isText ? "texts" : false, role: isText ? "table" : false },
    element("caption", { class: "unseen" }, caption), element("thead", { role: isText ? "rowgroup" : false }, element("tr", { role: isText ? "row" : false }, heads)), body);
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, made, controls);
}

/** @param {any} a @param {any} b */
function compared(a, b) {
  const [left, right] = [Number(a), Number(b)];
  if (a !== "" && b !== "" && !Number.isNaN(left) && !Number.isNaN(right)) return left - right;
  return String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0;
}
