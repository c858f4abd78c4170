/**
 * The blocks of a Markdown text: paragraphs, headings, lists, quotes, code, tables, rules. HTML is
 * text. Of whole lines, every block but the last stays as it is whatever is appended: render.js
 * shows a growing text by that.
 */

const DEPTH = 8;
// None of these can be made to look at a line more than a few times, whatever it holds.
const FENCE = /^ {0,3}(`{3,}(?!.*`)|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s(.*))?$/;
const RULE = /^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( +)(.*)|$)/;
// Within a paragraph, a line that begins with the number of a year is no list.
const FIRST = /^ {0,3}(?:[-*+]|1[.)])(?: |$)/;
const DELIMITER = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const BLANK = /^\s*$/;
const MATHS = /^ {0,3}(\$\$|\\\[)/;
const TASK = /^\[([ xX])\] +/;

/**
 * [{type, line, …}]; line: the index of its first line.
 * heading: level, text.  paragraph: text.  code: language, text, closed.  quote: blocks.
 * list: ordered, start, loose, items ([blocks]), done (for each item true, false, or null where it is
 * no task).  table: head, rows, aligned.  maths: text.  rule.
 */
export function parseBlocks(text) {
  return parse(text.replaceAll("\r", "").split("\n"), 0);
}

function parse(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (BLANK.test(lines[at])) {
      at += 1;
      continue;
    }
    const { end, ...block } = next(lines, at, depth);
    blocks.push({ ...block, line: at });
    at = end;
  }
  return blocks;
}

function next(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return fence(lines, at);
  const heading = HEADING.exec(line);
  if (heading) return { type: "heading", level: heading[1].length, text: title(heading[2] ?? ""), end: at + 1 };
  if (RULE.test(line)) return { type: "rule", end: at + 1 };
  if (depth < DEPTH && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEPTH && ITEM.test(line)) return list(lines, at, depth);
  if (isTable(lines, at)) return table(lines, at);
  if (MATHS.test(line)) return maths(lines, at);
  return paragraph(lines, at, depth);
}

/** Without the marks that may stand behind it: `## Title ##`. */
function title(text) {
  const words = text.trim().split(" ");
  if (/^#+$/.test(words.at(-1))) words.pop();
  return words.join(" ").trimEnd();
}

/** Whether a line begins something that ends a paragraph. */
function interrupts(lines, at, depth) {
  const line = lines[at];
  return BLANK.test(line) || FENCE.test(line) || HEADING.test(line) || RULE.test(line)
    || (depth < DEPTH && (QUOTE.test(line) || FIRST.test(line))) || MATHS.test(line) || isTable(lines, at);
}

/**
 * A formula of its own, from one mark to the other. As in TeX no line of it is empty: what has no end
 * before that is a paragraph.
 */
function maths(lines, at) {
  const mark = MATHS.exec(lines[at])[1];
  const last = mark === "$$" ? "$$" : "\\]";
  let end = at;
  for (let from = lines[at].indexOf(mark) + mark.length; end < lines.length && !BLANK.test(lines[end]); from = 0) {
    const found = lines[end].indexOf(last, from);
    end += 1;
    if (found < 0) continue;
    if (lines[end - 1].slice(found + last.length).trim()) break;
    const text = lines.slice(at, end).join("\n").trim();
    return { type: "maths", text: text.slice(mark.length, -last.length).trim(), end };
  }
  return { type: "paragraph", text: lines.slice(at, end).map((line) => line.trim()).join("\n"), end };
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !interrupts(lines, end, depth)) end += 1;
  return { type: "paragraph", text: lines.slice(at, end).map((line) => line.trim()).join("\n"), end };
}

function fence(lines, at) {
  const [, mark, info] = FENCE.exec(lines[at]);
  const [language] = info.trim().split(/\s/, 1);
  const indent = lines[at].search(/\S/);
  const last = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}\\s*$`);
  const text = [];
  let end = at + 1;
  while (end < lines.length && !last.test(lines[end])) {
    text.push(lines[end].replace(new RegExp(`^ {0,${indent}}`), ""));
    end += 1;
  }
  const closed = end < lines.length;
  return { type: "code", language, text: text.join("\n"), closed, end: closed ? end + 1 : end };
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && (QUOTE.test(lines[end]) || (end > at && !interrupts(lines, end, depth)))) end += 1;
  const inside = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return { type: "quote", blocks: parse(inside, depth + 1), end };
}

function list(lines, at, depth) {
  const [, , mark] = ITEM.exec(lines[at]);
  const ordered = mark.length > 1;
  const items = [];
  const done = [];
  let loose = false;
  let end = at;
  while (end < lines.length) {
    const match = ITEM.exec(lines[end]);
    if (!match || (match[2].length > 1) !== ordered || RULE.test(lines[end])) break;
    const item = readItem(lines, end, match, depth);
    const task = TASK.exec(item.lines[0]);
    if (task) item.lines[0] = item.lines[0].slice(task[0].length);
    done.push(task ? task[1] !== " " : null);
    items.push(parse(item.lines, depth + 1));
    loose ||= item.blank && item.end < lines.length && ITEM.test(lines[item.end]);
    loose ||= items.at(-1).filter((block) => block.type === "paragraph").length > 1;
    end = item.end;
  }
  return { type: "list", ordered, start: ordered ? Number.parseInt(mark, 10) : 1, loose, items, done, end };
}

/** One item's own lines, without their indent. Models indent nested lists by as little as two. */
function readItem(lines, at, match, depth) {
  const spaces = match[3]?.length ?? 1;
  const width = match[1].length + match[2].length + (spaces > 4 ? 1 : spaces);
  const own = [match[4] ?? ""];
  let end = at + 1;
  let blank = false;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (BLANK.test(line)) {
      own.push("");
      blank = true;
      continue;
    }
    const indent = line.search(/\S/);
    const inside = indent >= width || (indent >= match[1].length + 2 && ITEM.test(line.trimStart()));
    if (!inside && (blank || ITEM.test(line) || interrupts(lines, end, depth))) break;
    own.push(line.slice(Math.min(indent, width)));
    blank = false;
  }
  return { lines: own, end, blank };
}

function isTable(lines, at) {
  const below = lines[at + 1];
  return below !== undefined && lines[at].includes("|") && below.includes("-")
    && DELIMITER.test(below) && cells(below).length === cells(lines[at]).length;
}

function table(lines, at) {
  const head = cells(lines[at]);
  const aligned = cells(lines[at + 1]).map((cell) => {
    if (!cell.endsWith(":")) return "";
    return cell.startsWith(":") ? "center" : "right";
  });
  const rows = [];
  let end = at + 2;
  for (; end < lines.length && lines[end].includes("|") && !BLANK.test(lines[end]); end += 1) {
    const row = cells(lines[end]);
    rows.push(head.map((_, column) => row[column] ?? ""));
  }
  return { type: "table", head, aligned, rows, end };
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).slice(0, 50).map((cell) => cell.trim().replaceAll("\\|", "|"));
}
