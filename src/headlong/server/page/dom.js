/** Make and find elements. Text always goes in as text; nothing here parses markup. */

const SVG = "http://www.w3.org/2000/svg";

/** Find an element that the page is known to have. */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`The page has no #${id}.`);
  return found;
}

/** Make an element: `make("button", { class: "button", onclick: f }, "Send")`. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Make an SVG element in the same way. */
export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Say something to screen readers, without showing it. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** Show rows of [name, value] in a definition list; rows without a value are left out. */
export function fillList(list, rows) {
  const known = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  list.replaceChildren(...known.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}
