/** Searching the kept conversations: in titles, and in all that was written. */

import { make } from "./dom.js";

/** Characters of an excerpt before and behind what was found. */
const BEFORE = 16;
const AFTER = 80;
/** Letters of a text that is looked for. */
export const MOST_WANTED = 200;
/** Matches of a message that are marked. */
export const MOST_MARKED = 1000;

/** What finds a text in any case, whatever blanks are between its words; null where there is none. */
export function finder(wanted) {
  const words = wanted.slice(0, MOST_WANTED).trim().split(/\s+/).filter((word) => word);
  if (!words.length) return null;
  const source = words.map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("\\s+");
  return new RegExp(source, "giu");
}

/** A text around its first match: [before, match, after], on one line; null without a match. */
export function excerpt(text, find) {
  const match = text.matchAll(find).next().value;
  if (!match) return null;
  const [from, to] = [match.index, match.index + match[0].length];
  const flat = (part) => part.replace(/\s+/g, " ");
  const before = flat(Array.from(text.slice(Math.max(0, from - 2 * BEFORE), from)).slice(-BEFORE).join(""));
  const after = flat(Array.from(text.slice(to, to + 2 * AFTER)).slice(0, AFTER).join(""));
  return [(from > before.length ? "…" : "") + before.trimStart(), flat(match[0]), after];
}

/** A text as nodes, where matches are marked. find: null for none. */
export function marked(text, find) {
  const nodes = [];
  let from = 0;
  for (const match of find ? text.matchAll(find) : []) {
    nodes.push(text.slice(from, match.index), make("mark", { text: match[0] }));
    from = match.index + match[0].length;
  }
  return [...nodes, text.slice(from)];
}

/**
 * The first message with a match, where one that is shown comes before those of other branches:
 * {node, words: an excerpt}; null where there is none. conversation: a Conversation.
 */
export function hitIn(conversation, find) {
  const shown = conversation.path();
  const others = Object.values(conversation.record.nodes).filter((node) => !node.gone && !shown.includes(node));
  for (const node of [...shown, ...others.sort((a, b) => a.at - b.at)]) {
    const words = excerpt(node.content, find);
    if (words) return { node: node.id, words };
  }
  return null;
}

/** Marks the first MOST_MARKED matches within an element that stays as it is; returns the first one's element. */
export function mark(element, find) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const ranges = [];
  while (ranges.length < MOST_MARKED && walker.nextNode()) {
    const text = walker.currentNode;
    for (const match of text.data.matchAll(find)) {
      if (ranges.length === MOST_MARKED) break;
      const range = new Range();
      range.setStart(text, match.index);
      range.setEnd(text, match.index + match[0].length);
      ranges.push(range);
    }
  }
  if (typeof Highlight === "function") CSS.highlights.set("found", new Highlight(...ranges));
  return ranges[0]?.startContainer.parentElement ?? null;
}

/** Takes the marks away. */
export function unmark() {
  if (typeof Highlight === "function") CSS.highlights.delete("found");
}
