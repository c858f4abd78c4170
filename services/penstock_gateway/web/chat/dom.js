/** Elements made one by one: what a model or a person wrote is text here, never markup. */

/**
 * An element. properties: `class`, `text`, `on` ({event: listener}); all others are attributes,
 * where false and null mean none, and true an empty one.
 */
export function make(tag, properties = {}, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "text") element.textContent = value;
    else if (value === false || value == null) continue;
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...inside);
  return element;
}

/** The element with this id, which index.html has. */
export const at = (id) => document.getElementById(id);

const PATHS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M6.5 6.5h11v11h-11z",
  copy: "M9 9h10v10H9zM15 9V5H5v10h4",
  check: "M5 13l4 4L19 7",
  edit: "M5 19h3L19 8l-3-3L5 16zM14 7l3 3",
  again: "M19 12a7 7 0 1 1-2-5l2 2M19 4v5h-5",
  trash: "M5 7h14M10 7V5h4v2M7 7l1 12h8l1-12M10 11v5M14 11v5",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M13 6h4v4h-4zM7 14h4v4H7z",
  key: "M14 10a4 4 0 1 1-1-2.6M13 11l7 0v3M17 11v2",
  auto: "M12 4a8 8 0 0 0 0 16zM12 4a8 8 0 0 1 0 16",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6L7 7M17 17l1.4 1.4M18.4 5.6L17 7M7 17l-1.4 1.4",
  dark: "M19 14.5A7.5 7.5 0 0 1 9.5 5a7.5 7.5 0 1 0 9.5 9.5z",
  download: "M12 5v10M7 11l5 5 5-5M5 19h14",
  upload: "M12 16V5M7 10l5-5 5 5M5 19h14",
  file: "M7 4h7l4 4v12H7zM14 4v4h4M10 13h5M10 16.5h5",
  clip: "M18.5 11.5l-6.7 6.7a4 4 0 0 1-5.7-5.7l7-7a2.7 2.7 0 0 1 3.8 3.8l-6.9 6.9a1.3 1.3 0 0 1-1.9-1.9l6.2-6.2",
  microphone: "M12 4a2.5 2.5 0 0 0-2.5 2.5v5a2.5 2.5 0 0 0 5 0v-5A2.5 2.5 0 0 0 12 4zM6.5 11a5.5 5.5 0 0 0 11 0M12 16.5V20",
  speaker: "M5 10v4h3l4 4V6l-4 4zM15.5 9a4.2 4.2 0 0 1 0 6M18 6.5a8 8 0 0 1 0 11",
  book: "M12 6.5C10 5 7 4.7 4 5v13c3-.3 6 0 8 1.5 2-1.5 5-1.8 8-1.5V5c-3-.3-6 0-8 1.5zM12 6.5v13",
  forward: "M6 6l6 6-6 6M13 6l6 6-6 6",
};

/** A picture that says nothing to a screen reader: its button has the words. */
export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  for (const [key, value] of Object.entries({
    viewBox: "0 0 24 24", width: "18", height: "18", fill: name === "stop" ? "currentColor" : "none",
    stroke: "currentColor", "stroke-width": "1.7", "stroke-linecap": "round", "stroke-linejoin": "round",
    "aria-hidden": "true", class: "icon",
  })) svg.setAttribute(key, value);
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

/** A button with a picture; its words are its name and its tooltip. */
export function iconButton(name, words, listener, extra = "") {
  return make("button", {
    type: "button", class: `plain ${extra}`.trim(), "aria-label": words, title: words, on: { click: listener },
  }, icon(name));
}

/** Copies text, and shows on the button that it did. Returns whether it could. */
export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    if (!copyBySelection(text)) return false;
  }
  const before = [...button.childNodes];
  const words = button.getAttribute("aria-label");
  button.replaceChildren(icon("check"));
  button.setAttribute("aria-label", "Copied");
  setTimeout(() => {
    button.replaceChildren(...before);
    if (words === null) button.removeAttribute("aria-label");
    else button.setAttribute("aria-label", words);
  }, 1500);
  return true;
}

/** The old way, for a page that came over plain HTTP: browsers give it no clipboard. */
function copyBySelection(text) {
  const focused = document.activeElement;
  const area = make("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return done;
}
