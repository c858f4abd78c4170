/** One message on the page. */

import { accountOf } from "./account.js";
import { hush, reader } from "./aloud.js";
import { copy, iconButton, make } from "./dom.js";
import { pictureOf } from "./pictures.js";
import { MarkdownView } from "./render.js";

const ENDED = {
  stopped: "Stopped",
  lost: "Cut off",
  open: "Not finished",
};

export class MessageView {
  #shown = { content: 0, reasoning: 0, foot: null };
  #markdown;
  #clock = 0;

  /** acts: what its buttons do: {edit, regenerate, proceed, retry, remove, turn, key, load,
   * running}. */
  constructor(node, acts) {
    this.node = node;
    this.acts = acts;
    const mine = node.role === "user";
    this.body = make("div", { class: "body" });
    this.parts = make("div", { class: "parts" }, this.body);
    this.foot = make("div", { class: "foot" });
    const who = make("h2", { class: "unseen", text: mine ? "You" : "Answer" });
    this.element = make("li", { class: `message ${node.role}`, "data-id": node.id }, who, this.parts, this.foot);
    this.#markdown = new MarkdownView(this.body);
    if (node.attached?.length) this.#showAttached(node.attached);
  }

  /** Whether this view can go on to show `node`, perhaps with more in it. */
  fits(node, content) {
    return node.id === this.node.id && content.length >= this.#shown.content
      && content.startsWith(this.node.content.slice(0, this.#shown.content));
  }

  /** Brings the element up to date. siblings: [place, number] of this branch. */
  sync(siblings = this.siblings ?? [1, 1]) {
    this.siblings = siblings;
    const { node } = this;
    const added = node.content.slice(this.#shown.content);
    if (added) {
      this.#markdown.append(added);
      this.#shown.content = node.content.length;
    }
    this.#syncReasoning();
    this.#syncCalls();
    const running = this.acts.running(node);
    this.element.classList.toggle("running", running);
    this.element.setAttribute("aria-busy", String(running));
    const foot = JSON.stringify([running, node.state, node.rev, siblings]);
    if (foot !== this.#shown.foot) {
      this.#shown.foot = foot;
      this.#makeFoot(running);
    }
  }

  #showAttached(attached) {
    const items = attached.map((each) => make("li", {}, pictureOf(each, () => this.acts.load(each.id))));
    this.parts.before(make("ul", { class: "shown", "aria-label": "Attached" }, ...items));
  }

  #syncReasoning() {
    const text = this.node.reasoning;
    if (!text) return;
    if (!this.reasoning) {
      this.reasoning = document.createTextNode("");
      this.parts.prepend(make("details", { class: "reasoning" }, make("summary", { text: "Reasoning" }), make("div", {}, this.reasoning)));
    }
    if (text.length > this.#shown.reasoning) this.reasoning.appendData(text.slice(this.#shown.reasoning));
    this.#shown.reasoning = text.length;
  }

  #syncCalls() {
    const calls = this.node.calls;
    if (!calls?.length) return;
    if (!this.calls) {
      this.calls = make("pre", { tabindex: "0", role: "group", "aria-label": "Tool calls" });
      this.parts.append(make("div", { class: "calls" }, make("p", { class: "muted", text: "Tool calls" }), this.calls));
    }
    this.calls.textContent = JSON.stringify(calls.map(({ function: called }) => ({ name: called.name, arguments: parsed(called.arguments) })), null, 2);
  }

  #makeFoot(running) {
    clearInterval(this.#clock);
    this.foot.replaceChildren();
    this.problem?.remove();
    const { node, acts } = this;
    if (running) return;
    if (node.problem) {
      this.problem = this.#makeProblem(node.problem);
      this.parts.append(this.problem);
    }
    const buttons = make("div", { class: "buttons", role: "group", "aria-label": node.role === "user" ? "Your message" : "This answer" });
    const [place, number] = this.siblings;
    if (number > 1) buttons.append(this.#switch(place, number));
    const copier = iconButton("copy", "Copy", () => copy(node.content, copier));
    if (node.content) buttons.append(copier);
    buttons.append(iconButton("edit", "Edit", () => this.edit()));
    if (node.role === "assistant") {
      if (node.content) buttons.append(reader(node.id, this.body));
      buttons.append(iconButton("again", "Regenerate", () => acts.regenerate(node)));
      const unfinished = node.content && (node.finish === "length" || ENDED[node.state]);
      if (unfinished) buttons.append(iconButton("forward", "Continue", () => acts.proceed(node)));
    }
    buttons.append(iconButton("trash", "Delete", () => acts.remove(node)));
    if (node.role === "assistant") this.foot.append(accountOf(node, ENDED[node.state]));
    this.foot.append(buttons);
  }

  #switch(place, number) {
    const { node, acts } = this;
    const turn = (by) => () => acts.turn(node, by);
    const back = iconButton("left", "Previous version", turn(-1), "turn");
    const on = iconButton("right", "Next version", turn(1), "turn");
    back.disabled = place === 1;
    on.disabled = place === number;
    return make("span", { class: "versions" }, back, make("span", { class: "count", text: `${place} / ${number}` }), on);
  }

  #makeProblem({ message, status, code, until }) {
    const words = make("p", {}, make("strong", { text: status ? `Error ${status}:` : "Error:" }), ` ${message}`);
    const retry = make("button", { type: "button", class: "primary", on: { click: () => this.acts.retry(this.node) } });
    const box = make("div", { class: "problem" }, words, make("div", { class: "problem-foot" }, retry));
    if (status === 401) {
      retry.before(make("button", { type: "button", class: "plain", text: "Enter a key", on: { click: () => this.acts.key() } }));
    }
    if (code) words.append(" ", make("code", { text: String(code) }));
    const count = () => {
      const left = Math.ceil(((until ?? 0) - Date.now()) / 1000);
      retry.disabled = left > 0;
      retry.textContent = left > 0 ? `Retry in ${left} s` : "Retry";
      if (left <= 0) clearInterval(this.#clock);
    };
    this.#clock = setInterval(count, 500);
    count();
    return box;
  }

  /** Puts a box with the text into the message's place. */
  edit() {
    const { node, acts } = this;
    const mine = node.role === "user";
    const area = make("textarea", { "aria-label": mine ? "Your message" : "The answer", rows: "3" });
    area.value = node.content;
    const done = () => {
      form.remove();
      this.parts.hidden = this.foot.hidden = false;
    };
    const cancel = () => {
      done();
      this.foot.querySelector('[aria-label="Edit"]')?.focus();
    };
    const form = make("form", { class: "edit", on: {
      submit: (event) => {
        event.preventDefault();
        if (!area.value.trim() && !node.attached?.length) return;
        if (acts.edit(node, area.value)) done();
      },
      keydown: (event) => {
        if (event.key === "Escape") {
          event.stopPropagation();
          cancel();
        } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
      },
    } }, area, make("div", { class: "edit-foot" },
      make("p", { class: "muted", text: mine ? "The original message stays as another version. Ctrl+Enter sends." : "The original answer stays as another version. Ctrl+Enter saves." }),
      make("button", { type: "button", class: "plain", text: "Cancel", on: { click: cancel } }),
      make("button", { type: "submit", class: "primary", text: mine ? "Send" : "Save" })));
    this.parts.hidden = this.foot.hidden = true;
    this.parts.before(form);
    area.focus();
  }

  close() {
    hush(this.node.id);
    clearInterval(this.#clock);
    this.element.remove();
  }
}

/** A call's arguments as JSON where they are whole, else as they are. */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

