/** Which model answers, and how much of its context is used. */

import { ApiError, models } from "./api.js";
import { at } from "./dom.js";
import { MOST_DOCUMENTS } from "./media.js";

const AGAIN = 3000;
const KEY = "penstock.model";
/** What is said of a model that isn't there: a message has it loaded. */
const WORDS = { absent: "not loaded", preparing: "loading", starting: "loading", closing: "leaving", stopping: "leaving" };

function remembered() {
  try {
    return localStorage.getItem(KEY) ?? "";
  } catch {
    return ""; // No storage.
  }
}

function remember(name) {
  try {
    localStorage.setItem(KEY, name);
  } catch {
    // No storage: it holds until the page is closed.
  }
}

function chats(model) {
  return !model.tasks || model.tasks.includes("generate");
}

export class Model {
  #timer = 0;
  #tokens = 0;
  /** All that are served, as the server lists them. */
  #all = [];
  name = "";
  limit = 0;
  /** Whether it writes text; one that makes vectors can't be chatted with. */
  chats = true;
  /** Whether it writes down what is said, and does nothing else. */
  transcribes = false;
  /** Whether it isn't loaded: what it takes is known once a message has had it loaded. */
  away = false;
  /** Kinds of media that a prompt may hold, and how many of each. */
  media = {};
  /** Its name on the hub; "" where it has none. */
  hubId = "";
  /** Values of parameters that are left empty: the model's own, and what is added. */
  defaults = {};
  #added = {};

  /** wanted: called when the server asks for a key.  known: called when it is known what it is. */
  constructor(wanted, known) {
    this.wanted = wanted;
    this.known = known;
  }

  /** Asks for it, and again while the server isn't ready. */
  async load() {
    clearTimeout(this.#timer);
    try {
      // Of the names of one model, its own is enough.
      this.#all = (await models()).filter((each) => each.parent || !each.root || each.id === each.root);
      const wanted = [this.name, remembered()].find((name) => this.#all.some((each) => each.id === name));
      this.#take(this.#all.find((each) => each.id === wanted) ?? this.#all.find(chats) ?? this.#all[0]);
    } catch (error) {
      this.name = "";
      if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
        this.#show("An API key is needed");
        this.wanted();
        return;
      }
      this.#show("The server is not ready");
      this.#timer = setTimeout(() => this.load(), AGAIN);
    }
  }

  #take(model) {
    this.name = model?.id ?? "";
    this.limit = model?.max_model_len ?? 0;
    this.chats = !model || chats(model);
    this.away = model?.max_model_len === null;
    this.transcribes = Boolean(model?.tasks?.includes("transcription"));
    // A text is taken by whatever chats.
    this.media = this.transcribes ? { audio: 1 } : { ...model?.media, ...(this.chats && { document: MOST_DOCUMENTS }) };
    this.hubId = model?.hub_id ?? "";
    this.#added = model?.chat_params ?? {};
    this.defaults = { ...model?.default_sampling_params, ...this.#added };
    this.#show(this.name ? "" : "No model for this key");
    this.known(this);
  }

  /** The system prompt where none is set. */
  get system() {
    return this.#added.system ?? "";
  }

  /**
   * What a chat adds to its requests where nothing is set. last: the message that is new in the
   * prompt. Where the context might leave less than the longest answer, nothing is said of that.
   */
  adds(last, system) {
    const { max_tokens: longest, system: _, ...rest } = this.#added;
    const read = (last?.attached ?? []).filter((each) => each.kind === "document").reduce((sum, each) => sum + (each.tokens ?? each.size), 0);
    const characters = (last?.content.length ?? 0) + system.length + read;
    const fits = longest && this.#tokens + characters + longest < this.limit - 256;
    return fits ? { ...rest, max_tokens: longest } : rest;
  }

  #show(instead) {
    const place = at("model");
    if (!instead && this.#all.length > 1) place.replaceChildren(this.#choice());
    else place.textContent = instead || this.name;
    at("model-too").textContent = this.name; // where the bar has no room for it
    place.title = this.limit ? `${this.limit.toLocaleString("en")} tokens of context` : "";
    place.classList.toggle("amiss", Boolean(instead));
    this.used(this.#tokens);
  }

  /** All that there are, to choose from. */
  #choice() {
    const choice = document.createElement("select");
    choice.setAttribute("aria-label", "Model");
    for (const { id, state } of this.#all) {
      const option = document.createElement("option");
      option.value = id;
      option.textContent = state && state !== "ready" ? `${id} (${WORDS[state] ?? state})` : id;
      option.selected = id === this.name;
      choice.append(option);
    }
    choice.addEventListener("change", () => {
      remember(choice.value);
      this.#take(this.#all.find((each) => each.id === choice.value));
    });
    return choice;
  }

  /** Tokens that are used of the context, and those that it has. */
  get room() {
    return { used: this.#tokens, limit: this.limit };
  }

  /** tokens: of the last answer and all before it. */
  used(tokens) {
    this.#tokens = tokens ?? 0;
    const limit = this.limit.toLocaleString("en");
    if (!this.limit || this.transcribes) at("used").textContent = "";
    else if (!this.#tokens) at("used").textContent = `Context of ${limit} tokens`;
    else at("used").textContent = `${this.#tokens.toLocaleString("en")} of ${limit} tokens`;
  }
}
