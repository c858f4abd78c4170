/** What is attached to the message that is being written: by button, paste and drop. */

import { at, icon, iconButton, make } from "./dom.js";
import { describe, KINDS, obstacle, refusal, unknown } from "./media.js";
import { notify, speak } from "./notices.js";
import { pictureOf } from "./pictures.js";
import { Recorder } from "./recorder.js";

export class Attaching {
  #files = new Map();
  #takes = {};
  #model = "";
  #open = false;
  /** Whether each message is asked by itself. */
  #each = false;
  #away = false;

  /** kept: returns the descriptions of what the conversation has.  changed: called after each change. */
  constructor({ kept, changed }) {
    this.kept = kept;
    this.changed = changed;
    this.list = at("attached");
    this.input = at("attach-file");
    this.button = at("attach");
    this.button.append(icon("clip"));
    this.button.addEventListener("click", () => {
      if (this.#able()) this.input.click();
      else this.#refuse();
    });
    this.input.addEventListener("change", () => {
      this.take(this.input.files);
      this.input.value = "";
      at("message").focus();
    });
    this.recorder = new Recorder({
      may: () => this.#wrong({ type: "audio/wav", name: "", size: 1 }),
      take: (file) => this.take([file]),
      refuse: (words) => notify(words, { one: "record", bad: true }),
    });
    at("message").addEventListener("paste", (event) => this.#pasted(event));
    this.#listenForDrops(at("chat"));
  }

  /** media: kind -> most items, of the model with this name.  open: whether it can be asked at all. */
  known({ name, media, chats, transcribes, away }) {
    this.#model = name;
    this.#takes = media;
    this.#open = chats || transcribes;
    this.#each = transcribes;
    this.#away = away;
    this.button.hidden = !this.#open;
    this.button.setAttribute("aria-disabled", String(!this.#able()));
    const cannot = away ? `${name} is not loaded` : `${name || "This model"} can't see or hear`;
    const words = this.#able() ? `Attach ${this.#kinds().map((kind) => KINDS[kind].many).join(" or ")}` : cannot;
    this.button.setAttribute("aria-label", words);
    this.button.title = words;
    this.recorder.known(this.#open && Boolean(media.audio));
    this.note();
    this.input.accept = this.#kinds().flatMap((kind) => KINDS[kind].types).join(",");
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
    this.#show();
    return all;
  }

  /** Attaches again what was taken. */
  putBack(all) {
    for (const [description, file] of all) this.#files.set(description, file);
    this.#show();
  }

  /** Attaches files; says of each that can't be why. */
  take(files) {
    const names = [];
    for (const file of files) {
      const wrong = this.#wrong(file);
      if (wrong) {
        notify(wrong, { one: "attach", bad: true });
        continue;
      }
      const description = describe(file);
      this.#files.set(description, file);
      names.push(description.name);
    }
    if (!names.length) return;
    this.#show();
    speak(`Attached: ${names.join(", ")}`);
  }

  /** Says beside the box where there are media that the model doesn't take. */
  note() {
    const words = this.#open ? obstacle(this.#state()) : "";
    at("cannot").hidden = !words;
    at("cannot").textContent = words;
  }

  #state() {
    const kept = this.#each ? [] : this.kept();
    return { takes: this.#takes, model: this.#model, attached: this.descriptions, kept, each: this.#each, away: this.#away };
  }

  /** Why a file can't be attached now; "" where it can. */
  #wrong(file) {
    return refusal(file, this.#state());
  }

  #kinds() {
    return Object.keys(KINDS).filter((kind) => this.#takes[kind]);
  }

  #able() {
    return this.#kinds().length > 0;
  }

  #refuse() {
    notify(this.#away ? unknown(this.#model) : `${this.#model || "This model"} can't see or hear: it takes text only.`, { one: "attach" });
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
      event.dataTransfer.dropEffect = this.#able() ? "copy" : "none";
      at("composer").classList.toggle("awaits", this.#able());
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
      return make("li", {}, pictureOf(description, () => file), remove);
    });
    this.list.replaceChildren(...items);
    this.list.hidden = items.length === 0;
    this.note();
    this.changed();
  }

  #remove(description) {
    const place = this.descriptions.indexOf(description);
    this.#files.delete(description);
    this.#show();
    speak(`Removed: ${description.name}`);
    const buttons = this.list.querySelectorAll("button");
    (buttons[Math.min(place, buttons.length - 1)] ?? at("message")).focus();
  }
}
