/** Formulas as MathML, made by KaTeX, which is loaded with the first of them. */

import { make } from "./dom.js";

const KEPT = 500;
const OPTIONS = {
  output: "mathml",
  throwOnError: true,
  trust: false, // No links, pictures or classes of the text's own.
  strict: "ignore",
  maxExpand: 500,
  maxSize: 20,
};
// KaTeX writes these two with style attributes, which the page's policy refuses.
const MACROS = { "\\pmb": "\\boldsymbol{#1}", "\\fcolorbox": "\\boxed{#3}" };

const made = new Map();
let loading = null;

/** An element for a formula; until KaTeX is there, and where it can't read it, as it was written. */
export function mathsNode(text, display) {
  const node = make(display ? "div" : "span", { class: "maths" });
  if (display) Object.assign(node, { tabIndex: 0 }).setAttribute("role", "group");
  if (display) node.setAttribute("aria-label", "Formula");
  if (globalThis.katex) fill(node, text, display);
  else {
    node.append(make("code", { text }));
    loading ??= import("../vendor/katex/katex.min.js");
    loading.then(() => fill(node, text, display), () => { loading = null; });
  }
  return node;
}

function fill(node, text, display) {
  node.replaceChildren(formula(text, display) ?? make("code", { text }));
}

/** The same formula is shown again with each piece of an answer that grows. */
function formula(text, display) {
  const key = `${display}${text}`;
  if (!made.has(key)) {
    if (made.size >= KEPT) made.delete(made.keys().next().value);
    made.set(key, rendered(text, display));
  }
  return made.get(key)?.cloneNode(true);
}

function rendered(text, display) {
  const place = make("span");
  try {
    globalThis.katex.render(text, place, { ...OPTIONS, displayMode: display, macros: { ...MACROS } });
  } catch {
    return null;
  }
  return place.querySelector("math");
}
