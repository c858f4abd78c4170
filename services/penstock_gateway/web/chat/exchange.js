/** Conversations as files: what export writes, and what import takes, checked field by field. */

import { MOST_NODES, newId } from "./conversation.js";
import { blobOf, kindOf, MOST_ATTACHED } from "./media.js";
import { checked } from "./prompts.js";
import { FIELDS } from "./settings.js";

const FORMAT = "penstock-conversations";
export const MOST_BYTES = 128 * 1024 * 1024;
export const MOST_CONVERSATIONS = 1000;
const MOST_TEXT = 4_000_000;
const STATES = ["done", "open", "stopped", "lost", "failed"];
const SETTINGS = FIELDS.map(({ name }) => name);

/** The text of a file with these records, and prompts of the library. */
export function exported(records, prompts = []) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations: records, ...(prompts.length && { prompts }) }, null, 1);
}

/**
 * What is in a file's text: {conversations: [{record, files: [{id, blob}]}], prompts}. Conversations
 * get ids of their own. Throws an Error that says what is wrong.
 */
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new Error(`the file is not JSON: ${error.message}`);
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error(`the file has no conversations from this page: its "format" must be "${FORMAT}"`);
  }
  if (file.conversations.length > MOST_CONVERSATIONS) {
    throw new Error(`the file has ${file.conversations.length} conversations; at most ${MOST_CONVERSATIONS} are allowed`);
  }
  return {
    conversations: file.conversations.map((each, index) => record(each, `conversations[${index}]`)),
    prompts: checked(file.prompts ?? [], "prompts"),
  };
}

function record(value, where) {
  const nodes = {};
  const files = [];
  const given = Object.values(plain(value, where).nodes ?? {});
  if (given.length > MOST_NODES) throw new Error(`${where} has ${given.length} messages; at most ${MOST_NODES} are allowed`);
  given.forEach((each, index) => {
    const node = message(each, `${where}.nodes[${index}]`, files);
    nodes[node.id] = node;
  });
  const chosen = {};
  for (const [parent, child] of Object.entries(value.chosen ?? {})) {
    if (typeof child === "string" && Object.hasOwn(nodes, child)) chosen[parent] = child;
  }
  const now = Date.now();
  const made = {
    id: newId(), title: words(value.title ?? "", `${where}.title`).slice(0, 120), titledAt: now,
    created: time(value.created, now), updated: time(value.updated, now),
    settings: settings(value.settings ?? {}, where), settingsAt: now, nodes, chosen,
  };
  return { record: made, files };
}

/** files: where those of the message are added. */
function message(value, where, files) {
  const { id, parent } = plain(value, where);
  for (const [name, text] of [["id", id], ["parent", parent]]) {
    if (typeof text !== "string" || !/^[0-9a-z-]{0,64}$/.test(text) || (name === "id" && !text)) {
      throw new Error(`${where}.${name} is no id of a message`);
    }
  }
  if (value.gone) return { id, parent, gone: true, rev: 1 };
  if (!["user", "assistant"].includes(value.role)) throw new Error(`${where}.role must be user or assistant`);
  const node = {
    id, parent, role: value.role, content: words(value.content, `${where}.content`), at: time(value.at, 0), rev: 1,
    state: STATES.includes(value.state) ? value.state : "done",
  };
  if (value.reasoning != null) node.reasoning = words(value.reasoning, `${where}.reasoning`);
  if (value.finish != null) node.finish = words(value.finish, `${where}.finish`).slice(0, 40);
  if (value.calls != null) node.calls = calls(value.calls, `${where}.calls`);
  for (const name of ["usage", "times", "parts"]) if (value[name] != null) node[name] = numbers(value[name]);
  if (value.attached != null) node.attached = attached(value.attached, `${where}.attached`, files);
  if (value.problem != null) node.problem = { message: words(value.problem.message ?? "", `${where}.problem.message`).slice(0, 2000) };
  return node;
}

function calls(value, where) {
  if (!Array.isArray(value) || value.length > 128) throw new Error(`${where} must be a list of at most 128 calls`);
  return value.map((call) => ({
    id: words(call?.id ?? "", where), type: "function",
    function: { name: words(call?.function?.name ?? "", where), arguments: words(call?.function?.arguments ?? "", where) },
  }));
}

function attached(value, where, files) {
  if (!Array.isArray(value) || value.length > MOST_ATTACHED) throw new Error(`${where} must be a list of at most ${MOST_ATTACHED} files`);
  return value.map((each, index) => {
    const here = `${where}[${index}]`;
    const type = words(plain(each, here).type, `${here}.type`);
    if (!kindOf(type)) throw new Error(`${here}.type is ${type.slice(0, 40)}, which is not a supported kind of file`);
    const found = { id: newId(), kind: kindOf(type), type, name: words(each.name ?? "", `${here}.name`).slice(0, 120), size: 0 };
    if (Number.isSafeInteger(each.tokens) && each.tokens > 0) found.tokens = each.tokens;
    if (each.data == null) return found; // It wasn't there any more when the file was written.
    let blob;
    try {
      blob = blobOf(each.data, type);
    } catch (error) {
      throw new Error(`${here}.data ${error.message}`);
    }
    files.push({ id: found.id, blob });
    return { ...found, size: blob.size };
  });
}

function settings(value, where) {
  const kept = {};
  for (const name of SETTINGS) {
    if (value[name] != null && value[name] !== "") kept[name] = words(String(value[name]), `${where}.settings.${name}`);
  }
  return kept;
}

function numbers(value) {
  const kept = {};
  for (const [name, each] of Object.entries(plain(value, "numbers"))) {
    if (typeof each === "number" && Number.isFinite(each)) kept[name] = each;
    else if (name === "prompt_tokens_details") kept[name] = numbers(each ?? {});
  }
  return kept;
}

function plain(value, where) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error(`${where} must be an object`);
  return value;
}

function words(value, where) {
  if (typeof value !== "string") throw new Error(`${where} must be a text`);
  if (value.length > MOST_TEXT) throw new Error(`${where} has ${value.length} characters; at most ${MOST_TEXT} are allowed`);
  return value;
}

const time = (value, otherwise) => (Number.isSafeInteger(value) && value >= 0 ? value : otherwise);
