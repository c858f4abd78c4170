/** Tenants: who has how much open, and who got the steps' tokens. */

import { panel, write } from "./dom.js";
import { count, percent, short, tenant, whole } from "./format.js";
import { Table } from "./table.js";

const WEIGHT = 4;
const DEBT = 5;

export function tenantsPanel() {
  const { node, body, note } = panel("tenants", "Tenants");
  let total = 1;
  const share = (row) => row.tokens / total;
  const table = new Table({
    caption: "Tenants with open requests, most first",
    key: (row) => row.tenant,
    empty: "There are no open requests.",
    columns: [
      { title: "Tenant", head: true, mono: true, text: (row) => tenant(row.tenant), hint: (row) => row.tenant || "brings no API key" },
      { title: "Open", number: true, long: "Open requests", text: (row) => whole(row.requests) },
      { title: "Running", number: true, long: "Running sequences", text: (row) => whole(row.running) },
      { title: "Share of the steps shown", wide: true, text: (row) => `${short(row.tokens)} tokens, ${percent(share(row))}`, bar: (row) => ({ part: share(row), kind: "decode" }) },
      { title: "Weight", number: true, text: (row) => row.weight ?? "" },
      { title: "Debt", number: true, long: "Tokens served beyond those of the least served tenant, by weight", text: (row) => (row.debt === null ? "" : short(row.debt)) },
    ],
  });
  body.append(table.node);

  function update({ tenants }) {
    total = Math.max(1, tenants.rows.reduce((sum, row) => sum + row.tokens, 0));
    const some = tenants.total > tenants.rows.length ? `, the first ${whole(tenants.rows.length)} shown` : "";
    write(note, `${count(tenants.total, "tenant")} with work, policy ${tenants.policy}${some}`);
    table.update(tenants.rows);
    for (const column of [WEIGHT, DEBT]) table.show(column, tenants.policy === "fair");
  }
  return { node, update };
}
