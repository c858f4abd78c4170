/** The answers that are being written, at most one in a conversation. After a reload they go on. */

import { Conversation } from "./conversation.js";
import { Generation } from "./generation.js";
import { messagesOf } from "./media.js";
import { formOf, transcribe } from "./speech.js";
import { ask, repeated } from "./stream.js";

const RUNNING = "penstock.running";
/** What the locks are called by which tabs share out the answers. */
const CLAIM = "penstock.writes.";
/** Milliseconds between a lost connection and the end of a page that is left, at most. */
const LULL = 500;
/** Milliseconds until a page that was left has let go of its answers, at most. */
const HANDOVER = 1000;
/** States of an answer that was being written when its page was left. */
const UNFINISHED = ["open", "lost", "failed"];

export class Answers {
  /** id of a conversation -> {conversation, node, generation, claim, over: a promise of the end}. */
  #running = new Map();
  /** Whether the page goes away: it breaks off what is being written, which is no end of it. */
  #leaving = false;

  /** chat: {store, keeping, model}.  grown, ended: called with the conversation and the node. */
  constructor(chat, { grown, ended }) {
    this.chat = chat;
    this.grown = grown;
    this.ended = ended;
    addEventListener("pageshow", ({ persisted }) => {
      if (persisted && this.#running.size) location.reload(); // It was put aside in mid-answer.
      this.#leaving = false;
    });
    addEventListener("pagehide", () => {
      this.#leaving = true;
      for (const { conversation, node, claim } of this.#running.values()) {
        conversation.touch(node);
        chat.keeping.leave(conversation);
        claim.release();
      }
    });
  }

  /** Whether one is being written in the conversation with this id. */
  has(id) {
    return this.#running.has(id);
  }

  /** Whether any is being written. */
  get any() {
    return this.#running.size > 0;
  }

  /** The conversation with this id, if one is being written in it. */
  conversation(id) {
    return this.#running.get(id)?.conversation;
  }

  /** Whether this node is the one that is being written. */
  writes(id, node) {
    return this.#running.get(id)?.node === node;
  }

  /** Ends the one that is being written in a conversation. Resolves once it has ended. */
  stop(id) {
    const answer = this.#running.get(id);
    answer?.generation.stop();
    return answer?.over;
  }

  /**
   * Asks for an answer. request: {system, fields}.  more: fields that only this request has. With a
   * seed, the same request has the same answer, whenever it is sent.
   */
  begin(conversation, node, { system, fields }, more = {}) {
    const { name, transcribes } = this.chat.model;
    const last = more.continue_final_message ? node.id : node.parent;
    const [seed] = crypto.getRandomValues(new Uint32Array(1));
    const added = transcribes ? {} : this.chat.model.adds(conversation.shown(last).at(-1), system);
    node.asked = {
      transcribes, system, last, body: { ...(name && { model: name }), seed, ...added, ...fields, ...more },
      from: { content: node.content.length, reasoning: node.reasoning?.length ?? 0 },
    };
    this.#begin(conversation, node, claimed(node.id), (generation, body, by) => generation.run(body, by));
  }

  /** Goes on with what this tab wrote when it was left: the same requests are sent again. */
  async resume() {
    const found = await Promise.all(Object.entries(left()).map(async ([id, nodeId]) => {
      const claim = claimed(nodeId);
      // Read once it is this tab's: until then another one may end it.
      const record = (await claim.granted) ? await this.chat.store.load(id) : null;
      return { record, node: record?.nodes[nodeId], claim };
    }));
    for (const { record, node, claim } of found) {
      if (!UNFINISHED.includes(node?.state) || !node.asked) {
        claim.release();
        continue;
      }
      this.#begin(new Conversation(record), node, claim, async (generation, body, by) => {
        await generation.run(body, by, repeated(node, node.asked.from));
        if (node.state === "failed" && node.content) node.state = "lost"; // As where it was cut off.
      });
    }
    this.#note();
  }

  #begin(conversation, node, claim, run) {
    const generation = new Generation(conversation, node, () => {
      if (this.has(conversation.id)) {
        node.rev += 1;
        this.chat.keeping.soon(conversation);
      }
      this.grown(conversation, node);
    });
    const answer = { conversation, node, generation, claim };
    this.#running.set(conversation.id, answer);
    this.#note();
    node.state = "open";
    answer.over = this.#write(answer, run);
  }

  async #write({ conversation, node, generation, claim }, run) {
    await run(generation, this.#body(conversation, node), node.asked.transcribes ? transcribe : ask);
    // A page that is left loses its connections first, and hears of that.
    const broken = node.state === "lost" || node.problem?.code === "unreachable";
    if (broken) await new Promise((resolve) => setTimeout(resolve, LULL));
    if (this.#leaving) return;
    delete node.asked;
    this.#running.delete(conversation.id);
    this.#note();
    this.chat.keeping.now(conversation).then(claim.release);
    this.ended(conversation, node);
  }

  /** What is sent: with the messages as they were when it was sent first. */
  async #body(conversation, node) {
    const { transcribes, system, last, body, from } = node.asked;
    const load = (id) => this.chat.store.loadMedia(id);
    const shown = conversation.shown(last).map((each) => (each === node ? { ...each, content: each.content.slice(0, from.content) } : each));
    if (transcribes) return formOf(shown.at(-1), body.model, body, load);
    return { ...body, messages: await messagesOf(shown, system, load) };
  }

  /** Writes down for this tab what is being written. */
  #note() {
    if (this.#leaving) return;
    try {
      const nodes = [...this.#running].map(([id, { node }]) => [id, node.id]);
      sessionStorage.setItem(RUNNING, JSON.stringify(Object.fromEntries(nodes)));
    } catch {
      // No storage: after a reload an answer is as far as it was kept.
    }
  }
}

/**
 * Asks to be the one tab that writes the answer with this id: a duplicated tab has the note of what
 * its original writes. Returns {granted: a promise of whether it is, release: gives that up}.
 */
function claimed(id) {
  let release;
  const released = new Promise((resolve) => (release = resolve));
  const granted = new Promise((resolve) => {
    if (!navigator.locks) return resolve(true); // Over plain HTTP from another machine.
    const hold = () => {
      resolve(true);
      return released;
    };
    const waiting = new AbortController();
    setTimeout(() => waiting.abort(), HANDOVER);
    navigator.locks.request(CLAIM + id, { signal: waiting.signal }, hold).catch(() => resolve(false));
  });
  return { granted, release };
}

/** Ids of conversations and of the nodes that were being written in them. */
function left() {
  try {
    return JSON.parse(sessionStorage.getItem(RUNNING) ?? "{}") ?? {};
  } catch {
    return {};
  }
}
