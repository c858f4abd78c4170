/** Gateways and other front ends of the engine core, and the gateway that serves this page. */

import { make, panel, write } from "./dom.js";
import { age, bytes, count, duration, short, whole } from "./format.js";
import { Table } from "./table.js";

const FACTS = [
  ["open", "Open requests", (row) => whole(row.open_requests)],
  ["rate", "Tokens through it", (row) => `${short(row.tokens_per_second)}/s`],
  ["lag", "Loop lag", (row) => duration(row.loop_lag)],
  ["memory", "Memory", (row) => (row.rss === null ? "unknown" : bytes(row.rss))],
  ["uptime", "Up for", (row) => age(row.uptime)],
  ["watchers", "Watching", (row) => whole(row.watchers)],
];

export function gatewaysPanel() {
  const { node, body, note } = panel("gateways", "Gateways");
  const values = Object.fromEntries(FACTS.map(([key]) => [key, make("dd", { "data-gateway": key })]));
  const facts = make("dl", { class: "lv-facts", "aria-label": "The gateway that serves this page" },
    ...FACTS.map(([key, title]) => make("div", {}, make("dt", { text: title }), values[key])));
  const which = make("h3", { text: "This gateway" });
  const table = new Table({
    caption: "Front ends of this engine core, oldest session first",
    key: (row) => row.index,
    empty: "None is connected.",
    columns: [
      { title: "Front end", head: true, text: (row) => row.name },
      { title: "Open", number: true, long: "Open requests", text: (row) => whole(row.requests) },
      { title: "Session", number: true, long: "Age of the session", text: (row) => age(row.age) },
    ],
  });
  body.append(table.node, which, facts);

  function update({ frontends }) {
    write(note, `${count(frontends.total, "session")}`);
    table.update(frontends.rows.map((row, index) => ({ ...row, index })));
  }

  /** The gateway's own row, which there is without an engine too. */
  function updateGateway(row) {
    write(which, `This gateway, process ${row.pid}${row.draining ? ", shutting down" : ""}`);
    for (const [key, , text] of FACTS) write(values[key], text(row));
  }
  return { node, update, updateGateway };
}
