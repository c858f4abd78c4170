/** Documents of messages: which files are some, and what the server says of one before it is sent. */

import { headers } from "./api.js";

/** The types under which they are kept: the server tells by their bytes what they are. */
export const PDF = "application/pdf";
export const TEXT = "text/plain";

/** Files of code to which browsers give the type of a film, or none that says text. */
const CODE = /\.(ts|mts|cts|m2ts)$/i;

/** The type that a file is kept as; undefined where it is no document, but a medium. */
export function documentType({ name = "", type = "" }) {
  if (type === PDF || (!type && /\.pdf$/i.test(name))) return PDF;
  if (/^(image|audio|video|font)\//.test(type) && !CODE.test(name)) return undefined;
  return TEXT;
}

/** Model -> tokens of a prompt of one letter: what stands around every message. */
const around = new Map();

/**
 * Has the server read a document: {tokens} that it has in a prompt, {wrong} why it can't be read, or
 * {} where that isn't known now. part: of a message.  model: its name.
 */
export async function measured(part, model) {
  try {
    const [whole, rest] = await Promise.all([counted([part], model), around.get(model) ?? counted("a", model)]);
    if (rest.count) around.set(model, rest);
    if (whole.count && rest.count) return { tokens: Math.max(1, whole.count - rest.count + 1) };
    return whole.wrong ? { wrong: reason(whole.wrong) } : {};
  } catch {
    return {}; // No server, or no answer of one: what is sent says so.
  }
}

/** {count} of a prompt's tokens, or {wrong}: what is wrong with what it holds. */
async function counted(content, model) {
  const response = await fetch("tokenize", {
    method: "POST",
    headers: { "content-type": "application/json", ...headers() },
    body: JSON.stringify({ ...(model && { model }), messages: [{ role: "user", content }] }),
  });
  const said = await response.json();
  if (response.ok) return { count: said.count };
  return [400, 413].includes(response.status) ? { wrong: said?.error?.message || "Can't be read" } : {};
}

/** An error's words about the one document, without its place in the request. */
function reason(words) {
  const own = words.replace(/^messages\[0\]\.content\[0\]:? *(the document )?/, "");
  return `${own[0].toUpperCase()}${own.slice(1)}`;
}
