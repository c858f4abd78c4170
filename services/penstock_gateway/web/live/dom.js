/** Elements, made without any markup in text: what a tenant named is only ever a text node. */

const SVG = "http://www.w3.org/2000/svg";

/** An element. attributes: `class`, `text`, attributes by name; null and false are left out. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Sets a text only where it has changed: twice a second, for thousands of cells. */
export function write(node, text) {
  const wanted = String(text);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/** A panel with a heading. Returns its node, its body, and the place for a remark in its head. */
export function panel(name, title) {
  const id = `live-${name}`;
  const note = make("p", { class: "lv-note" });
  const body = make("div", { class: "lv-body" });
  const node = make(
    "section",
    { class: `lv-panel lv-${name}`, "aria-labelledby": id },
    make("header", {}, make("h2", { id, text: title }), note),
    body,
  );
  return { node, body, note };
}
