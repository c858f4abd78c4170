/** Answers read aloud, by the browser's own voices. Where it has none, nothing of this is shown. */

import { icon, iconButton } from "./dom.js";
import { notify } from "./notices.js";

/** Characters that are spoken at a time: within longer texts some browsers fall silent. */
const PIECE = 220;
const voices = globalThis.speechSynthesis ?? null;

/** What is being read: {id, pieces}, the pieces that are still to come. */
let reading = null;

if (voices) {
  const known = () => document.documentElement.classList.toggle("has-voices", voices.getVoices().length > 0);
  known();
  voices.addEventListener?.("voiceschanged", known);
  voices.cancel(); // Of a page that was here before.
  addEventListener("pagehide", () => hush());
}

/** A button that reads what an element shows, and stops that; chat.css hides it without a voice. */
export function reader(id, element) {
  const button = iconButton("speaker", "Read aloud", () => (reading?.id === id ? hush() : read(id, spoken(element))), "aloud");
  button.dataset.reads = id;
  show(button);
  return button;
}

/** Falls silent; with an id, only where that is read. */
export function hush(id = reading?.id) {
  if (!reading || reading.id !== id) return;
  reading = null;
  voices.cancel();
  showAll();
}

function read(id, text) {
  voices.cancel();
  reading = { id, pieces: piecesOf(text) };
  showAll();
  next(reading);
}

function next(own) {
  if (own !== reading) return;
  if (!own.pieces.length) return hush();
  const piece = new SpeechSynthesisUtterance(own.pieces.shift());
  piece.lang = navigator.language;
  piece.addEventListener("end", () => next(own));
  piece.addEventListener("error", ({ error }) => {
    if (own !== reading) return;
    hush();
    notify(`The browser can't read this aloud: ${error}.`, { one: "aloud", bad: true });
  });
  own.speaks = piece; // Else it may be collected in mid-sentence, and never end.
  voices.speak(piece);
}

function showAll() {
  for (const button of document.querySelectorAll("[data-reads]")) show(button);
}

function show(button) {
  const is = reading?.id === button.dataset.reads;
  const words = is ? "Stop reading" : "Read aloud";
  if (button.title === words && button.firstChild) return;
  button.replaceChildren(icon(is ? "stop" : "speaker"));
  button.setAttribute("aria-label", words);
  button.title = words;
}

/** What is said of an element: its text, a line for each block; code and formulas are only named. */
export function spoken(element) {
  const copy = element.cloneNode(true);
  for (const each of copy.querySelectorAll(".code")) each.replaceChildren("Code.");
  for (const each of copy.querySelectorAll(".maths")) each.replaceChildren("formula");
  for (const each of copy.querySelectorAll("td, th")) each.append(", ");
  for (const each of copy.querySelectorAll("br, p, li, tr, h3, h4, h5, h6, .code")) each.after("\n");
  return copy.textContent.replace(/[ \t]+/g, " ").replace(/ *\n\s*/g, "\n").trim();
}

/** A text in pieces of at most PIECE characters: lines, cut behind sentences, else between words. */
export function piecesOf(text) {
  const pieces = [];
  for (const line of text.split("\n")) {
    let rest = line.trim();
    while (rest.length > PIECE) {
      const near = rest.slice(0, PIECE);
      const sentence = Math.max(...[". ", "! ", "? ", "; ", "。", "！", "？"].map((mark) => near.lastIndexOf(mark)));
      const cut = sentence > 0 ? sentence + 1 : near.lastIndexOf(" ");
      pieces.push(rest.slice(0, cut > 0 ? cut : PIECE).trim());
      rest = rest.slice(cut > 0 ? cut : PIECE).trim();
    }
    if (rest) pieces.push(rest);
  }
  return pieces;
}
