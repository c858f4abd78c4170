/** The figures that one looks at first, each with its last minute. */

import { make, makeSvg, write } from "./dom.js";
import { duration, median, percent, short, whole } from "./format.js";

const KEPT = 120; // Snapshots, a minute of them.
const SMOOTH = 8; // Snapshots that a rate is taken over.
const WIDE = 100;
const TALL = 24;

const FIGURES = [
  ["waiting", "Waiting", whole],
  ["running", "Running", whole],
  ["kv", "KV in use", percent],
  ["generated", "Generated", (value) => `${short(value)}/s`],
  ["computed", "Computed", (value) => `${short(value)}/s`],
  ["step", "Median step", (value) => (value ? duration(value) : "–")],
];

export function readouts() {
  const figures = FIGURES.map(([key, title, text]) => {
    const value = make("span", { class: "lv-value", "data-readout": key, text: "–" });
    const line = makeSvg("polyline", { points: "" });
    const spark = makeSvg("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, preserveAspectRatio: "none", "aria-hidden": "true", class: "lv-spark" }, line);
    const less = make("span", { class: "lv-sub" });
    const node = make("div", { class: "lv-readout" }, make("dt", { text: title }), make("dd", {}, value, less), spark);
    return { key, text, value, line, less, node };
  });
  const node = make("dl", { class: "lv-readouts", "aria-label": "Key figures" }, ...figures.map((figure) => figure.node));
  let history = [];
  let boot = "";

  function update(snapshot) {
    if (snapshot.boot !== boot) {
      boot = snapshot.boot;
      history = [];
    }
    const last = history.at(-1);
    if (!last || last.uptime !== snapshot.uptime) history.push(point(snapshot, history));
    history = history.slice(-KEPT);
    const now = history.at(-1);
    const subs = notes(snapshot);
    for (const figure of figures) {
      write(figure.value, figure.text(now[figure.key]));
      write(figure.less, subs[figure.key] ?? "");
      figure.line.setAttribute("points", points(history.map((each) => each[figure.key]), figure.key === "kv" ? 1 : 0));
    }
  }
  return { node, update };
}

function point({ uptime, queue, batch, blocks, steps }, history) {
  const before = history.at(-SMOOTH) ?? history[0];
  const seconds = before ? uptime - before.uptime : 0;
  const rate = (name, value) => (seconds > 0 ? Math.max(0, (value - before[name]) / seconds) : 0);
  return {
    uptime,
    waiting: queue.sequences + queue.grammar + queue.media + queue.adapters + queue.remote_kv,
    running: batch.running,
    kv: blocks ? (blocks.used + blocks.shared) / blocks.total : 0,
    totalGenerated: steps.tokens_generated,
    totalComputed: steps.tokens_computed,
    generated: rate("totalGenerated", steps.tokens_generated),
    computed: rate("totalComputed", steps.tokens_computed),
    step: median(steps.rows.map((row) => row[1])),
  };
}

function notes({ queue, batch, blocks, steps }) {
  return {
    waiting: queue.oldest ? `oldest ${duration(queue.oldest)}` : "",
    running: `of ${whole(batch.slots)}`,
    kv: blocks ? `of ${whole(blocks.total)} blocks` : "no pool",
    generated: `${short(steps.tokens_generated)} tokens`,
    computed: `${short(steps.tokens_computed)} tokens`,
    step: `${short(steps.total)} steps`,
  };
}

/** The last minute, newest at the right. least: that the top of the picture stands for. */
function points(values, least) {
  const most = Math.max(least, ...values) || 1;
  const from = KEPT - values.length;
  return values
    .map((value, index) => `${(((from + index) * WIDE) / (KEPT - 1)).toFixed(2)},${(TALL - 1 - (value / most) * (TALL - 2)).toFixed(2)}`)
    .join(" ");
}
