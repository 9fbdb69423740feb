// @ts-check
// Elements of the page. What comes from a trace is only ever text: there is no way here to make markup of it.

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * Make an element.
 * @param {string} tag
 * @param {Record<string, any>} [attributes] `on…` are listeners, `class` and all others are attributes; false leaves one out
 * @param {...(Child | Child[])} children texts become text nodes
 * @returns {HTMLElement}
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value === true ? "" : String(value));
  }
  append(made, children);
  return made;
}

/**
 * Append children to a node; what is null or false is left out.
 * @param {Node} parent
 * @param {(Child | Child[])[]} children
 */
export function append(parent, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    parent.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** A sentence in whose options and names of files lines do not end. @param {string} text @returns {Child[]} */
export function unbroken(text) {
  return text.split(/(?<!\S)(--?[\w-]+)/).map((part, at) => (at % 2 ? element("span", { class: "option" }, part) : part));
}

/** Say something to a screen reader. @param {string} text */
export function say(text) {
  const place = document.getElementById("said");
  if (place) place.textContent = text;
}

/**
 * A choice with a label.
 * @param {string} label
 * @param {{value: string, text: string}[]} options
 * @param {string} chosen
 * @param {(value: string) => void} changed
 * @returns {HTMLElement}
 */
export function choice(label, options, chosen, changed) {
  const select = /** @type {HTMLSelectElement} */ (element("select", {
    onchange: () => changed(select.value),
  }));
  for (const option of options) {
    select.appendChild(element("option", { value: option.value, selected: option.value === chosen }, option.text));
  }
  return element("label", {}, label, select);
}

/** A button. @param {string} text @param {() => void} pressed @param {Record<string, any>} [more] @returns {HTMLElement} */
export function button(text, pressed, more = {}) {
  return element("button", { type: "button", onclick: pressed, ...more }, text);
}

/** A figure with what it is. @param {string} figure @param {string} text @param {string} [name] for tests @returns {HTMLElement} */
export function fact(figure, text, name = "") {
  return element("div", { class: "fact" }, element("b", { "data-figure": name || false }, figure), element("span", {}, text));
}

/**
 * A few figures in a line, each with what it is.
 * @param {([string, string, string?] | null | false)[]} figures figure, text, and a name for tests
 * @returns {HTMLElement}
 */
export function line(figures) {
  const shown = figures.flatMap((entry) => (entry ? [entry] : []));
  return element("div", { class: "figures" }, shown.map(([figure, text, name]) =>
    element("span", {}, element("b", { "data-figure": name ?? false }, figure), ` ${text}`)));
}

/** A colour of the page's style. @param {string} name without `--` @returns {[number, number, number]} */
export function colour(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const number = parseInt(text.slice(1), 16);
  return [(number >> 16) & 255, (number >> 8) & 255, number & 255];
}

/** A colour of the page's style, as text. @param {string} name @returns {string} */
export function colourText(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
