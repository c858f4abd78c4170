/** The messages on the page: one view each, kept while it fits; scrolled along only from the end. */

import { at } from "./dom.js";
import { MessageView } from "./message.js";
import { mark } from "./search.js";

const NEAR = 12;
const BUDGET = 8;

export class Transcript {
  #views = [];
  #conversation = null;
  /** The message that was looked for, until its conversation is shown. */
  #sought = null;
  #acts;
  #stuck = true;
  #top = 0;
  #height = 0;
  #changed = new Set();
  #due = false;
  #rest = 0;

  constructor(acts) {
    this.#acts = acts;
    this.list = at("messages");
    this.scroller = at("scroller");
    this.latest = at("latest");
    this.scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.latest.addEventListener("click", () => {
      this.toEnd();
      at("message").focus();
    });
    const watch = new ResizeObserver(() => this.#follow());
    watch.observe(this.list);
    watch.observe(this.scroller);
  }

  /** Shows a conversation as it is now. */
  show(conversation) {
    if (conversation !== this.#conversation) {
      this.#drop(0);
      this.#conversation = conversation;
      this.#stuck = true;
    }
    const sought = this.#sought?.id === conversation.id ? this.#sought : null;
    if (sought && !conversation.path().some(this.#acts.running)) conversation.leadTo(conversation.record.nodes[sought.node]);
    const path = conversation.path();
    let place = 0;
    for (; place < path.length && place < this.#views.length; place += 1) {
      const view = this.#views[place];
      if (!view.fits(path[place], path[place].content)) break;
      view.node = path[place];
    }
    this.#drop(place);
    for (const node of path.slice(place)) {
      const view = new MessageView(node, this.#acts);
      this.#views.push(view);
      this.list.append(view.element);
    }
    for (const view of this.#views) {
      const branches = conversation.children(view.node.parent);
      view.sync([branches.findIndex((each) => each.id === view.node.id) + 1, branches.length]);
    }
    at("empty").hidden = path.length > 0;
    this.list.hidden = path.length === 0;
    if (sought) this.#reveal(sought);
    this.#follow();
  }

  #drop(from) {
    for (const view of this.#views.splice(from)) view.close();
  }

  /** The view of a node that is shown. */
  view(id) {
    return this.#views.find((each) => each.node.id === id);
  }

  /** Goes to a message when its conversation is shown next. sought: {id, node, find}. */
  seek(sought) {
    this.#sought = sought;
  }

  #reveal({ node, find }) {
    this.#sought = null;
    const view = this.view(node);
    if (!view) return;
    this.#stuck = false;
    view.element.tabIndex = -1;
    view.element.focus({ preventScroll: true });
    (mark(view.body, find) ?? view.element).scrollIntoView({ block: "center" });
  }

  /** A node has grown: shown with the next frame, or later where frames cost too much. */
  grown(node) {
    this.#changed.add(node.id);
    if (this.#due) return;
    this.#due = true;
    setTimeout(() => requestAnimationFrame(() => this.#frame()), this.#rest);
  }

  #frame() {
    this.#due = false;
    const begun = performance.now();
    for (const id of this.#changed) this.view(id)?.sync();
    this.#changed.clear();
    const cost = performance.now() - begun;
    this.#rest = cost > BUDGET ? Math.min(1000, 4 * cost) : 0;
  }

  /** Scrolls to the end, and stays there. */
  toEnd() {
    this.#stuck = true;
    this.#follow();
  }

  #follow() {
    // What an empty conversation shows is read from its top.
    if (this.#stuck) this.scroller.scrollTop = this.#views.length ? this.scroller.scrollHeight : 0;
    this.#mark();
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    if (scrollHeight - scrollTop - clientHeight <= NEAR) this.#stuck = true;
    // Upwards in a page of the same height: that was a person.
    else if (scrollTop < this.#top - 1 && scrollHeight === this.#height) this.#stuck = false;
    this.#mark();
  }

  #mark() {
    this.#top = this.scroller.scrollTop;
    this.#height = this.scroller.scrollHeight;
    this.latest.hidden = this.#stuck || this.#views.length === 0;
  }
}
