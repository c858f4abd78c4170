/** Titles of conversations by the model: asked for after the first answer, and taken if they make sense. */

import { DEMONSTRATION } from "./examples.js";
import { messagesOf } from "./media.js";
import { requestOf } from "./settings.js";
import { ask, take } from "./stream.js";

const SWITCH = "penstock.titles";
const WORDS = "Give this conversation a title of two to six words. Reply with the title only.";
const MOST_TOKENS = 24;
/** Characters of a title. */
const LONGEST = 60;
/** Milliseconds that a busy server has for it. */
const PATIENCE = 20_000;
/** Scripts that write no blanks between words. */
const JOINED = /[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}]/u;

/** Whether titles are asked for at all: a choice for this browser. */
export const wanted = {
  get() {
    try {
      return localStorage.getItem(SWITCH) !== "off";
    } catch {
      return true;
    }
  },
  set(is) {
    try {
      if (is) localStorage.removeItem(SWITCH);
      else localStorage.setItem(SWITCH, "off");
    } catch {
      // No storage: they are asked for.
    }
  },
};

/**
 * The title in a model's reply; "" where it is none: several lines, a sentence, a loop, or nothing
 * that the conversation's text speaks of.
 */
export function titleIn(reply, text) {
  const title = reply.trim().replace(/^title\s*:/i, "").replace(/^[\s"'“”„«»*_#`]+|[\s"'“”«»*_`.。]+$/g, "");
  const words = title.toLowerCase().split(/\s+/);
  if (!/\p{L}{2}/u.test(title) || title.length > LONGEST || words.length > 8 || /[\n<>]/.test(title)) return "";
  if (words.some((word) => words.filter((each) => each === word).length > 2)) return "";
  const said = text.toLowerCase();
  const stems = JOINED.test(title) ? pairs(title) : stemsOf(title.toLowerCase());
  const known = stems.filter((stem) => said.includes(stem)).length;
  return 3 * known >= stems.length ? title : "";
}

/** The beginnings of the longer words: "formation" is about "forms". */
function stemsOf(title) {
  const words = title.match(/[\p{L}\p{N}]+/gu);
  const long = words.filter((word) => word.length > 3);
  return (long.length ? long : words).map((word) => word.slice(0, 4));
}

const pairs = (title) => [...title].slice(1).map((letter, index) => [...title][index] + letter);

export class Titles {
  #abort = null;

  /** chat: {store, model, answers, keeping}.  titled: called with a conversation that has a new title. */
  constructor(chat, titled) {
    this.chat = chat;
    this.titled = titled;
  }

  /** Gives it up: something else is asked now. */
  stop() {
    this.#abort?.abort();
    this.#abort = null;
  }

  /** Asks for the title of a conversation whose first answer this is. Where it fails, the first words stay. */
  async after(conversation, node) {
    if (!this.#asks(conversation, node)) return;
    this.stop();
    const abort = (this.#abort = new AbortController());
    try {
      const reply = { content: "" };
      for await (const chunk of ask(await this.#body(conversation, node), abort.signal)) take(reply, chunk, {}, 0);
      const text = conversation.path().map(({ content }) => content).join("\n");
      const title = reply.finish === "stop" ? titleIn(reply.content, text) : "";
      if (title && conversation.entitle(title)) this.titled(conversation);
    } catch {
      // Busy, aborted or out of reach.
    }
  }

  #asks(conversation, node) {
    const { model, answers } = this.chat;
    const path = conversation.path();
    // Files would be sent a second time, all of them.
    if (conversation.attached().length) return false;
    return wanted.get() && model.chats && !model.transcribes && model.hubId !== DEMONSTRATION && !answers.any
      && path.length === 2 && path[1] === node && node.state === "done" && node.content && conversation.isUntitled
      && (node.usage?.total_tokens ?? 0) + 4 * MOST_TOKENS + WORDS.length < model.limit;
  }

  /** As the next message would be: all before it is in the prefix cache. */
  async #body(conversation, node) {
    const { model, store } = this.chat;
    const { system } = requestOf(conversation.record.settings, model.system);
    const messages = await messagesOf(conversation.shown(node.id), system, (id) => store.loadMedia(id));
    return {
      model: model.name, messages: [...messages, { role: "user", content: WORDS }], max_tokens: MOST_TOKENS, temperature: 0,
      enable_thinking: false, deadline_ms: PATIENCE,
    };
  }
}
