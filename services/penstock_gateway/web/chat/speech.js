/** A model that writes down what is said: one streamed transcript of POST /v1/audio/transcriptions. */

import { ended, eventsOf } from "./stream.js";

/** Of the parameters, those that a transcript has too. */
const SHARED = ["temperature", "seed"];

/**
 * The form for a message with a sound. Its text says how names and words are written.  fields: the
 * conversation's parameters.  load: id -> blob.  Throws an Error.
 */
export async function formOf({ attached, content }, model, fields, load) {
  const [sound, ...more] = attached ?? [];
  if (sound?.kind !== "audio" || more.length) throw new Error("a message to this model has one sound, and nothing else attached");
  const blob = await load(sound.id);
  if (!blob) throw new Error(`“${sound.name}” is no longer kept in this browser`);
  const form = new FormData();
  form.append("file", blob, sound.name);
  form.append("stream", "true");
  if (model) form.append("model", model);
  if (content.trim()) form.append("prompt", content);
  for (const name of SHARED) if (fields[name] !== undefined) form.append(name, String(fields[name]));
  return form;
}

/** Asks, and yields chunks as those of a chat. Throws as `ask` does. */
export async function* transcribe(form, signal) {
  for await (const event of eventsOf("v1/audio/transcriptions", { body: form, signal })) {
    if (event.type === "transcript.text.delta") yield { choices: [{ delta: { content: event.delta } }] };
    else if (event.type === "transcript.text.done") yield ended();
  }
}
