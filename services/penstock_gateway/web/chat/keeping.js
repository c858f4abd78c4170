/** Keeps conversations while they change; what can't be kept is said, and stays on the page. */

import { merged } from "./conversation.js";
import { download } from "./files.js";
import { notify } from "./notices.js";

const EVERY = 2000;
const LEFT = "penstock.left.";

export class Keeping {
  #store;
  #kept;
  #busy = new Map();
  #timers = new Map();
  #forgotten = new Set();
  unkept = new Set();

  /** kept: called after each write. */
  constructor(store, kept) {
    this.#store = store;
    this.#kept = kept;
    addEventListener("beforeunload", (event) => {
      if (this.unkept.size) event.preventDefault();
    });
  }

  /** Keeps it soon: for what changes often. */
  soon(conversation) {
    if (this.#timers.has(conversation.id)) return;
    this.#timers.set(conversation.id, setTimeout(() => this.now(conversation), EVERY));
  }

  /** Keeps it now, after what is being written of it. */
  now(conversation) {
    clearTimeout(this.#timers.get(conversation.id));
    this.#timers.delete(conversation.id);
    const before = this.#busy.get(conversation.id) ?? Promise.resolve();
    const write = before.then(() => this.#write(conversation));
    this.#busy.set(conversation.id, write);
    return write;
  }

  /** Keeps it no more: it was deleted, and an answer that ends later doesn't bring it back. */
  async forget(id) {
    this.#forgotten.add(id);
    await this.#busy.get(id);
    this.#busy.delete(id);
    this.unkept.delete(id);
  }

  /** Takes that back. */
  remember(id) {
    this.#forgotten.delete(id);
  }

  /** Keeps it while the page goes away: no write to a database comes to its end then. */
  leave(conversation) {
    try {
      localStorage.setItem(LEFT + conversation.id, JSON.stringify(conversation.record));
    } catch {
      // Full: what was kept in the last two seconds' turn is there.
    }
  }

  async #write(conversation) {
    if (this.#forgotten.has(conversation.id)) return;
    try {
      const whole = await this.#store.save(conversation.record);
      // What changed meanwhile is later than what was written.
      conversation.record = merged(whole, conversation.record);
      this.unkept.delete(conversation.id);
    } catch (error) {
      this.unkept.add(conversation.id);
      const full = error?.name === "QuotaExceededError" ? "The browser's storage for this page is full." : error?.message;
      notify(`This conversation is not kept. ${full} It stays on the page until you close it.`, {
        one: "unkept", stays: true, bad: true, action: ["Export it", () => download(this.#store, [conversation.record], conversation.title)],
      });
    }
    this.#kept();
  }
}

/** Puts into the store what pages left that went away in the middle of an answer. */
export async function takeUp(store) {
  try {
    for (const name of Object.keys(localStorage).filter((each) => each.startsWith(LEFT))) {
      const record = JSON.parse(localStorage.getItem(name));
      localStorage.removeItem(name);
      if (record) await store.save(record);
    }
  } catch (error) {
    notify(`The end of an answer could not be kept: ${error.message}`, { bad: true });
  }
}
