/** One answer that is being written: from the request to its end, however it ends. */

import { ApiError } from "./api.js";
import { ask, ConnectionLost, OtherAnswer, take } from "./stream.js";

export class Generation {
  #abort = new AbortController();

  /** node: of the answer.  changed: called with the node for each piece. */
  constructor(conversation, node, changed) {
    this.conversation = conversation;
    this.node = node;
    this.changed = changed;
  }

  /** Ends it; what has come is kept. */
  stop() {
    this.#abort.abort();
  }

  /**
   * body: the request, or a promise of it.  by: sends it, and yields chunks.  add: adds one to the
   * node.  Never throws: how it ended is in the node.
   */
  async run(body, by = ask, add = take) {
    const { node } = this;
    const times = { begun: performance.now() };
    delete node.problem;
    node.state = "open";
    try {
      for await (const chunk of by(await body, this.#abort.signal, node.id)) {
        add(node, chunk, times, performance.now());
        this.changed(node);
      }
      node.state = "done";
    } catch (error) {
      this.#failed(error);
    }
    this.#account(times);
    this.conversation.touch(node);
    this.changed(node);
  }

  #failed(error) {
    const { node } = this;
    if (this.#abort.signal.aborted) {
      node.state = "stopped";
      return;
    }
    node.state = error instanceof ConnectionLost || error instanceof OtherAnswer ? "lost" : "failed";
    node.problem = { message: error.message, status: error.status || undefined, code: error.code ?? undefined };
    if (error instanceof ApiError && error.retryAfter !== null) node.problem.until = Date.now() + 1000 * error.retryAfter;
  }

  /** Milliseconds as the page saw them. */
  #account({ begun, first, last }) {
    const { node } = this;
    if (first === undefined) return;
    const tokens = node.usage?.completion_tokens;
    node.times = { first: first - begun, total: performance.now() - begun };
    if (tokens > 1 && last > first) node.times.rate = (1000 * (tokens - 1)) / (last - first);
  }
}
