/** Colours for code. What finds them runs beside the page, and is ended where a text takes it long. */

import { make } from "./dom.js";

const LONGEST = 100_000;
const PATIENCE = 4000; // Milliseconds without a word; a worker that begins takes the first second.
const KEPT = 100;
/** What of a language's grammar has a colour; all else is plain. */
const COLOURS = {
  keyword: "keyword", literal: "literal", number: "literal", string: "string", regexp: "string", char: "string",
  comment: "comment", quote: "comment", title: "title", section: "title", function: "title", class: "title",
  type: "type", built_in: "type", tag: "keyword", name: "keyword", attr: "attr", attribute: "attr", property: "attr",
  variable: "attr", symbol: "literal", meta: "comment", addition: "string", deletion: "literal", "selector-tag": "keyword",
  "selector-class": "title", "selector-id": "title", operator: "plain", subst: "plain",
};

const made = new Map();
const waiting = new Map(); // By number, the oldest first: the worker takes them in that order.
let worker = null;
let watchdog = 0;
let number = 0;

/** Gives the text of a code element its colours, now or soon. It stays the same text. */
export function highlight(element, language, text) {
  if (!language || !text || text.length > LONGEST || !/^[\w+#.-]{1,30}$/.test(language)) return;
  const key = `${language}\n${text}`;
  if (made.has(key)) {
    show(element, text, made.get(key));
    return;
  }
  number += 1;
  waiting.set(number, { element, key, language, text });
  if (!worker) start();
  else {
    worker.postMessage({ number, language, text });
    if (waiting.size === 1) watch();
  }
}

/** Another worker, for all that wait. */
function start() {
  worker = new Worker(new URL("./highlighter.js", import.meta.url), { type: "module" });
  worker.addEventListener("message", ({ data }) => answered(data));
  worker.addEventListener("error", giveUp);
  for (const [id, { language, text }] of waiting) worker.postMessage({ number: id, language, text });
  watch();
}

function watch() {
  clearTimeout(watchdog);
  if (waiting.size) watchdog = setTimeout(giveUp, PATIENCE);
}

function answered({ number: id, pieces }) {
  const asked = waiting.get(id);
  waiting.delete(id);
  watch();
  if (!asked) return;
  keep(asked.key, pieces);
  show(asked.element, asked.text, pieces);
}

/** The text that takes so long stays plain, and so do all of its kind. */
function giveUp() {
  worker.terminate();
  worker = null;
  clearTimeout(watchdog);
  const [first] = waiting;
  if (!first) return;
  waiting.delete(first[0]);
  keep(first[1].key, []);
  if (waiting.size) start();
}

function keep(key, pieces) {
  if (made.size >= KEPT) made.delete(made.keys().next().value);
  made.set(key, pieces);
}

function show(element, text, pieces) {
  // Another text, or none that it knows: it stays as it is.
  if (element.textContent !== text || pieces.map(([, part]) => part).join("") !== text) return;
  element.replaceChildren(...pieces.map(([scope, part]) => {
    const colour = COLOURS[scope?.split(".")[0]];
    return colour ? make("span", { class: `tok-${colour}`, text: part }) : document.createTextNode(part);
  }));
}
