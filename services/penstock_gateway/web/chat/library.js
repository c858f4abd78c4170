/** The dialog of the library of prompts: insert, add, edit and delete. */

import { prepare } from "./dialogs.js";
import { at, icon, iconButton, make } from "./dom.js";
import { addPrompts, keepPrompts, MOST_NAME, MOST_TEXT, prompts } from "./prompts.js";

export class PromptsDialog {
  /** The prompt that is being changed; null while a new one is written. */
  #changed = null;

  /** written: returns what stands in the message box.  insert: called with the text of a prompt. */
  constructor({ written, insert }) {
    this.written = written;
    this.insert = insert;
    this.dialog = at("prompts");
    prepare(this.dialog);
    this.name = at("prompt-name");
    this.text = at("prompt-text");
    this.name.maxLength = MOST_NAME;
    this.text.maxLength = MOST_TEXT;
    at("open-prompts").append(icon("book"));
    at("open-prompts").addEventListener("click", () => this.open());
    at("prompt-cancel").addEventListener("click", () => this.#write(null));
    this.dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save();
    });
    addEventListener("storage", () => this.#list());
  }

  open() {
    this.#list();
    this.#write(null);
    this.text.value = this.written().slice(0, MOST_TEXT);
    at("prompt-said").replaceChildren();
    this.dialog.showModal();
  }

  #list() {
    const all = prompts();
    at("prompt-list").replaceChildren(...all.map((each) => make("li", {},
      make("button", { type: "button", class: "insert", on: { click: () => this.#insert(each) } },
        make("strong", { text: each.name }), make("span", { class: "muted", text: each.text.slice(0, 200) })),
      iconButton("edit", `Edit ${each.name}`, () => this.#write(each)),
      iconButton("trash", `Delete ${each.name}`, () => this.#remove(each)))));
    at("prompt-list").hidden = !all.length;
  }

  #insert({ text }) {
    this.dialog.close();
    this.insert(text);
  }

  /** Shows a prompt in the boxes to change it; null: empties them for a new one. */
  #write(prompt) {
    this.#changed = prompt;
    this.name.value = prompt?.name ?? "";
    this.text.value = prompt?.text ?? "";
    at("prompt-wrong").textContent = "";
    at("prompt-title").textContent = prompt ? `Change “${prompt.name}”` : "New prompt";
    at("prompt-cancel").hidden = !prompt;
    if (this.dialog.open) this.name.focus();
  }

  #save() {
    const made = { name: this.name.value, text: this.text.value };
    const same = (each) => each.name === this.#changed?.name && each.text === this.#changed?.text;
    try {
      if (!made.name.trim()) throw new Error("Give the prompt a name");
      if (!made.text.trim()) throw new Error("Write the prompt's text");
      keepPrompts([...prompts().filter((each) => !same(each)), made]);
    } catch (error) {
      at("prompt-wrong").textContent = `${error.message}.`;
      (made.name.trim() ? this.text : this.name).focus();
      return;
    }
    this.#list();
    this.#write(null);
    this.#say(`Saved “${made.name.trim()}”.`);
  }

  #remove(prompt) {
    const place = prompts().findIndex((each) => each.name === prompt.name && each.text === prompt.text);
    keepPrompts(prompts().filter((_, index) => index !== place));
    this.#list();
    if (this.#changed?.name === prompt.name) this.#write(null);
    const left = at("prompt-list").querySelectorAll(".insert");
    (left[Math.min(place, left.length - 1)] ?? this.name).focus();
    this.#say(`Deleted “${prompt.name}”.`, make("button", {
      type: "button", class: "link", text: "Undo", on: { click: () => {
        addPrompts([prompt]);
        this.#list();
        this.#say(`“${prompt.name}” is back.`);
        this.name.focus();
      } },
    }));
  }

  /** Within the dialog: while it is open, a screen reader hears nothing from elsewhere. */
  #say(words, ...more) {
    at("prompt-said").replaceChildren(make("span", { text: words }), ...more);
  }
}
