/** What is attached to the message that is being written: by button, paste and drop. */

import { measured } from "./documents.js";
import { at, icon, iconButton, make } from "./dom.js";
import { dataUri, describe, KINDS, obstacle, refusal } from "./media.js";
import { notify, speak } from "./notices.js";
import { pictureOf } from "./pictures.js";
import { Recorder } from "./recorder.js";

export class Attaching {
  #files = new Map();
  /** Documents that the chosen model's server is reading: description -> promise. */
  #reading = new Map();
  /** Why documents can't be read: description -> words. */
  #wrong = new Map();
  #takes = {};
  #model = "";
  #open = false;
  /** Whether each message is asked by itself. */
  #each = false;
  #away = false;

  /**
   * kept: returns the descriptions of what the conversation has.  room: returns {used, limit},
   * tokens of its context.  changed: called after each change.
   */
  constructor({ kept, room, changed }) {
    this.kept = kept;
    this.room = room;
    this.changed = changed;
    this.list = at("attached");
    this.input = at("attach-file");
    this.button = at("attach");
    this.button.append(icon("clip"));
    this.button.addEventListener("click", () => this.input.click());
    this.input.addEventListener("change", () => {
      this.take(this.input.files);
      this.input.value = "";
      at("message").focus();
    });
    this.recorder = new Recorder({
      may: () => this.#refusal({ type: "audio/wav", name: "", size: 1 }),
      take: (file) => this.take([file]),
      refuse: (words) => notify(words, { one: "record", bad: true }),
    });
    at("message").addEventListener("paste", (event) => this.#pasted(event));
    this.#listenForDrops(at("chat"));
  }

  /** media: kind -> most items, of the model with this name.  open: whether it can be asked at all. */
  known({ name, media, chats, transcribes, away }) {
    const other = name !== this.#model;
    this.#model = name;
    this.#takes = media;
    this.#open = chats || transcribes;
    this.#each = transcribes;
    this.#away = away;
    this.button.hidden = !this.#open;
    const kinds = this.#kinds().map((kind) => KINDS[kind].many);
    const words = `Attach ${[kinds.slice(0, -1).join(", "), kinds.at(-1)].filter(Boolean).join(" or ")}`;
    this.button.setAttribute("aria-label", words);
    this.button.title = words;
    this.recorder.known(this.#open && Boolean(media.audio));
    if (other) this.#readAll();
    this.note();
    // Of texts and code there are more types than anybody can list.
    this.input.accept = media.document ? "" : this.#kinds().flatMap((kind) => KINDS[kind].types).join(",");
  }

  /** Whether there is something that can't be sent. */
  get isBlocked() {
    return this.#wrong.size > 0;
  }

  /** Resolves once the server has read what is attached, also where another model is chosen meanwhile. */
  async settled() {
    while (this.#reading.size) await Promise.all(this.#reading.values());
  }

  /** Descriptions of what is attached, in order. */
  get descriptions() {
    return [...this.#files.keys()];
  }

  get isEmpty() {
    return this.#files.size === 0;
  }

  /** Takes away what is attached: [[description, file]]. */
  taken() {
    const all = [...this.#files];
    this.#files.clear();
    this.#reading.clear();
    this.#show();
    return all;
  }

  /** Attaches again what was taken. */
  putBack(all) {
    for (const [description, file] of all) this.#files.set(description, file);
    this.#show();
  }

  /** Has another model's server read the documents. */
  #readAll() {
    this.#wrong.clear();
    this.#reading.clear();
    for (const [description, file] of this.#files) {
      if (description.kind === "document") this.#begin(description, file);
    }
    if (this.#files.size) this.#show();
  }

  #begin(description, file) {
    if (this.#away) return;
    const reading = this.#read(file, description.name).then((said) => {
      // Else it was removed meanwhile, or another model was chosen.
      if (this.#reading.get(description) === reading) this.#hasRead(description, said);
    });
    this.#reading.set(description, reading);
  }

  /** Asks the server how many tokens a document has, or why it can't read it: as `measured`. */
  async #read(file, name) {
    const model = this.#model;
    let uri;
    try {
      uri = await dataUri(file);
    } catch {
      return { wrong: "Was changed or removed after it was attached; attach it again" };
    }
    return measured(KINDS.document.part(uri, name), model);
  }

  #hasRead(description, { tokens, wrong }) {
    this.#reading.delete(description);
    if (tokens) description.tokens = tokens;
    if (wrong) {
      this.#wrong.set(description, wrong);
      speak(`${description.name}: ${wrong}`);
    }
    this.#show();
  }

  /** Attaches files; says of each that can't be why. */
  take(files) {
    const names = [];
    for (const file of files) {
      const wrong = this.#refusal(file);
      if (wrong) {
        notify(wrong, { one: "attach", bad: true });
        continue;
      }
      const description = describe(file);
      const own = description.kind === "document" ? file.slice(0, file.size, description.type) : file;
      this.#files.set(description, own);
      if (own !== file) this.#begin(description, own);
      names.push(description.name);
    }
    if (!names.length) return;
    this.#show();
    speak(`Attached: ${names.join(", ")}`);
  }

  /** Says beside the box where there are media that the model doesn't take. */
  note() {
    const blocked = this.isBlocked ? "What can't be read isn't sent: remove it first." : "";
    const words = blocked || (this.#open ? obstacle(this.#state()) : "");
    at("cannot").hidden = !words;
    at("cannot").textContent = words;
  }

  #state() {
    const kept = this.#each ? [] : this.kept();
    return { takes: this.#takes, model: this.#model, attached: this.descriptions, kept, each: this.#each, away: this.#away, room: this.room() };
  }

  /** Why a file can't be attached now; "" where it can. */
  #refusal(file) {
    return refusal(file, this.#state());
  }

  #kinds() {
    return Object.keys(KINDS).filter((kind) => this.#takes[kind]);
  }

  #pasted(event) {
    const files = [...(event.clipboardData?.files ?? [])];
    // A copied table or text may bring a picture of itself along: the text is meant.
    if (!files.length || event.clipboardData.types.includes("text/plain")) return;
    event.preventDefault();
    this.take(files);
  }

  #listenForDrops(place) {
    const brings = (event) => this.#open && [...(event.dataTransfer?.types ?? [])].includes("Files");
    place.addEventListener("dragover", (event) => {
      if (!brings(event)) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = "copy";
      at("composer").classList.add("awaits");
    });
    place.addEventListener("dragleave", (event) => {
      if (!place.contains(event.relatedTarget)) at("composer").classList.remove("awaits");
    });
    place.addEventListener("drop", (event) => {
      at("composer").classList.remove("awaits");
      if (!brings(event)) return;
      event.preventDefault(); // Else the browser leaves the page and shows the file.
      this.take(event.dataTransfer.files);
      at("message").focus();
    });
  }

  #show() {
    const items = [...this.#files].map(([description, file]) => {
      const remove = iconButton("close", `Remove ${description.name}`, () => this.#remove(description));
      const wrong = this.#wrong.get(description);
      const item = make("li", { class: wrong ? "unread" : null, "aria-busy": this.#reading.has(description) ? "true" : null },
        pictureOf(description, () => file), remove);
      if (this.#reading.has(description)) item.querySelector(".known").textContent = "Reading…";
      if (wrong) item.querySelector(".known").replaceWith(make("span", { class: "known", text: wrong }));
      return item;
    });
    this.list.replaceChildren(...items);
    this.list.hidden = items.length === 0;
    this.note();
    this.changed();
  }

  #remove(description) {
    const place = this.descriptions.indexOf(description);
    for (const each of [this.#files, this.#reading, this.#wrong]) each.delete(description);
    this.#show();
    speak(`Removed: ${description.name}`);
    const buttons = this.list.querySelectorAll("button");
    (buttons[Math.min(place, buttons.length - 1)] ?? at("message")).focus();
  }
}
