/** The running batch: a row for each slot that is taken. */

import { panel, write } from "./dom.js";
import { age, count, percent, tenant, whole } from "./format.js";
import { Table } from "./table.js";

export function batchPanel() {
  const { node, body, note } = panel("batch", "Running batch");
  const table = new Table({
    caption: "Sequences that run, in the order in which they started",
    key: (row) => `${row.slot} ${row.request} ${row.sequence}`,
    empty: "Nothing runs.",
    columns: [
      { title: "Slot", number: true, lesser: true, text: (row) => row.slot },
      { title: "Request", head: true, mono: true, text: name, hint: (row) => `${name(row)}; ${row.cached} prompt tokens from the cache, ${row.preemptions} preemptions${row.drafted ? `, ${whole(row.kept)} of ${whole(row.drafted)} drafted tokens kept` : ""}` },
      { title: "Tenant", lesser: true, text: (row) => tenant(row.tenant), hint: (row) => row.tenant },
      { title: "Phase", text: (row) => row.phase, mark: (row) => row.phase },
      { title: "Tokens", long: "Tokens: computed, of those to compute; or generated, of the most that may be", wide: true, text: progress, bar: (row) => ({ part: part(row), kind: row.phase }), hint: (row) => `${percent(part(row))} of the tokens ${row.phase === "prefill" ? "computed" : "allowed"}` },
      { title: "Blocks", number: true, lesser: true, long: "KV blocks held", text: (row) => whole(row.blocks) },
      { title: "Age", number: true, text: (row) => age(row.age) },
    ],
  });
  body.append(table.node);

  function update({ batch, steps }) {
    const hidden = batch.running - batch.rows.length;
    const some = hidden > 0 ? `, the first ${whole(batch.rows.length)} shown` : "";
    const drafts = steps.drafted ? `, ${whole(steps.kept)} of ${whole(steps.drafted)} drafted tokens kept` : "";
    write(note, `${whole(batch.running)} of ${whole(batch.slots)} slots, ${whole(batch.prefilling)} in prefill, ${count(steps.preemptions, "preemption")} so far${drafts}${some}`);
    table.update(batch.rows);
  }
  return { node, update };
}

/** A request's name, and which of its sequences it is where it has several. */
export const name = (row) => (row.sequence ? `${row.request} #${row.sequence}` : row.request);

const progress = (row) =>
  row.phase === "prefill"
    ? `${whole(row.computed)} of ${whole(row.tokens)}`
    : `${whole(row.emitted)} of ${whole(row.most - row.prompt)}`;

const part = (row) =>
  row.phase === "prefill" ? row.computed / Math.max(1, row.tokens) : row.emitted / Math.max(1, row.most - row.prompt);
