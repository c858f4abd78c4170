/** Conversations out of the browser and into it, as files. */

import { at } from "./dom.js";
import { exported, imported, MOST_BYTES } from "./exchange.js";
import { dataUri } from "./media.js";
import { notify } from "./notices.js";
import { addPrompts, prompts } from "./prompts.js";

/** Gives the browser a file with these records, the files of their messages, and prompts. */
export async function download(store, records, title, library = []) {
  const whole = await Promise.all(records.map((each) => withMedia(store, each)));
  const address = URL.createObjectURL(new Blob([exported(whole, library)], { type: "application/json" }));
  const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation";
  const link = document.createElement("a");
  link.href = address;
  link.download = `${name}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

async function withMedia(store, record) {
  const files = new Map((await store.mediaOf(record.id)).map(({ id, blob }) => [id, blob]));
  if (!files.size) return record;
  const nodes = await Promise.all(Object.values(record.nodes).map(async (node) => {
    if (!node.attached) return node;
    const attached = await Promise.all(node.attached.map(async (each) => (
      files.has(each.id) ? { ...each, data: await dataUri(files.get(each.id)) } : each)));
    return { ...node, attached };
  }));
  return { ...record, nodes: Object.fromEntries(nodes.map((node) => [node.id, node])) };
}

/** Makes the two buttons work. changed: called when conversations have come. */
export function connectFiles(store, changed) {
  const input = at("import-file");
  at("export-all").addEventListener("click", async () => download(store, await store.loadAll(), "penstock conversations", prompts()));
  at("import").addEventListener("click", () => input.click());
  input.addEventListener("change", async () => {
    const [file] = input.files;
    if (file) await take(file, store);
    input.value = "";
    changed();
  });
}

async function take(file, store) {
  try {
    if (file.size > MOST_BYTES) throw new Error(`the file has ${file.size} bytes; at most ${MOST_BYTES} are allowed`);
    const { conversations, prompts: more } = imported(await file.text());
    const fresh = addPrompts(more);
    for (const { record, files } of conversations) {
      if (!(await store.saveMedia(record.id, files))) throw new Error("the browser's storage for this page is full");
      await store.save(record);
    }
    const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
    notify(`Imported ${count(conversations.length, "conversation")}${fresh ? ` and ${count(fresh, "prompt")}` : ""}.`);
  } catch (error) {
    notify(`Not imported: ${error.message}`, { stays: true, bad: true });
  }
}
