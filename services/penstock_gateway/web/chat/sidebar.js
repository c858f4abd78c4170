/** The list of kept conversations: search, rename, export, delete, and the drawer on a phone. */

import { Conversation } from "./conversation.js";
import { at, icon, iconButton, make } from "./dom.js";
import { speak } from "./notices.js";
import { finder, hitIn, marked, unmark } from "./search.js";

/** Milliseconds without a key before the messages are searched, and most conversations found. */
const LULL = 150;
const MOST_FOUND = 200;

export class Sidebar {
  /** What finds the text that is looked for, null for none; id -> its first hit in the messages. */
  #find = null;
  #hits = new Map();
  #timer = 0;
  #heads = [];
  #current = "";
  #renaming = "";
  #acts;

  /** acts: {fresh, rename, remove, exportOne, each, reveal}. */
  constructor(acts) {
    this.#acts = acts;
    this.place = at("conversations");
    this.search = at("search");
    this.search.addEventListener("input", () => this.#search());
    this.search.addEventListener("keydown", (event) => this.#leave(event));
    this.place.addEventListener("keydown", (event) => this.#move(event));
    at("new").prepend(icon("plus"));
    at("new").addEventListener("click", () => acts.fresh());
    this.#drawer();
  }

  /** heads: [{id, title, updated}].  current: the id of what is shown. */
  show(heads, current) {
    this.#heads = heads;
    this.#current = current;
    if (!this.#renaming) this.#draw();
  }

  #draw() {
    const focused = document.activeElement?.closest?.("#conversations li")?.dataset.id;
    const find = this.#find;
    const shown = this.#heads.filter(({ id, title }) => !find || title.search(find) >= 0 || this.#hits.has(id));
    const groups = new Map();
    for (const head of shown) {
      const day = dayOf(head.updated);
      if (!groups.has(day)) groups.set(day, []);
      groups.get(day).push(head);
    }
    this.place.replaceChildren(...[...groups].flatMap(([day, heads]) => [
      make("h2", { text: day }),
      make("ul", { "aria-label": day }, ...heads.map((head) => this.#row(head))),
    ]));
    if (!shown.length) {
      this.place.append(make("p", { class: "muted none", text: find ? "Nothing found." : "No conversations yet." }));
    }
    if (focused) this.place.querySelector(`li[data-id="${focused}"] a`)?.focus();
  }

  /** Looks in the titles at once, and in the messages soon. */
  #search() {
    clearTimeout(this.#timer);
    unmark();
    const find = finder(this.search.value);
    this.#find = find;
    this.#hits.clear();
    this.#draw();
    if (find) this.#timer = setTimeout(() => this.#look(find), LULL);
  }

  async #look(find) {
    await this.#acts.each((record) => {
      if (find !== this.#find) return false;
      const hit = hitIn(new Conversation(record), find);
      if (hit) this.#hits.set(record.id, hit);
      return this.#hits.size < MOST_FOUND;
    });
    if (find !== this.#find) return;
    if (!this.#renaming) this.#draw();
    const found = this.place.querySelectorAll("li").length;
    speak(found ? `${found} ${found === 1 ? "conversation" : "conversations"} found` : "Nothing found");
  }

  /** From the box down into the list; Esc empties it, and stops no answer. */
  #leave(event) {
    if (event.key === "Escape" && this.search.value) event.stopPropagation();
    if (event.key !== "ArrowDown") return;
    event.preventDefault();
    this.place.querySelector("li a")?.focus();
  }

  #row(head) {
    const title = head.title || "Untitled";
    const find = this.#find;
    const hit = this.#hits.get(head.id);
    const link = make("a", { href: `#chat/${head.id}`, "aria-current": head.id === this.#current ? "true" : null, title }, ...marked(title, find));
    // A title that is found says enough; it is the beginning of the first message most times.
    if (hit && title.search(find) < 0) link.append(make("small", { class: "hit" }, hit.words[0], make("mark", { text: hit.words[1] }), hit.words[2]));
    link.addEventListener("click", () => {
      this.close();
      if (hit) this.#acts.reveal(head.id, hit.node, find);
    });
    const row = make("li", { "data-id": head.id }, link, make("span", { class: "row-buttons" },
      iconButton("edit", `Rename ${title}`, () => this.#rename(row, head)),
      iconButton("download", `Export ${title}`, () => this.#acts.exportOne(head.id)),
      iconButton("trash", `Delete ${title}`, () => this.#acts.remove(head.id))));
    return row;
  }

  #rename(row, head) {
    const input = make("input", { type: "text", "aria-label": "Name of the conversation", maxlength: "120" });
    input.value = head.title;
    this.#renaming = head.id;
    const end = (keep) => {
      if (!this.#renaming) return;
      this.#renaming = "";
      if (keep && input.value.trim() && input.value !== head.title) this.#acts.rename(head.id, input.value);
      this.#draw();
      this.place.querySelector(`li[data-id="${head.id}"] a`)?.focus();
    };
    input.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") end(true);
      else if (event.key === "Escape") end(false);
    });
    input.addEventListener("blur", () => end(true));
    row.replaceChildren(input);
    input.select();
  }

  #move(event) {
    const links = [...this.place.querySelectorAll("li a")];
    const place = links.indexOf(document.activeElement);
    if (place < 0) return;
    const to = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: links.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      links[Math.max(0, Math.min(links.length - 1, to))].focus();
    } else if (event.key === "F2" || event.key === "Delete") {
      event.preventDefault();
      const { id } = links[place].closest("li").dataset;
      const head = this.#heads.find((each) => each.id === id);
      if (event.key === "F2") this.#rename(links[place].closest("li"), head);
      else this.#acts.remove(id);
    }
  }

  #drawer() {
    at("open-drawer").append(icon("menu"));
    at("close-drawer").append(icon("close"));
    at("open-drawer").addEventListener("click", () => this.#open());
    at("close-drawer").addEventListener("click", () => this.close());
    at("veil").addEventListener("click", () => this.close());
    at("drawer").addEventListener("keydown", (event) => {
      if (event.key === "Escape" && document.body.classList.contains("drawn")) {
        event.stopPropagation();
        this.close();
      }
    });
  }

  #open() {
    document.body.classList.add("drawn");
    at("page").inert = true;
    at("open-drawer").setAttribute("aria-expanded", "true");
    at("close-drawer").focus();
  }

  /** Shuts the drawer, where it is one. */
  close() {
    if (!document.body.classList.contains("drawn")) return;
    document.body.classList.remove("drawn");
    at("page").inert = false;
    at("open-drawer").setAttribute("aria-expanded", "false");
    at("open-drawer").focus();
  }
}

function dayOf(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  const day = 86_400_000;
  if (time >= midnight) return "Today";
  if (time >= midnight - day) return "Yesterday";
  if (time >= midnight - 7 * day) return "This week";
  return "Earlier";
}
