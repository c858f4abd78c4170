/** What an answer cost: tokens, speed, and where its time went. */

import { make } from "./dom.js";

const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 0 });
const milliseconds = (value) => (value < 1000 ? `${number(value)} ms` : `${(value / 1000).toFixed(2)} s`);

/** A line that opens to a table. ended: a word for an answer that is not whole. */
export function accountOf(node, ended) {
  const { usage, times, parts } = node;
  const words = [];
  if (ended) words.push(ended);
  else if (node.finish === "repetition") words.push("Stopped: it repeated itself");
  else if (node.finish === "length") words.push("Reached the maximum length");
  if (usage?.completion_tokens) words.push(`${number(usage.completion_tokens)} tokens`);
  if (times?.rate) words.push(`${number(times.rate)} tokens/s`);
  if (times?.first) words.push(`first after ${milliseconds(times.first)}`);
  const rows = [];
  if (usage?.prompt_tokens != null) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    rows.push(["Prompt", `${number(usage.prompt_tokens)} tokens${cached ? `, ${number(cached)} of them cached` : ""}`]);
  }
  if (usage?.completion_tokens != null) rows.push(["Answer", `${number(usage.completion_tokens)} tokens`]);
  if (times?.total) rows.push(["Seen here", milliseconds(times.total)]);
  if (node.finish) rows.push(["Ended by", node.finish]);
  for (const [name, seconds] of Object.entries(parts ?? {})) {
    if (seconds >= 0.0005) rows.push([`Server: ${name}`, milliseconds(1000 * seconds)]);
  }
  if (!rows.length) return make("p", { class: "account muted", text: words.join(" · ") });
  return make("details", { class: "account" },
    make("summary", { text: words.join(" · ") || "Account" }),
    make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value })])));
}
