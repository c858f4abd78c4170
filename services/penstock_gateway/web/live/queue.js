/** Who waits: the next ones first. */

import { name } from "./batch.js";
import { panel, write } from "./dom.js";
import { age, count, short, tenant, whole } from "./format.js";
import { Table } from "./table.js";

const PRIORITY = 4;

export function queuePanel() {
  const { node, body, note } = panel("queue", "Queue");
  const table = new Table({
    caption: "Waiting sequences, the next one first",
    key: (row) => `${row.request} ${row.sequence}`,
    empty: "Nobody waits.",
    columns: [
      { title: "Request", head: true, mono: true, text: name, hint: name },
      { title: "Tenant", lesser: true, text: (row) => tenant(row.tenant), hint: (row) => row.tenant },
      { title: "State", text: (row) => row.state, mark: (row) => (row.state === "preempted" ? "warn" : "") },
      { title: "Tokens", number: true, text: (row) => whole(row.tokens) },
      { title: "Priority", number: true, lesser: true, text: (row) => row.priority },
      { title: "Age", number: true, text: (row) => age(row.age) },
    ],
  });
  body.append(table.node);

  function update({ queue, tenants }) {
    const waiting = queue.sequences + queue.grammar + queue.media + queue.adapters + queue.remote_kv;
    const parts = [`${count(waiting, "sequence")}`, `${short(queue.tokens)} tokens`];
    if (queue.grammar) parts.push(`${whole(queue.grammar)} for a grammar`);
    if (queue.media) parts.push(`${whole(queue.media)} for media`);
    if (queue.adapters) parts.push(`${whole(queue.adapters)} for adapters`);
    if (queue.remote_kv) parts.push(`${whole(queue.remote_kv)} for remote KV`);
    if (waiting > queue.rows.length) parts.push(`the first ${whole(queue.rows.length)} shown`);
    write(note, waiting ? parts.join(", ") : "");
    table.update(queue.rows);
    table.show(PRIORITY, tenants.policy !== "fcfs");
  }
  return { node, update };
}
