/** The two dialogs: parameters, and the API key. The browser keeps the focus inside of them. */

import { apiKey } from "./api.js";
import { at, icon, make } from "./dom.js";
import { FIELDS, defaultOf, valueOf } from "./settings.js";
import { wanted } from "./titles.js";

/** Opens a dialog; a press on the veil around it, or on what says so, closes it. */
export function prepare(dialog) {
  for (const button of dialog.querySelectorAll("[data-close]")) {
    if (!button.textContent) button.append(icon("close"));
    button.addEventListener("click", () => dialog.close());
  }
  dialog.addEventListener("mousedown", (event) => {
    if (event.target === dialog) dialog.close();
  });
}

export class SettingsDialog {
  #settings = {};
  #changed;

  /** changed: called with the settings after each change that is valid. */
  constructor(changed) {
    this.#changed = changed;
    this.dialog = at("settings");
    prepare(this.dialog);
    at("fields").append(...FIELDS.map((field) => this.#field(field)));
    at("open-settings").prepend(icon("sliders"));
    at("open-settings").addEventListener("click", () => this.dialog.showModal());
    at("titles").checked = wanted.get();
    at("titles").addEventListener("change", () => wanted.set(at("titles").checked));
    at("reset-settings").addEventListener("click", () => {
      for (const field of FIELDS) this.#input(field).value = "";
      this.#read();
    });
    this.dialog.querySelector("form").addEventListener("submit", (event) => {
      const wrong = this.dialog.querySelector("[aria-invalid=true]");
      if (!wrong) return;
      event.preventDefault();
      wrong.focus();
    });
  }

  #input = (field) => at(`field-${field.name}`);

  /** own: the model's own defaults, by field. */
  showDefaults(own) {
    for (const field of FIELDS) {
      const value = defaultOf(field, own);
      if (value) this.#input(field).placeholder = `default: ${value}`;
    }
  }

  #field(field) {
    const { name, label, kind, help, least, most, step } = field;
    const id = `field-${name}`;
    const common = { id, "aria-describedby": `${id}-help ${id}-wrong`, spellcheck: name === "system" ? "true" : "false" };
    const numeric = kind === "number" || kind === "whole";
    const input = numeric
      ? make("input", { ...common, type: "number", min: least, max: most, step: step ?? "1", inputmode: kind === "whole" ? "numeric" : "decimal", placeholder: defaultOf(field) ? `default: ${defaultOf(field)}` : "default" })
      : make("textarea", { ...common, rows: kind === "text" ? "4" : "2", class: kind === "json" ? "mono" : null });
    input.addEventListener("input", () => this.#read());
    return make("div", { class: `field ${numeric ? "short" : ""}` },
      make("label", { for: id, text: label }), input,
      make("small", { class: "muted", id: `${id}-help`, text: help }),
      make("small", { class: "wrong", id: `${id}-wrong` }));
  }

  /** Takes what the boxes say; what is wrong is said beside its box. */
  #read() {
    const settings = {};
    for (const field of FIELDS) {
      const input = this.#input(field);
      // A number's box is empty where it holds letters: the browser says so.
      let wrong = input.validity.badInput ? `${field.label} must be a number` : "";
      try {
        valueOf(field, input.value);
      } catch (error) {
        wrong = error.message;
      }
      input.setAttribute("aria-invalid", String(Boolean(wrong)));
      at(`${input.id}-wrong`).textContent = wrong;
      if (input.value !== "" && !wrong) settings[field.name] = input.value;
    }
    this.#settings = settings;
    this.#count();
    this.#changed(settings);
  }

  /** Shows the settings of a conversation. */
  show(settings) {
    this.#settings = settings;
    for (const field of FIELDS) {
      const input = this.#input(field);
      if (document.activeElement !== input) input.value = settings[field.name] ?? "";
      input.setAttribute("aria-invalid", "false");
      at(`${input.id}-wrong`).textContent = "";
    }
    this.#count();
  }

  #count() {
    const set = Object.keys(this.#settings).length;
    at("open-settings").querySelector(".label").textContent = set ? `Parameters (${set})` : "Parameters";
    at("open-settings").setAttribute("aria-label", set ? `Parameters, ${set} set` : "Parameters");
  }
}

export class KeyDialog {
  /** saved: called when there is another key. */
  constructor(saved) {
    this.dialog = at("key-dialog");
    prepare(this.dialog);
    at("open-key").prepend(icon("key"));
    at("open-key").addEventListener("click", () => this.open());
    this.dialog.querySelector("form").addEventListener("submit", () => {
      apiKey.set(at("key").value.trim(), at("remember").checked);
      saved();
    });
  }

  open() {
    at("key").value = apiKey.get();
    at("remember").checked = apiKey.remembered;
    if (!this.dialog.open) this.dialog.showModal();
    at("key").focus();
  }
}
