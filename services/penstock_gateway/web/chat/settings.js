/** The parameters of a conversation: what they are called, their bounds, and the request's fields. */

const LAST = "penstock.settings";

/**
 * kind: number, whole, text, lines, json. Values are kept as the texts that were typed.
 * usual: what the server takes where neither the request nor the model says anything.
 */
export const FIELDS = [
  { name: "system", label: "System prompt", kind: "text", help: "Instructions that come before the conversation." },
  { name: "temperature", label: "Temperature", kind: "number", least: 0, most: 2, step: "0.1", usual: 1, help: "0 always takes the likeliest token; higher values are more varied." },
  { name: "top_p", label: "Top p", kind: "number", least: 0, most: 1, step: "0.05", usual: 1, help: "Only the likeliest tokens whose probabilities add up to this." },
  { name: "top_k", label: "Top k", kind: "whole", least: 0, most: 2 ** 31 - 1, usual: 0, help: "Only this many of the likeliest tokens; 0 means all." },
  { name: "min_p", label: "Min p", kind: "number", least: 0, most: 1, step: "0.01", usual: 0, help: "Only tokens at least this likely, relative to the likeliest one." },
  { name: "presence_penalty", label: "Presence penalty", kind: "number", least: -2, most: 2, step: "0.1", usual: 0, help: "Discourages tokens that are already in the answer." },
  { name: "frequency_penalty", label: "Frequency penalty", kind: "number", least: -2, most: 2, step: "0.1", usual: 0, help: "The same, in proportion to how often they occur." },
  { name: "repetition_penalty", label: "Repetition penalty", kind: "number", least: 0.01, most: 100, step: "0.05", usual: 1, help: "Above 1: discourages tokens of the conversation and the answer." },
  { name: "max_tokens", label: "Longest answer", kind: "whole", least: 1, most: 2 ** 31 - 1, help: "In tokens. Empty: as many as fit into the context." },
  { name: "seed", label: "Seed", kind: "whole", least: 0, most: Number.MAX_SAFE_INTEGER, help: "The same seed gives the same answer." },
  { name: "stop", label: "Stop texts", kind: "lines", help: "One per line. The answer ends before the first that occurs." },
  { name: "schema", label: "JSON schema of the answer", kind: "json", help: "The answer is JSON that follows this schema." },
  { name: "tools", label: "Tools", kind: "json", list: true, help: "A JSON list, as in the API. Calls are shown but not carried out." },
];

/** What the server takes for a field that is left empty, as a text; "" where there is no such value. */
export function defaultOf(field, own) {
  const value = own?.[field.name] ?? field.usual;
  return value === undefined || value === null ? "" : String(value);
}

/** The value that a field's text stands for; undefined where it is empty. Throws an Error. */
export function valueOf(field, text) {
  const { label, kind, least, most } = field;
  if (kind === "text") return text.trim() ? text : undefined;
  if (kind === "lines") {
    const lines = text.split("\n").filter((line) => line);
    return lines.length ? lines : undefined;
  }
  if (!text.trim()) return undefined;
  if (kind === "json") return json(field, text);
  const value = Number(text);
  if (!Number.isFinite(value) || (kind === "whole" && !Number.isSafeInteger(value)) || value < least || value > most) {
    const what = kind === "whole" ? "a whole number" : "a number";
    const range = most >= 2 ** 31 - 1 ? `of at least ${least}` : `from ${least} to ${most}`;
    throw new Error(`${label} must be ${what} ${range}, not ${text.trim().slice(0, 40)}`);
  }
  return value;
}

function json({ label, list }, text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`${label} is not JSON: ${error.message}`);
  }
  if (list ? !Array.isArray(value) : value === null || typeof value !== "object" || Array.isArray(value)) {
    throw new Error(`${label} must be a JSON ${list ? "list" : "object"}`);
  }
  return value;
}

/** What new conversations begin with: the parameters that were set last. */
export function lastSettings() {
  try {
    return JSON.parse(localStorage.getItem(LAST) ?? "{}") ?? {};
  } catch {
    return {};
  }
}

export function keepLast(settings) {
  try {
    localStorage.setItem(LAST, JSON.stringify(settings));
  } catch {
    // Full: new conversations begin without them.
  }
}

/**
 * {system, fields}: the system prompt, `usual` where none is set, and the request's fields. Throws an
 * Error.
 */
export function requestOf(settings, usual = "") {
  const fields = {};
  for (const field of FIELDS) {
    const value = valueOf(field, settings[field.name] ?? "");
    if (value !== undefined) fields[field.name] = value;
  }
  const { system = usual, schema, ...rest } = fields;
  if (schema) rest.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  return { system, fields: rest };
}
