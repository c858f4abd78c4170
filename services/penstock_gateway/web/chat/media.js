/** Media of messages: which kinds there are, their bounds, and what a request has of them. */

import { newId } from "./conversation.js";
import { documentType, PDF, TEXT } from "./documents.js";

const MIB = 1024 * 1024;
/** Bytes of a file, and of all files of a conversation: each request has all of them. */
export const MOST_FILE_BYTES = 20 * MIB;
export const MOST_BYTES = 24 * MIB;
/** Documents of a conversation, as the server has it. */
export const MOST_DOCUMENTS = 32;
/** Files of a message that is imported. */
export const MOST_ATTACHED = 64;
const MOST_NAME = 120;

/** kind -> media types that are taken, what they are called, words for people, and the part of a request's message. */
export const KINDS = {
  image: {
    types: ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp", "image/tiff"],
    formats: "PNG, JPEG, WebP, GIF, BMP and TIFF",
    one: "picture", many: "pictures", cannot: "can't see",
    part: (url) => ({ type: "image_url", image_url: { url } }),
  },
  audio: {
    types: ["audio/wav", "audio/x-wav", "audio/vnd.wave", "audio/mpeg", "audio/flac", "audio/x-flac", "audio/ogg",
      "audio/mp4", "audio/x-m4a", "audio/aac", "audio/webm", "audio/aiff", "audio/x-aiff"],
    formats: "WAV, MP3, FLAC, Ogg, M4A, AAC, WebM and AIFF",
    one: "sound", many: "sounds", cannot: "can't hear",
    part: (url) => ({ type: "audio_url", audio_url: { url } }),
  },
  video: {
    types: ["video/mp4", "video/webm", "video/quicktime", "video/x-matroska", "video/matroska", "video/x-msvideo", "video/avi", "video/mpeg"],
    formats: "MP4, WebM, QuickTime, Matroska, AVI and MPEG",
    one: "video", many: "videos", cannot: "can't watch",
    part: (url) => ({ type: "video_url", video_url: { url } }),
  },
  document: {
    types: [PDF, TEXT],
    formats: "PDF, text and code",
    one: "document", many: "documents", cannot: "can't read",
    part: (url, name) => ({ type: "file", file: { filename: name, file_data: url } }),
  },
};

/** The kind of what has this type; undefined where it is none that is taken. */
export const kindOf = (type) => Object.keys(KINDS).find((kind) => KINDS[kind].types.includes(type));

/** The type that a file is kept as: its own, or a document's. */
const typeOf = (file) => documentType(file) ?? file.type;

/** What a conversation keeps of a file beside its bytes: {id, kind, type, name, size}. */
export function describe(file) {
  const type = typeOf(file);
  const name = (file.name || KINDS[kindOf(type)].one).slice(0, MOST_NAME);
  return { id: newId(), kind: kindOf(type), type, name, size: file.size };
}

/**
 * Why a file can't be attached to what is attached already; "" where it can. takes: kind -> most
 * items, of the model.  model: its name.  attached, kept: descriptions of what the message and the
 * conversation before it have.  each: whether each message is asked by itself.  away: whether the
 * model isn't loaded, so that nobody knows which media it takes.
 */
export function refusal(file, { takes, model, attached, kept, each = false, away = false }) {
  const kind = kindOf(typeOf(file));
  const what = file.name ? `“${file.name.slice(0, MOST_NAME)}”` : "What was given";
  if (!kind) {
    const formats = Object.keys(KINDS).filter((each) => takes[each]).map((each) => KINDS[each].formats);
    return `${what} is ${file.type || "of an unknown type"}; ${formats.join(", ") || "nothing"} can be attached.`;
  }
  if (away && !takes[kind]) return unknown(model);
  const { many, cannot } = KINDS[kind];
  if (!takes[kind]) return `${model || "This model"} ${cannot}: ${many} can't be attached.`;
  if (!file.size) return `${what} is empty.`;
  if (file.size > MOST_FILE_BYTES) return `${what} has ${mib(file.size)}; at most ${mib(MOST_FILE_BYTES)} are allowed.`;
  const all = [...kept, ...attached];
  if (all.filter((each) => each.kind === kind).length >= takes[kind]) {
    return `This ${each ? "message" : "conversation"} has ${takes[kind]} ${takes[kind] === 1 ? KINDS[kind].one : many}, and the model takes no more in a prompt.`;
  }
  if (all.reduce((sum, each) => sum + each.size, file.size) > MOST_BYTES) {
    return `With ${what} this conversation would have more than ${mib(MOST_BYTES)} of files.`;
  }
  return "";
}

export const unknown = (model) => `${model} is not loaded: what can be attached is known after a first message.`;

/** Why the model can't go on with what there is; "" where it can. As `refusal`'s. */
export function obstacle({ takes, model, attached, kept, each, away, room }) {
  if (away) return "";
  const full = overflow(attached, room);
  if (full) return full;
  for (const [kind, { one, many, cannot }] of Object.entries(KINDS)) {
    const count = [...kept, ...attached].filter((item) => item.kind === kind).length;
    const most = takes[kind] ?? 0;
    if (count > most && !most) return `${model} ${cannot}: it can't go on with the ${many} of this ${each ? "message" : "conversation"}.`;
    if (count > most) return `${model} takes ${most} ${most === 1 ? one : many}, and this ${each ? "message" : "conversation"} has ${count}.`;
  }
  return "";
}

/** Says that documents are too long. room: {used, limit}, tokens of the conversation and of the context. */
function overflow(attached, { used, limit }) {
  const tokens = attached.reduce((sum, each) => sum + (each.tokens ?? 0), 0);
  if (!limit || !tokens || used + tokens < limit) return "";
  const said = (number) => number.toLocaleString("en");
  const before = used ? `, the conversation ${said(used)}` : "";
  return `What is attached has ${said(tokens)} tokens${before}; the model's context is ${said(limit)}, the answer included.`;
}

const mib = (bytes) => `${(bytes / MIB).toFixed(1)} MiB`;

/** A blob as a data: URI. */
export function dataUri(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** The blob that a data: URI in base64 holds. Throws an Error where it isn't one of that type. */
export function blobOf(uri, type) {
  const head = `data:${type};base64,`;
  if (typeof uri !== "string" || !uri.startsWith(head)) throw new Error(`is no data: URI of ${type}`);
  try {
    const bytes = Uint8Array.from(atob(uri.slice(head.length)), (letter) => letter.charCodeAt(0));
    return new Blob([bytes], { type });
  } catch {
    throw new Error("is not valid base64");
  }
}

/** A message's content for the API: its media first, then its text. load: id -> blob. */
async function contentOf(node, load) {
  if (!node.attached?.length) return node.content;
  const parts = await Promise.all(node.attached.map(async ({ id, kind, name }) => {
    const blob = await load(id);
    if (!blob) throw new Error(`“${name}” is no longer kept in this browser; delete the message to continue`);
    return KINDS[kind].part(await dataUri(blob), name);
  }));
  return node.content ? [...parts, { type: "text", text: node.content }] : parts;
}

/** The messages of nodes for the API. system: the system prompt, "" for none.  load: id -> blob. */
export async function messagesOf(nodes, system, load) {
  const sent = await Promise.all(nodes.map(async (node) => ({
    role: node.role,
    content: await contentOf(node, load),
    ...(node.calls?.length && node.role === "assistant" ? { tool_calls: node.calls } : {}),
  })));
  return system ? [{ role: "system", content: system }, ...sent] : sent;
}
