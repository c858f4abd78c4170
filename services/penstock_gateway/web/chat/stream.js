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

/** Milliseconds without an event after which a break is the end, and between two attempts. */
const PATIENCE = 20_000;
const PAUSE = 250;

/**
 * Asks, and yields the chunks. key: of this answer alone; with one, the stream goes on where it
 * breaks off, at whichever gateway answers.  Throws ApiError for an error before or within the
 * stream, ConnectionLost for a stream without end, and the signal's AbortError.
 */
export async function* ask(body, signal, key = null) {
  const own = { "content-type": "application/json", "x-penstock-timeline": "1" };
  const options = { include_usage: true };
  if (key) {
    own["idempotency-key"] = key;
    options.resumable = true;
  }
  const asked = { headers: own, body: JSON.stringify({ ...body, stream: true, stream_options: options }), signal };
  let since = performance.now();
  while (true) {
    let waiting = []; // They come once more if no event with an id comes behind them.
    try {
      for await (const { id, chunk } of identified("v1/chat/completions", asked)) {
        waiting.push(chunk);
        if (key && !id) continue;
        yield* waiting;
        waiting = [];
        since = performance.now();
        if (id) own["last-event-id"] = id;
      }
      yield* waiting;
      return;
    } catch (error) {
      if (signal.aborted || !own["last-event-id"] || !passes(error)) throw error;
      if (performance.now() - since > PATIENCE) throw new ConnectionLost(error);
    }
    await new Promise((done) => setTimeout(done, PAUSE));
  }
}

/** Whether an error says that the server is away, and not that it refuses. */
const passes = (error) =>
  error instanceof ConnectionLost || error.code === "unreachable" || [502, 503, 504].includes(error.status);

/** The chunk behind the last words. */
export const ended = () => ({ choices: [{ delta: {}, finish_reason: "stop" }] });

/** What a path streams that is posted to. Throws as `ask` does. */
export async function* eventsOf(path, asked) {
  for await (const { chunk } of identified(path, asked)) yield chunk;
}

/** The same as {id, chunk}: of the event. */
async function* identified(path, { headers: own = {}, body, signal }) {
  let response;
  try {
    response = await fetch(path, { method: "POST", headers: { ...own, ...headers() }, body, signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ApiError("the server can't be reached", { code: "unreachable" });
  }
  if (!response.ok) throw await ApiError.of(response);
  yield* read(response.body, signal);
}

/** The chunks of an event stream, as far as [DONE]. stream: a ReadableStream of bytes. */
export async function* chunksOf(stream) {
  for await (const { chunk } of read(stream, null)) yield chunk;
}

async function* read(stream, signal) {
  const parser = new EventParser();
  const reader = stream.getReader();
  try {
    for (;;) {
      let piece;
      try {
        piece = await reader.read();
      } catch (error) {
        if (signal?.aborted) throw error;
        throw new ConnectionLost(error);
      }
      if (piece.done) throw new ConnectionLost(null);
      for (const { data, id } of parser.feed(piece.value)) {
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ApiError(String(chunk.error.message), { code: chunk.error.code });
        yield { id, chunk };
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
