/**
 * Where conversations are kept: IndexedDB, one record each, beside a small head for the list, and
 * the files of its messages, which are written once. A write joins what another tab has written in
 * the meantime. Without IndexedDB, in memory.
 */

import { merged } from "./conversation.js";

export const MOST_KEPT = 1000;

const asked = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

function open(name) {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(name, 2);
    request.onupgradeneeded = ({ oldVersion }) => {
      if (oldVersion < 1) {
        request.result.createObjectStore("records", { keyPath: "id" });
        request.result.createObjectStore("heads", { keyPath: "id" });
      }
      request.result.createObjectStore("media", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("another tab holds an older version open"));
  });
}

const headOf = ({ id, title, updated }) => ({ id, title, updated });

export class Store {
  #database = null;
  #memory = new Map();
  #media = new Map();
  #channel = null;

  /** fails: a text says why conversations can't be kept, null that they can. */
  static async open(name = "penstock") {
    const store = new Store();
    try {
      store.#database = await open(name);
      store.#database.onversionchange = () => store.#database.close();
      store.fails = null;
    } catch (error) {
      store.fails = error?.message || "this browser has no storage for this page";
    }
    if (typeof BroadcastChannel === "function") store.#channel = new BroadcastChannel(name);
    return store;
  }

  /** Calls back with the id of a conversation that another tab has changed or removed. */
  onChange(callback) {
    if (this.#channel) this.#channel.onmessage = ({ data }) => callback(String(data));
  }

  /** [{id, title, updated}], the latest first. */
  async list() {
    const heads = this.#database
      ? await asked(this.#database.transaction("heads").objectStore("heads").getAll())
      : [...this.#memory.values()].map(headOf);
    return heads.sort((a, b) => b.updated - a.updated);
  }

  /** A record; undefined where there is none. */
  async load(id) {
    if (!this.#database) return structuredClone(this.#memory.get(id));
    return asked(this.#database.transaction("records").objectStore("records").get(id));
  }

  async loadAll() {
    if (!this.#database) return [...this.#memory.values()];
    return asked(this.#database.transaction("records").objectStore("records").getAll());
  }

  /** Calls back with each record, one at a time, until that returns false. */
  async each(callback) {
    if (!this.#database) return void [...this.#memory.values()].every((record) => callback(record) !== false);
    const request = this.#database.transaction("records").objectStore("records").openCursor();
    await new Promise((resolve, reject) => {
      request.onerror = () => reject(request.error);
      request.onsuccess = () => {
        const cursor = request.result;
        if (!cursor || callback(cursor.value) === false) resolve();
        else cursor.continue();
      };
    });
  }

  /**
   * Keeps a record together with what is kept of it; returns both, put together. Throws where the
   * storage is full (QuotaExceededError) or there are MOST_KEPT conversations: nothing is changed.
   */
  async save(record) {
    const whole = this.#database ? await this.#write(record) : this.#remember(record);
    this.#channel?.postMessage(record.id);
    return whole;
  }

  #remember(record) {
    const whole = merged(this.#memory.get(record.id), structuredClone(record));
    this.#memory.set(record.id, whole);
    return structuredClone(whole);
  }

  async #write(record) {
    const transaction = this.#database.transaction(["records", "heads"], "readwrite");
    const ended = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error ?? new Error("the storage refused"));
    });
    ended.catch(() => {});
    const records = transaction.objectStore("records");
    const [kept, count] = await Promise.all([asked(records.get(record.id)), asked(records.count())]);
    if (!kept && count >= MOST_KEPT) {
      transaction.abort();
      throw new Error(`${MOST_KEPT} conversations are kept, which is the limit; export and delete some`);
    }
    const whole = merged(kept, record);
    records.put(whole);
    transaction.objectStore("heads").put(headOf(whole));
    await ended;
    return whole;
  }

  /**
   * Keeps files of a conversation: [{id, blob}]. Returns whether they are where conversations are:
   * without room in the browser's storage, they are there as long as the page is.
   */
  async saveMedia(conversation, files) {
    const rows = files.map(({ id, blob }) => ({ id, conversation, blob }));
    if (this.#database && (await this.#writeMedia(rows))) return true;
    for (const row of rows) this.#media.set(row.id, row);
    return !this.#database;
  }

  #writeMedia(rows) {
    const transaction = this.#database.transaction("media", "readwrite");
    for (const row of rows) transaction.objectStore("media").put(row);
    return new Promise((resolve) => {
      transaction.oncomplete = () => resolve(true);
      transaction.onabort = () => resolve(false);
    });
  }

  /** The blob of a file; undefined where it isn't kept. */
  async loadMedia(id) {
    if (this.#media.has(id) || !this.#database) return this.#media.get(id)?.blob;
    return (await asked(this.#database.transaction("media").objectStore("media").get(id)))?.blob;
  }

  /** All files of a conversation: [{id, blob}]. */
  async mediaOf(conversation) {
    const here = [...this.#media.values()].filter((row) => row.conversation === conversation);
    if (!this.#database) return here;
    const index = this.#database.transaction("media").objectStore("media").index("conversation");
    return [...here, ...(await asked(index.getAll(conversation)))];
  }

  /** Forgets a conversation and its files. */
  async remove(id) {
    this.#memory.delete(id);
    for (const row of await this.mediaOf(id)) this.#media.delete(row.id);
    if (this.#database) {
      const transaction = this.#database.transaction(["records", "heads", "media"], "readwrite");
      const media = transaction.objectStore("media");
      const names = await asked(media.index("conversation").getAllKeys(id));
      await Promise.all([
        ...["records", "heads"].map((name) => asked(transaction.objectStore(name).delete(id))),
        ...names.map((name) => asked(media.delete(name))),
      ]);
    }
    this.#channel?.postMessage(id);
  }
}
