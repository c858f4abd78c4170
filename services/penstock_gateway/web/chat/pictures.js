/** How media look on the page. */

import { PDF } from "./documents.js";
import { icon, make } from "./dom.js";

/**
 * An element that shows what a description ({kind, name}) stands for. load: returns its blob, or a
 * promise of it; undefined where it is kept no more.
 */
export function pictureOf(description, load) {
  const { kind, name } = description;
  if (kind === "document") return documentOf(description);
  const still = kind === "image";
  const shown = still ? make("img", { alt: name, title: name }) : make(kind, { controls: true, preload: "metadata", "aria-label": name });
  const box = make("figure", { class: "medium" }, shown);
  const missing = () => box.replaceChildren(make("span", { class: "muted", text: name, title: "Can't be shown" }));
  Promise.resolve(load()).then((blob) => {
    if (!blob) return missing();
    // Freed once it is drawn: a long conversation doesn't hold its files in memory.
    const address = URL.createObjectURL(blob);
    if (still) shown.addEventListener("load", () => URL.revokeObjectURL(address));
    shown.addEventListener("error", () => {
      URL.revokeObjectURL(address);
      missing();
    });
    shown.src = address;
  }, missing);
  return box;
}

/** A document's name and what is known of it. */
function documentOf({ name, type, size, tokens }) {
  const known = [type === PDF ? "PDF" : "Text", amount(size)];
  if (tokens) known.push(`${tokens.toLocaleString("en")} tokens`);
  return make("figure", { class: "medium document" }, icon("file"),
    make("figcaption", {}, make("span", { class: "name", text: name, title: name }), make("span", { class: "muted known", text: known.join(" · ") })));
}

const amount = (bytes) => (bytes < 1024 ? `${bytes} bytes` : bytes < 1024 ** 2 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / 1024 ** 2).toFixed(1)} MiB`);
