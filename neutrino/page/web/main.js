// @ts-check
// The page: its head, the list of views, and which of them is shown.

import { button, choice, element } from "./dom.js";
import { jsonOf } from "./data.js";
import { shown } from "./format.js";

/**
 * A trace of the page. document: as `neutrino-report --json` has it; data: of views, by name.
 * @typedef {{document: any, data: Record<string, any>}} TracePart
 * @typedef {{name: string, title: string, draw: (place: HTMLElement, trace: TracePart, page: Page) => void | Promise<void>}} View
 * @typedef {{traces: TracePart[], comparison: any, go: (view: string) => void}} Page
 */

/** Show the page. @param {View[]} views */
export async function start(views) {
  const head = /** @type {HTMLElement} */ (document.getElementById("head"));
  const list = /** @type {HTMLElement} */ (document.getElementById("views"));
  const main = /** @type {HTMLElement} */ (document.getElementById("view"));
  /** @type {any} */
  let contents;
  try {
    contents = await jsonOf(Number(document.getElementById("document")?.textContent));
  } catch (error) {
    main.replaceChildren(element("p", {}, `The page’s data cannot be read: ${error}. It may be cut off.`));
    document.body.dataset.ready = "failed";
    return;
  }
  let trace = 0;
  let name = "";
  /** @type {Page} */
  const page = { traces: contents.traces, comparison: contents.comparison, go };
  const buttons = views.map((view) => button(view.title, () => go(view.name), { "data-view": view.name }));
  list.replaceChildren(...buttons);

  /** @param {string} wanted */
  function go(wanted) {
    if (location.hash !== `#${wanted}`) {
      // In a frame without an origin the address may not be changed.
      try { history.pushState(null, "", `#${wanted}`); } catch { /* The view is shown all the same. */ }
    }
    void show(wanted);
  }

  /** @param {string} wanted */
  async function show(wanted) {
    const view = views.find((entry) => entry.name === wanted) ?? views[0];
    name = view.name;
    for (const entry of buttons) {
      if (entry.dataset.view === name) entry.setAttribute("aria-current", "page");
      else entry.removeAttribute("aria-current");
    }
    const place = element("div", { "data-of": name });
    main.replaceChildren(element("h2", {}, view.title), place);
    document.body.dataset.ready = "";
    try {
      if (page.traces.length) await view.draw(place, page.traces[trace], page);
      else place.append(element("p", {}, "There is no trace in this page."));
    } catch (error) {
      place.append(element("p", { class: "note" }, `This view cannot be drawn: ${error}`));
      console.error(error);
    }
    if (name === view.name) document.body.dataset.ready = name;
  }

  function titles() {
    const { document: facts } = page.traces[trace];
    const command = Array.isArray(facts.process?.argv) ? facts.process.argv.join(" ") : "unknown command";
    const devices = facts.devices.map((/** @type {any} */ device) => `${device.name} (${device.arch})`).join(", ");
    const began = facts.started ? new Date(facts.started * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC" : "";
    const line = [`pid ${facts.process?.pid ?? "?"} on ${facts.process?.host ?? "?"}`, began, devices].filter(Boolean).join(" · ");
    head.replaceChildren(
      element("h1", { class: "name" }, shown(command)),
      element("p", {}, element("span", { class: "name" }, shown(line))),
    );
    if (page.traces.length > 1) {
      const options = page.traces.map((part, at) => ({ value: String(at), text: shown(part.document.path) }));
      head.append(choice("Trace", options, String(trace), (value) => { trace = Number(value); titles(); void show(name); }));
    }
  }

  if (page.traces.length) titles();
  addEventListener("popstate", () => void show(location.hash.slice(1)));
  // An address of a page may be changed by hand.
  addEventListener("hashchange", () => { if (location.hash.slice(1) !== name && location.hash !== "#view") void show(location.hash.slice(1)); });
  document.querySelector(".skip")?.addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
  await show(location.hash.slice(1));
}
