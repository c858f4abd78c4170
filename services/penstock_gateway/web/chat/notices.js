/** Short words at the edge of the page, and words for a screen reader. */

import { at, iconButton, make } from "./dom.js";

/**
 * Shows a notice. action: [words, listener], which also takes it away.  stays: until it is closed;
 * otherwise 8 s, and longer while the pointer or the focus is on it.  one: replaces the notice with
 * the same name. Returns what takes it away.
 */
export function notify(text, { action = null, stays = false, one = "", bad = false } = {}) {
  const places = at("notices");
  if (one) places.querySelector(`[data-one="${one}"]`)?.remove();
  const box = make("div", { class: bad ? "notice bad" : "notice", "data-one": one || null }, make("p", { text }));
  const away = () => box.remove();
  if (action) {
    const [words, listener] = action;
    box.append(make("button", { type: "button", class: "link", text: words, on: { click: () => (away(), listener()) } }));
  }
  box.append(iconButton("close", "Close this notice", away));
  places.append(box);
  speak(text);
  if (!stays) {
    let left = 8;
    const clock = setInterval(() => {
      if (!box.isConnected) clearInterval(clock);
      else if (!box.matches(":hover, :focus-within") && (left -= 1) <= 0) away();
    }, 1000);
  }
  return away;
}

/** Says something to a screen reader, once it has finished what it says now. */
export function speak(text) {
  const spoken = at("spoken");
  spoken.textContent = "";
  // A change in a later turn: the same words twice are said twice.
  setTimeout(() => (spoken.textContent = text), 50);
}
