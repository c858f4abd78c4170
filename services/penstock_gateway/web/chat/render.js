/** Markdown as nodes, made by createElement and text alone; and a view of a text that grows. */

import { copy, icon, make } from "./dom.js";
import { highlight } from "./highlight.js";
import { parseInline } from "./inline.js";
import { parseBlocks } from "./markdown.js";
import { mathsNode } from "./maths.js";

/** The nodes of a line's tokens. */
export function inlineNodes(tokens) {
  return tokens.map((token) => {
    if (token.type === "text") return document.createTextNode(token.text);
    if (token.type === "break") return document.createElement("br");
    if (token.type === "code") return make("code", { text: token.text });
    if (token.type === "maths") return mathsNode(token.text, token.display);
    const inside = inlineNodes(token.inside);
    if (token.type !== "link") return make(token.type, {}, ...inside);
    return make("a", { href: token.href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...inside);
  });
}

const line = (text) => inlineNodes(parseInline(text));

/** One block's element. */
export function blockNode(block) {
  switch (block.type) {
    case "heading":
      // The page's own headings are above these.
      return make(`h${Math.min(6, block.level + 2)}`, {}, ...line(block.text));
    case "code":
      return codeNode(block);
    case "quote":
      return make("blockquote", {}, ...block.blocks.map(blockNode));
    case "list":
      return listNode(block);
    case "table":
      return tableNode(block);
    case "maths":
      return mathsNode(block.text, true);
    case "rule":
      return make("hr");
    default:
      return make("p", {}, ...line(block.text));
  }
}

function codeNode({ language, text, closed }) {
  const body = make("code", { text });
  if (closed) highlight(body, language.toLowerCase(), text);
  const button = make("button", {
    type: "button", class: "plain", "aria-label": "Copy this code", title: "Copy this code",
    on: { click: () => copy(body.textContent, button) },
  }, icon("copy"));
  const head = make("div", { class: "code-head" }, make("span", { text: language || "text" }), button);
  const name = language ? `Code, ${language}` : "Code";
  return make("div", { class: "code" }, head, make("pre", { tabindex: "0", role: "group", "aria-label": name }, body));
}

function listNode({ ordered, start, loose, items, done }) {
  const made = items.map((blocks, index) => make("li", { class: done[index] === null ? null : "task" },
    ...(done[index] === null ? [] : [mark(done[index])]),
    ...blocks.flatMap((block) => (!loose && block.type === "paragraph" ? line(block.text) : [blockNode(block)]))));
  return make(ordered ? "ol" : "ul", { start: ordered && start !== 1 ? start : null }, ...made);
}

/** Of a task: a sign, not a control, since nothing would come of a press. */
function mark(done) {
  return make("span", { class: `mark ${done ? "done" : "open"}`, role: "img", "aria-label": done ? "Done" : "Not done" });
}

function tableNode({ head, aligned, rows }) {
  const cell = (tag) => (text, column) => make(tag, { class: aligned[column] || null }, ...line(text));
  return make("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" },
    make("table", {},
      make("thead", {}, make("tr", {}, ...head.map(cell("th")))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell("td")))))));
}

/**
 * Shows a text that grows. Blocks that can't change any more are made once; only the last one is
 * made anew, and a code block's text is appended to.
 */
export class MarkdownView {
  #element;
  #tail = "";
  #nodes = [];
  #code = null;

  constructor(element) {
    this.#element = element;
  }

  /** Shows this much more of the text. */
  append(text) {
    this.#tail += text.replaceAll("\r", "");
    if (this.#code && this.#grow()) return;
    if (text.includes("\n")) this.#settle();
    const blocks = parseBlocks(this.#tail);
    this.#replace(blocks.map(blockNode));
    const last = blocks.at(-1);
    this.#code = blocks.length === 1 && last.type === "code" && !last.closed ? last : null;
  }

  /** Makes final what whole lines can't change any more. */
  #settle() {
    const whole = this.#tail.slice(0, this.#tail.lastIndexOf("\n") + 1);
    const blocks = parseBlocks(whole);
    if (blocks.length < 2) return;
    this.#replace(blocks.slice(0, -1).map(blockNode));
    this.#nodes = [];
    const lines = this.#tail.split("\n");
    this.#tail = lines.slice(blocks.at(-1).line).join("\n");
  }

  /** An open code block only gets more text. False where it doesn't do. */
  #grow() {
    const [block, ...others] = parseBlocks(this.#tail);
    if (others.length || block?.type !== "code" || block.closed || block.language !== this.#code.language) return false;
    const text = this.#nodes[0]?.querySelector("code")?.firstChild;
    if (!text || !block.text.startsWith(text.data)) return false;
    text.appendData(block.text.slice(text.data.length));
    this.#code = block;
    return true;
  }

  #replace(nodes) {
    for (const node of this.#nodes) node.remove();
    this.#element.append(...nodes);
    this.#nodes = nodes;
  }
}
