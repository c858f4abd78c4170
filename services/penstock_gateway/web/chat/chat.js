/** The chat: what its buttons do, and which conversation is shown. */

import { Answers } from "./answers.js";
import { Attaching } from "./attaching.js";
import { Composer } from "./composer.js";
import { Conversation, merged } from "./conversation.js";
import { KeyDialog, SettingsDialog } from "./dialogs.js";
import { at } from "./dom.js";
import { showExamples, showPurpose } from "./examples.js";
import { connectFiles, download } from "./files.js";
import { Keeping } from "./keeping.js";
import { PromptsDialog } from "./library.js";
import { Model } from "./model.js";
import { notify, speak } from "./notices.js";
import { keepLast, lastSettings, requestOf } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Titles } from "./titles.js";
import { Transcript } from "./transcript.js";

const OPEN = { state: "open" };

export class Chat {
  constructor(store) {
    this.store = store;
    this.current = Conversation.fresh(lastSettings());
    this.keeping = new Keeping(store, () => this.#list());
    this.model = new Model(() => this.key.open(), (model) => this.#known(model));
    this.answers = new Answers(this, {
      grown: ({ id }, node) => id === this.current.id && this.transcript.grown(node),
      ended: (conversation, node) => {
        this.#tell(conversation, node);
        this.titles.after(conversation, node);
      },
    });
    this.titles = new Titles(this, (conversation) => {
      this.keeping.now(conversation);
      if (conversation === this.current) this.#draw();
    });
    this.key = new KeyDialog(() => this.model.load());
    this.settings = new SettingsDialog((settings) => this.#set(settings));
    this.attaching = new Attaching({ kept: () => this.current.attached(), room: () => this.model.room, changed: () => this.composer.attached() });
    const does = { send: (text, files) => this.send(text, files), stop: () => this.stop(), busy: () => this.#busy };
    this.composer = new Composer(does, this.attaching);
    this.library = new PromptsDialog({ written: () => at("message").value, insert: (text) => this.composer.insert(text) });
    this.transcript = new Transcript({
      running: (node) => this.answers.writes(this.current.id, node),
      edit: (node, text) => this.edit(node, text),
      regenerate: (node) => this.regenerate(node),
      proceed: (node) => (this.model.transcribes ? this.regenerate(node) : this.proceed(node)),
      retry: (node) => this.retry(node),
      remove: (node) => this.remove(node),
      turn: (node, by) => this.turn(node, by),
      key: () => this.key.open(),
      load: (id) => this.store.loadMedia(id),
    });
    this.sidebar = new Sidebar({
      fresh: () => this.fresh(),
      rename: (id, title) => this.rename(id, title),
      remove: (id) => this.removeConversation(id),
      each: (callback) => store.each(callback),
      reveal: (id, node, find) => {
        this.transcript.seek({ id, node, find });
        if (id === this.current.id) this.#draw();
      },
      exportOne: async (id) => {
        const record = await this.store.load(id);
        if (record) await download(store, [record], record.title);
      },
    });
    showExamples((text) => this.composer.put(text));
    connectFiles(store, () => this.#list());
    store.onChange((id) => this.#changedElsewhere(id));
    if (store.fails) notify(`Conversations are not kept: ${store.fails}.`, { stays: true, bad: true });
  }

  #known(model) {
    this.settings.showDefaults(model.defaults);
    this.attaching.known(model);
    this.composer.known(model);
    showPurpose(model);
  }

  // --- which conversation is shown

  /** Shows the conversation with this id; "" for a new one. */
  async show(id) {
    if (!id) {
      if (!this.current.isEmpty) this.current = Conversation.fresh(lastSettings());
    } else if (id !== this.current.id) {
      const running = this.answers.conversation(id);
      const record = running ? null : await this.store.load(id);
      if (!running && !record) {
        notify("That conversation is not kept in this browser.");
        this.fresh();
        return;
      }
      if (!location.hash.endsWith(id)) return; // Something else was chosen meanwhile.
      this.current = running ?? new Conversation(record);
    }
    this.#draw();
    this.#list();
    if (!matchMedia("(pointer: coarse)").matches && !at("messages").contains(document.activeElement)) this.composer.focus();
  }

  fresh() {
    this.sidebar.close();
    if (location.hash === "#chat") this.show("");
    else location.hash = "#chat";
    this.composer.focus();
  }

  /** The hash of what is shown. */
  get hash() {
    return this.current.isEmpty ? "#chat" : `#chat/${this.current.id}`;
  }

  #draw() {
    this.transcript.show(this.current);
    this.settings.show(this.current.record.settings);
    this.composer.running(this.#busy);
    this.model.used(this.current.path().findLast((node) => node.usage)?.usage?.total_tokens);
    this.attaching.note();
    document.title = this.current.isEmpty ? "Penstock" : `${this.current.title} · Penstock`;
  }

  async #list() {
    this.sidebar.show(await this.store.list(), this.current.id);
  }

  async #changedElsewhere(id) {
    this.#list();
    if (id !== this.current.id || this.answers.has(id)) return;
    const record = await this.store.load(id);
    if (!record) {
      notify("This conversation was deleted in another tab. It is kept again with your next message.", { one: "deleted" });
      return;
    }
    if (id !== this.current.id || this.answers.has(id)) return;
    // Not another object: a message that is being edited here stays open.
    this.current.record = merged(record, this.current.record);
    this.#draw();
  }

  // --- messages

  /** files: [[description, file]]. Returns whether it was taken. */
  async send(text, files) {
    const { current } = this;
    if (!this.#request()) return false;
    await this.stop(); // The rest of an answer isn't waited for.
    try {
      if (files.length) await this.#keepFiles(current.id, files);
      if (current !== this.current || this.#busy) return false; // Meanwhile.
      const message = current.add(current.path().at(-1)?.id ?? "", "user", text, { attached: files.map(([each]) => each) });
      history.replaceState(null, "", `#chat/${current.id}`);
      this.#generate(current.add(message.id, "assistant", "", OPEN));
      this.transcript.toEnd();
      return true;
    } catch (error) {
      return notify(error.message, { bad: true }), false;
    }
  }

  async #keepFiles(id, files) {
    const kept = await this.store.saveMedia(id, files.map(([each, blob]) => ({ id: each.id, blob })));
    if (!kept) notify("The browser's storage for this page is full: what is attached goes with the page.", { one: "full", stays: true, bad: true });
  }

  /** Returns whether the text was taken. */
  edit(node, text) {
    const { current } = this;
    if (this.#busy || !this.#request()) return false;
    const other = current.add(node.parent, node.role, text, { attached: node.attached });
    if (node.role === "user") this.#generate(current.add(other.id, "assistant", "", OPEN));
    else this.#settle();
    this.composer.focus();
    return true;
  }

  regenerate(node) {
    if (this.#busy || !this.#request()) return;
    this.#generate(this.current.add(node.parent, "assistant", "", OPEN));
    this.composer.focus();
  }

  /** The rest of an answer that was stopped, cut off, or reached its longest. */
  proceed(node) {
    if (this.#busy || !this.#request()) return;
    this.#generate(node, { continue_final_message: true, add_generation_prompt: false });
    this.composer.focus();
  }

  /** Again: in its place where nothing had come, else as another version. */
  retry(node) {
    if (node.content || node.reasoning) this.regenerate(node);
    else if (!this.#busy && this.#request()) this.#generate(node);
    this.composer.focus();
  }

  remove(node) {
    const { current } = this;
    if (this.#busy) return;
    const back = current.remove(node);
    this.#settle();
    this.composer.focus();
    notify("Deleted, with everything after it.", { one: "removed", action: ["Undo", () => {
      back();
      this.keeping.now(current);
      if (current === this.current) this.#draw();
    }] });
  }

  turn(node, by) {
    const branches = this.current.children(node.parent);
    const other = branches[branches.indexOf(branches.find((each) => each.id === node.id)) + by];
    if (!other || this.#busy) return;
    this.current.choose(other);
    this.#settle();
    const buttons = this.transcript.view(other.id)?.element.querySelectorAll(".turn") ?? [];
    [...buttons].filter((button) => !button.disabled).at(by > 0 ? -1 : 0)?.focus();
  }

  stop() {
    return this.answers.stop(this.current.id);
  }

  #settle() {
    this.keeping.now(this.current);
    this.#draw();
  }

  /** Whether an answer is being written in the conversation that is shown. */
  get #busy() {
    return this.answers.has(this.current.id);
  }

  /** The request's fields; null where a parameter is wrong, which is said. */
  #request() {
    try {
      return requestOf(this.current.record.settings, this.model.system);
    } catch (error) {
      notify(error.message, { one: "wrong", bad: true, action: ["Open parameters", () => this.settings.dialog.showModal()] });
      return null;
    }
  }

  #generate(node, more = {}) {
    this.titles.stop();
    this.answers.begin(this.current, node, this.#request(), more);
    this.#settle();
  }

  #tell(conversation, node) {
    if (conversation.id !== this.current.id) {
      notify(`The answer in “${conversation.title}” has ended.`);
      return;
    }
    this.#draw();
    speak(node.problem ? `Error: ${node.problem.message}` : `${node.state === "stopped" ? "Stopped" : "Answer"}: ${node.content.slice(0, 1000)}`);
    if (node.problem?.status === 401) this.key.open();
    else if (this.model.away) this.model.load();
  }

  // --- conversations

  async rename(id, title) {
    const record = id === this.current.id ? null : await this.store.load(id);
    const conversation = record ? new Conversation(record) : this.current;
    conversation.rename(title);
    await this.keeping.now(conversation);
    this.#draw();
  }

  async removeConversation(id) {
    this.answers.stop(id);
    await this.keeping.forget(id);
    const [record, files] = [await this.store.load(id), await this.store.mediaOf(id)];
    await this.store.remove(id);
    if (id === this.current.id) this.fresh();
    this.#list();
    notify(`Deleted “${record?.title || "Untitled"}”.`, { one: "removed", action: ["Undo", async () => {
      this.keeping.remember(id);
      await this.store.saveMedia(id, files);
      await this.keeping.now(new Conversation(record));
      location.hash = `#chat/${id}`;
    }] });
  }

  // --- parameters

  #set(settings) {
    const { record } = this.current;
    record.settings = settings;
    record.settingsAt = Date.now();
    keepLast(settings);
    if (!this.current.isEmpty) this.keeping.soon(this.current);
  }
}
