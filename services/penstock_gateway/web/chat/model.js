/** Which model answers, and how much of its context is used. */

import { ApiError, models } from "./api.js";
import { at } from "./dom.js";

const AGAIN = 3000;

export class Model {
  #timer = 0;
  #tokens = 0;
  name = "";
  limit = 0;
  /** Whether it writes text; one that makes vectors can't be chatted with. */
  chats = true;
  /** Whether it writes down what is said, and does nothing else. */
  transcribes = false;
  /** Kinds of media that a prompt may hold, and how many of each. */
  media = {};
  /** Its own values of parameters that a request leaves out. */
  defaults = {};

  /** wanted: called when the server asks for a key.  known: called when it is known what it is. */
  constructor(wanted, known) {
    this.wanted = wanted;
    this.known = known;
  }

  /** Asks for it, and again while the server isn't ready. */
  async load() {
    clearTimeout(this.#timer);
    try {
      const [model] = await models();
      this.name = model?.id ?? "";
      this.limit = model?.max_model_len ?? 0;
      this.chats = !model?.tasks || model.tasks.includes("generate");
      this.transcribes = Boolean(model?.tasks?.includes("transcription"));
      this.media = this.transcribes ? { audio: 1 } : model?.media ?? {};
      this.defaults = model?.default_sampling_params ?? {};
      this.#show(this.name ? "" : "No model for this key");
      this.known(this);
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

  #show(instead) {
    const place = at("model");
    place.textContent = instead || this.name;
    at("model-too").textContent = this.name; // where the bar has no room for it
    place.title = this.limit ? `${this.limit.toLocaleString("en")} tokens of context` : "";
    place.classList.toggle("amiss", Boolean(instead));
    this.used(this.#tokens);
  }

  /** tokens: of the last answer and all before it. */
  used(tokens) {
    this.#tokens = tokens ?? 0;
    const limit = this.limit.toLocaleString("en");
    if (!this.limit) at("used").textContent = "";
    else if (!this.#tokens) at("used").textContent = `Context of ${limit} tokens`;
    else at("used").textContent = `${this.#tokens.toLocaleString("en")} of ${limit} tokens`;
  }
}
