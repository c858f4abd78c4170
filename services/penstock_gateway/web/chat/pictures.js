/** How media look on the page. */

import { make } from "./dom.js";

/**
 * An element that shows what a description ({kind, name}) stands for. load: returns its blob, or a
 * promise of it; undefined where it is kept no more.
 */
export function pictureOf({ kind, name }, load) {
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
