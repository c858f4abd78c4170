/**
 * One conversation: a tree of messages. An edit or another answer is a new branch beside the old
 * one, so nothing is overwritten; two tabs that write to the same conversation add to one tree.
 */

export const MOST_NODES = 5000;
const TITLE = 60;

/** A new id, also where the page came over plain HTTP and crypto.randomUUID is missing. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * record: {id, title, titledAt, created, updated, settings, settingsAt, nodes, chosen}; times are
 * Unix milliseconds.
 * nodes: id -> {id, parent, role, content, at, rev, reasoning?, calls?, usage?, times?, parts?,
 * finish?, state, problem?, attached?, asked?}; state: done, open (being written), stopped, lost, failed.
 * asked: how to send the request of an answer again while it is being written; see answers.js.
 * attached: descriptions of a message's media, [{id, kind, type, name, size}]; the store has the files.
 * A node that was removed is {id, parent, gone: true, rev}.  rev: grows with each change.
 * chosen: the branch taken below a node ("" above the first): its child's id.
 */
export class Conversation {
  constructor(record) {
    this.record = record;
  }

  static fresh(settings = {}) {
    const now = Date.now();
    return new Conversation({
      id: newId(), title: "", titledAt: 0, created: now, updated: now,
      settings: structuredClone(settings), settingsAt: now, nodes: {}, chosen: {},
    });
  }

  get id() {
    return this.record.id;
  }

  get title() {
    return this.record.title || "New conversation";
  }

  get isEmpty() {
    return this.path().length === 0;
  }

  rename(title) {
    this.record.title = title.replace(/\s+/g, " ").trim().slice(0, TITLE * 2);
    this.record.titledAt = Date.now();
    this.touch();
  }

  /** Whether its title is the first words of it: titledAt is 1, and 2 for a model's. */
  get isUntitled() {
    return this.record.titledAt === 1;
  }

  /** Gives it a title that the model made. Returns false where it has got a better one meanwhile. */
  entitle(title) {
    if (!this.isUntitled) return false;
    this.record.title = title;
    this.record.titledAt = 2;
    return true;
  }

  /** Says that it has changed; with a node: that the node has. */
  touch(node = null) {
    this.record.updated = Date.now();
    if (node) node.rev += 1;
  }

  children(parent) {
    return Object.values(this.record.nodes)
      .filter((node) => node.parent === parent && !node.gone)
      .sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1));
  }

  /** The messages that are shown, from the first to the last. */
  path() {
    const below = new Map();
    for (const node of Object.values(this.record.nodes)) {
      if (node.gone) continue;
      if (!below.has(node.parent)) below.set(node.parent, []);
      below.get(node.parent).push(node);
    }
    const found = [];
    const seen = new Set();
    for (let parent = ""; below.has(parent) && !seen.has(parent);) {
      seen.add(parent);
      const branches = below.get(parent).sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1));
      const node = branches.find((each) => each.id === this.record.chosen[parent]) ?? branches.at(-1);
      found.push(node);
      parent = node.id;
    }
    return found;
  }

  /** Adds a message below `parent` ("" for the first) and takes its branch. */
  add(parent, role, content, { state = "done", attached = null } = {}) {
    if (Object.keys(this.record.nodes).length >= MOST_NODES) {
      throw new RangeError(`this conversation has ${MOST_NODES} messages, which is the limit; start a new one`);
    }
    const at = Math.max(Date.now(), 1 + Math.max(0, ...this.children(parent).map((node) => node.at)));
    const node = { id: newId(), parent, role, content, at, rev: 1, state };
    if (attached?.length) node.attached = attached;
    this.record.nodes[node.id] = node;
    if (!this.record.title && role === "user") {
      const words = (content.trim() || attached?.[0]?.name || "").replace(/\s+/g, " ").trim();
      this.record.title = words.length > TITLE ? `${words.slice(0, TITLE - 1).trimEnd()}…` : words;
      this.record.titledAt = 1;
    }
    this.choose(node);
    return node;
  }

  choose(node) {
    this.record.chosen[node.parent] = node.id;
    this.touch();
  }

  /** Takes the branches that lead to a node, to look at it: that is no change. */
  leadTo(node) {
    for (let at = node, left = MOST_NODES; at && left > 0; at = this.record.nodes[at.parent], left -= 1) {
      this.record.chosen[at.parent] = at.id;
    }
  }

  /** Removes a message and what follows it. Returns what takes that back. */
  remove(node) {
    const all = [node];
    for (let at = 0; at < all.length; at += 1) all.push(...this.children(all[at].id));
    for (const { id, parent, rev } of all) this.record.nodes[id] = { id, parent, gone: true, rev: rev + 1 };
    this.touch();
    return () => {
      for (const each of all) this.record.nodes[each.id] = { ...each, rev: each.rev + 2 };
      this.choose(node);
    };
  }

  /** The messages that the API gets, up to and with `last`. */
  shown(last) {
    const found = [];
    for (let node = this.record.nodes[last]; node && found.length < MOST_NODES; node = this.record.nodes[node.parent]) found.push(node);
    return found.reverse().filter((node) => node.content || node.calls?.length || node.attached?.length);
  }

  /** Descriptions of the media that the branch shown has. */
  attached() {
    return this.path().flatMap((node) => node.attached ?? []);
  }
}

/** What two tabs made of one conversation, put together: of each part the later one. */
export function merged(one, other) {
  if (!one) return other;
  const later = other.updated >= one.updated ? other : one;
  const nodes = { ...one.nodes };
  for (const [id, node] of Object.entries(other.nodes)) {
    if (!nodes[id] || node.rev >= nodes[id].rev) nodes[id] = node;
  }
  const titled = other.titledAt >= one.titledAt ? other : one;
  const set = other.settingsAt >= one.settingsAt ? other : one;
  return {
    ...later,
    nodes,
    title: titled.title,
    titledAt: titled.titledAt,
    settings: set.settings,
    settingsAt: set.settingsAt,
    chosen: later === other ? { ...one.chosen, ...other.chosen } : { ...other.chosen, ...one.chosen },
  };
}
