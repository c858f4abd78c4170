/** The box at the bottom: Enter sends, Shift+Enter starts a line, Esc stops. */

import { at, icon } from "./dom.js";

export class Composer {
  #running = false;
  /** Whether a message is being taken. */
  #sending = false;
  #needsFile = false;

  /** acts: {send(text, files) -> whether it was taken, stop, busy}.  attaching: what is attached. */
  constructor(acts, attaching) {
    this.acts = acts;
    this.attaching = attaching;
    this.box = at("message");
    this.coarse = matchMedia("(pointer: coarse)");
    if (this.coarse.matches) at("hint").textContent = "The arrow sends";
    at("send").append(icon("send"));
    at("stop").append(icon("stop"));
    at("stop").addEventListener("click", () => acts.stop());
    at("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.box.addEventListener("keydown", (event) => this.#key(event));
    this.box.addEventListener("input", () => this.#fit());
    this.#fit();
  }

  #key(event) {
    // On a phone, the keyboard's Enter is the only way to a new line. A composition's Enter ends it.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || this.coarse.matches) return;
    event.preventDefault();
    this.#send();
  }

  async #send() {
    if (this.#sending || this.#isEmpty) return;
    this.#sending = true;
    try {
      await this.attaching.settled();
      if (!this.#isEmpty && !this.attaching.isBlocked) await this.#hand();
    } finally {
      this.#sending = false;
    }
  }

  /** Hands over what is written and attached; what isn't taken comes back. */
  async #hand() {
    const text = this.box.value;
    const files = this.attaching.taken();
    this.box.value = "";
    this.#fit();
    if (files.length) this.running(true); // Until they are kept, and the answer begins.
    let taken = false;
    try {
      taken = await this.acts.send(text, files);
    } finally {
      if (!taken) this.#giveBack(text, files);
    }
  }

  /** What wasn't taken is there to be sent again. */
  #giveBack(text, files) {
    this.running(this.acts.busy());
    this.attaching.putBack(files);
    if (!this.box.value) this.put(text);
  }

  get #isEmpty() {
    return this.attaching.isEmpty && (this.#needsFile || !this.box.value.trim());
  }

  /** Something was attached, or taken away. */
  attached() {
    this.#fit();
  }

  /** What the model takes: text, or a sound with some words, or nothing that is written here. */
  known({ chats, transcribes }) {
    this.#needsFile = transcribes;
    this.box.disabled = !chats && !transcribes;
    if (chats) this.box.placeholder = "Write a message";
    else if (transcribes) this.box.placeholder = "Names and words in the sound, if any";
    else this.box.placeholder = "This model returns vectors and can't chat";
    this.#fit();
  }

  /** Puts a text into the box. */
  put(text) {
    this.box.value = text;
    this.#fit();
    this.focus();
  }

  /** Puts a text where the cursor is, in the place of what is selected. */
  insert(text) {
    this.box.setRangeText(text, this.box.selectionStart, this.box.selectionEnd, "end");
    this.#fit();
    this.focus();
  }

  focus() {
    this.box.focus({ preventScroll: true });
  }

  /** Shows the button that stops in the place of the one that sends, or beside it while something
   * is written: to send that stops the answer, too. */
  running(is) {
    if (is === this.#running) return;
    this.#running = is;
    const held = [at("send"), at("stop")].includes(document.activeElement);
    at("stop").hidden = !is;
    this.#fit();
    if (held) (is ? at("stop") : this.box).focus();
  }

  #fit() {
    at("send").disabled = this.#isEmpty || this.attaching.isBlocked;
    at("send").hidden = this.#running && this.#isEmpty;
    if (CSS.supports("field-sizing", "content")) return;
    this.box.style.height = "auto";
    this.box.style.height = `${Math.min(this.box.scrollHeight, 240)}px`;
  }
}
