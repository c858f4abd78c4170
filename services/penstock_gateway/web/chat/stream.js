/** One streamed answer, of POST /v1/chat/completions or another path. */

import { ApiError, headers } from "./api.js";
import { EventParser } from "./sse.js";

/** The connection ended before the answer did. */
export class ConnectionLost extends Error {
  constructor(cause) {
    super("the connection to the server was lost; what had come is kept");
    this.name = "ConnectionLost";
    this.cause = cause;
  }
}

/** What was asked for once more came out differently. */
export class OtherAnswer extends Error {
  constructor() {
    super("the server answers differently now; what had come is kept");
    this.name = "OtherAnswer";
  }
}

/**
 * Asks, and yields the chunks. Throws ApiError for an error before or within the stream,
 * ConnectionLost for a stream without end, and the signal's AbortError.
 */
export function ask(body, signal) {
  return eventsOf("v1/chat/completions", {
    headers: { "content-type": "application/json", "x-penstock-timeline": "1" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
}

/** The chunk behind the last words. */
export const ended = () => ({ choices: [{ delta: {}, finish_reason: "stop" }] });

/** What a path streams that is posted to. Throws as `ask` does. */
export async function* eventsOf(path, { headers: own = {}, body, signal }) {
  let response;
  try {
    response = await fetch(path, { method: "POST", headers: { ...own, ...headers() }, body, signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ApiError("the server can't be reached", { code: "unreachable" });
  }
  if (!response.ok) throw await ApiError.of(response);
  yield* chunksOf(response.body, signal);
}

/** The chunks of an event stream, as far as [DONE]. stream: a ReadableStream of bytes. */
export async function* chunksOf(stream, signal = null) {
  const parser = new EventParser();
  const reader = stream.getReader();
  try {
    for (;;) {
      let read;
      try {
        read = await reader.read();
      } catch (error) {
        if (signal?.aborted) throw error;
        throw new ConnectionLost(error);
      }
      if (read.done) throw new ConnectionLost(null);
      for (const { data } of parser.feed(read.value)) {
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ApiError(String(chunk.error.message), { code: chunk.error.code });
        yield chunk;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * Adds a chunk to an answer's node. now: milliseconds, of performance.now().
 * times: {begun, first, last}, in the same.
 */
export function take(node, chunk, times, now) {
  if (chunk.usage) node.usage = chunk.usage;
  if (chunk.penstock_timeline) node.parts = chunk.penstock_timeline.parts;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? {};
  if (delta.content || delta.reasoning_content || delta.tool_calls) {
    times.first ??= now;
    times.last = now;
  }
  if (delta.content) node.content += delta.content;
  if (delta.reasoning_content) node.reasoning = (node.reasoning ?? "") + delta.reasoning_content;
  for (const call of delta.tool_calls ?? []) addCall(node, call);
  if (choice.finish_reason) node.finish = choice.finish_reason;
}

/**
 * `take`, for a node that has some of its answer and gets all of it once more: adds what is new.
 * from: characters that its content and reasoning had before the answer.  It throws OtherAnswer.
 */
export function repeated(node, from) {
  const whole = { content: node.content.slice(0, from.content), reasoning: (node.reasoning ?? "").slice(0, from.reasoning) };
  return (_, chunk, times, now) => {
    const before = { content: whole.content.length, reasoning: whole.reasoning.length };
    take(whole, chunk, times, now);
    const { content, reasoning, ...rest } = whole;
    for (const [name, text] of Object.entries({ content, reasoning })) {
      const had = node[name] ?? "";
      const fits = text.startsWith(had.slice(before[name], text.length), before[name]);
      if (!fits || (rest.finish && text.length < had.length)) throw new OtherAnswer();
      if (text.length > had.length) node[name] = text;
    }
    Object.assign(node, rest);
  };
}

function addCall(node, delta) {
  node.calls ??= [];
  const call = (node.calls[delta.index ?? node.calls.length] ??= {
    id: "", type: "function", function: { name: "", arguments: "" },
  });
  if (delta.id) call.id = delta.id;
  if (delta.function?.name) call.function.name += delta.function.name;
  if (delta.function?.arguments) call.function.arguments += delta.function.arguments;
}
