/**
 * What stands within a line of Markdown: code, emphasis, links. The result is a tree of plain
 * objects; render.js makes nodes of it. Hostile text costs no more than a multiple of its length.
 */

const DEPTH = 6;
const LABEL = 300;
const TARGET = 2048;
const SPECIAL = /[\\`*_~[!<$\n]|https?:\/\//g;
const FORMULA = 2000;
const BARE = /https?:\/\/[^\s<>"'`]{1,2048}/y;
const ANGLE = /<((?:https?:\/\/|mailto:)[^\s<>]{0,2048})>/y;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;

/** An address that a link may lead to, whole and normalised; null for every other. */
export function safeAddress(text) {
  let url;
  try {
    url = new URL(text.trim());
  } catch {
    return null;
  }
  return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

/** [{type: text|code|maths|strong|em|del|link|break, text?, display?, href?, inside?}] */
export function parseInline(text, depth = 0, inLink = false) {
  const found = [];
  const dead = new Set(); // what has no end behind here: not looked for again
  let plain = "";
  let from = 0;
  const put = (token) => {
    if (plain) found.push({ type: "text", text: plain });
    plain = "";
    found.push(token);
  };
  while (from < text.length) {
    SPECIAL.lastIndex = from;
    const special = SPECIAL.exec(text);
    if (!special) break;
    plain += text.slice(from, special.index);
    const made = one(text, special.index, dead, depth, inLink);
    if (made.token) put(made.token);
    else plain += made.text;
    from = made.end;
  }
  plain += text.slice(from);
  if (plain) found.push({ type: "text", text: plain });
  return found;
}

/** What begins at `start`: {token, end}; or {text, end} where it stands for itself. */
function one(text, start, dead, depth, inLink) {
  const letter = text[start];
  const next = text[start + 1] ?? "";
  const itself = { text: letter, end: start + 1 };
  if (letter === "\n") return { token: { type: "break" }, end: start + 1 };
  if (letter === "$" || (letter === "\\" && (next === "(" || next === "["))) {
    const formula = maths(text, start, dead);
    if (formula) return formula;
  }
  if (letter === "\\") return PUNCTUATION.test(next) ? { text: next, end: start + 2 } : itself;
  if (letter === "`") return code(text, start, dead);
  if (letter === "*" || letter === "_" || letter === "~") return emphasis(text, start, dead, depth, inLink);
  if (inLink) return itself;
  if (letter === "h") return bare(text, start) ?? itself;
  if (letter === "<") return angle(text, start) ?? itself;
  if (depth >= DEPTH || (letter === "!" && next !== "[")) return itself;
  return link(text, start + (letter === "!" ? 1 : 0), dead, depth) ?? itself;
}

function code(text, start, dead) {
  const ticks = /`+/y;
  ticks.lastIndex = start;
  const [open] = ticks.exec(text);
  if (!dead.has(open)) {
    for (let at = text.indexOf(open, start + open.length); at >= 0;) {
      ticks.lastIndex = at;
      const [run] = ticks.exec(text);
      if (run.length === open.length) {
        let inside = text.slice(start + open.length, at).replaceAll("\n", " ");
        if (/^ .*[^ ].* $/.test(inside)) inside = inside.slice(1, -1);
        return { token: { type: "code", text: inside }, end: at + run.length };
      }
      at = text.indexOf(open, at + run.length);
    }
    dead.add(open);
  }
  return { text: open, end: start + open.length };
}

const ENDS = { "\\(": "\\)", "\\[": "\\]", $$: "$$", $: "$" };

/**
 * A formula; null where none begins. Prices aren't any: within single dollars, no blank stands at
 * either end, no digit behind, and what begins with a digit has a sign of a formula.
 */
function maths(text, start, dead) {
  const mark = text[start] === "\\" || text[start + 1] === "$" ? text.slice(start, start + 2) : "$";
  const last = ENDS[mark];
  if (dead.has(last)) return null;
  const from = start + mark.length;
  const near = text.slice(from, from + FORMULA);
  const end = mark === "$" ? dollar(near) : near.indexOf(last);
  if (end < 0) {
    if (near.length < FORMULA && !near.includes(last)) dead.add(last);
    return null;
  }
  const inside = near.slice(0, end);
  if (!inside.trim() || (mark === "$" && (/^\s|\n/.test(inside) || (/^\d/.test(inside) && !/[\\^_=+{]/.test(inside))))) return null;
  return { token: { type: "maths", text: inside.trim(), display: mark === "$$" || mark === "\\[" }, end: from + end + last.length };
}

/** Where the dollar stands that ends a formula, one of the next few; -1: nowhere. */
function dollar(near) {
  let end = near.indexOf("$");
  for (let i = 0; i < 4 && end >= 0; i += 1) {
    if (!/[\s\\]/.test(near[end - 1] ?? " ") && !/[\d$]/.test(near[end + 1] ?? "")) return end;
    end = near.indexOf("$", end + 1);
  }
  return -1;
}

function bare(text, start) {
  if (start > 0 && WORD.test(text[start - 1])) return null;
  BARE.lastIndex = start;
  const match = BARE.exec(text);
  if (!match) return null;
  let shown = match[0].replace(/[.,;:!?*_~]+$/, "");
  while (shown.endsWith(")") && shown.split(")").length > shown.split("(").length) shown = shown.slice(0, -1);
  const href = safeAddress(shown);
  if (!href) return null;
  return { token: { type: "link", href, inside: [{ type: "text", text: shown }] }, end: start + shown.length };
}

function angle(text, start) {
  ANGLE.lastIndex = start;
  const match = ANGLE.exec(text);
  const href = match && safeAddress(match[1]);
  if (!href) return null;
  return { token: { type: "link", href, inside: [{ type: "text", text: match[1] }] }, end: start + match[0].length };
}

/** [label](target "title"); start: of the bracket. A picture is a link: nothing is loaded. */
function link(text, start, dead, depth) {
  if (dead.has("](")) return null;
  if (text.indexOf("](", start) < 0) {
    dead.add("](");
    return null;
  }
  let open = 0;
  let close = start;
  for (const most = Math.min(text.length, start + LABEL); close < most; close += 1) {
    if (text[close] === "\\") close += 1;
    else if (text[close] === "[") open += 1;
    else if (text[close] === "]" && (open -= 1) === 0) break;
  }
  if (open !== 0 || text[close + 1] !== "(") return null;
  const target = /\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+(?:"[^"]{0,300}"|'[^']{0,300}'))?\s*\)/y;
  const rest = text.slice(close + 1, close + 1 + TARGET);
  const match = target.exec(rest);
  const href = match && safeAddress(match[1]);
  if (!href) return null;
  const inside = parseInline(text.slice(start + 1, close), depth + 1, true);
  return { token: { type: "link", href, inside }, end: close + 1 + match[0].length };
}

const KINDS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };

function emphasis(text, start, dead, depth, inLink) {
  const letter = text[start];
  const twice = text[start + 1] === letter;
  const mark = twice ? letter + letter : letter;
  const first = text[start + mark.length] ?? " ";
  const type = KINDS[mark];
  const itself = { text: mark, end: start + mark.length };
  if (!type || depth >= DEPTH || dead.has(mark) || /\s/.test(first)) return itself;
  if (letter === "_" && start > 0 && WORD.test(text[start - 1])) return itself;
  const end = closing(text, start + mark.length, mark);
  if (end < 0) {
    dead.add(mark);
    return itself;
  }
  const inside = parseInline(text.slice(start + mark.length, end), depth + 1, inLink);
  return { token: { type, inside }, end: end + mark.length };
}

/** Where the mark that ends an emphasis stands; -1: nowhere. */
function closing(text, from, mark) {
  const letter = mark[0];
  for (let at = text.indexOf(mark, from); at >= 0;) {
    let run = 1;
    while (text[at + run] === letter) run += 1;
    // ***: the inner one ends first, so the outer one is at the run's end.
    const fits = mark.length === 2 ? run >= 2 : run % 2 === 1;
    const place = at + run - mark.length;
    const before = text[at - 1] ?? " ";
    const after = text[at + run] ?? " ";
    if (fits && place > from && !/[\s\\]/.test(before) && !(letter === "_" && WORD.test(after))) return place;
    at = text.indexOf(mark, at + run);
  }
  return -1;
}
