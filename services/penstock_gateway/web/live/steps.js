/** The last steps: how long each took, what of it was compute, and how many tokens it computed. */

import { Plot, ceiling, colourOf, swatch } from "./canvas.js";
import { make, panel, write } from "./dom.js";
import { count, duration, median, percent, short, whole } from "./format.js";
import { Table } from "./table.js";

const SHOWN = 120;
const LEFT = 46; // Pixels of the axis' labels, at least.
const SPLIT = 0.66; // The upper part shows seconds, the lower one tokens.
const KINDS = [
  ["compute", "Compute"], ["rest", "Dispatch and wait"], ["prefill", "Prefill tokens"], ["decode", "Decode tokens"],
];
const IN_TABLE = 20;

export function stepsPanel() {
  const { node, body, note } = panel("steps", "Steps");
  let rows = [];
  let left = LEFT;
  const swatches = Object.fromEntries(KINDS.map(([kind]) => [kind, swatch(kind)]));
  const legend = make("ul", { class: "lv-legend" }, ...KINDS.map(([kind, title]) =>
    make("li", {}, swatches[kind], make("span", { text: title }))));
  const plot = new Plot({ name: "steps", label: "Times of the last steps", draw, find, tell, move });
  const none = make("p", { class: "lv-empty", text: "No step since you started watching." });
  const table = new Table({
    caption: `The last ${IN_TABLE} steps, newest first`,
    key: (row) => row.number,
    empty: "No step yet.",
    columns: [
      { title: "Step", head: true, number: true, text: (row) => whole(row.number) },
      { title: "Took", number: true, text: (row) => duration(row.seconds) },
      { title: "Compute", number: true, text: (row) => duration(row.compute) },
      { title: "Sequences", number: true, text: (row) => row.sequences },
      { title: "Prefill", number: true, text: (row) => row.prefill },
      { title: "Decode", number: true, text: (row) => row.decode },
      { title: "Drafts", long: "Drafted tokens: kept of those computed", number: true, text: drafts },
    ],
  });
  const details = make("details", {}, make("summary", { text: "As a table" }), table.node);
  details.addEventListener("toggle", () => details.open && table.update(latest()));
  body.append(plot.node, none, legend, details);

  const latest = () => rows.slice(-IN_TABLE).reverse();

  function draw(context, width, height) {
    if (!rows.length) return;
    const style = getComputedStyle(node);
    const colours = Object.fromEntries(KINDS.map(([kind]) => [kind, colourOf(swatches[kind])]));
    const line = style.getPropertyValue("--line");
    const muted = style.getPropertyValue("--muted");
    context.font = `11px ${style.fontFamily}`;
    const upper = { top: 8, bottom: Math.round(height * SPLIT) - 6 };
    const lower = { top: Math.round(height * SPLIT) + 10, bottom: height - 2 };
    const most = ceiling(Math.max(...rows.map((row) => row.seconds)));
    const tokens = ceiling(Math.max(...rows.map((row) => row.prefill + row.decode)));
    const times = [[1, duration(most)], [0.5, duration(most / 2)], [0, "0"]];
    const sizes = [[1, short(tokens)], [0, "0"]];
    // A phone's font may be wider than the room that was meant for a label.
    left = Math.ceil(Math.max(LEFT, ...[...times, ...sizes].map(([, words]) => context.measureText(words).width + 8)));
    axis(context, upper, left, width, times, line, muted);
    axis(context, lower, left, width, sizes, line, muted);
    rows.forEach((row, index) => {
      const { x, wide } = column(index, width);
      const compute = Math.min(row.compute, row.seconds);
      stack(context, x, wide, upper, most, [[compute, colours.compute], [row.seconds - compute, colours.rest]]);
      stack(context, x, wide, lower, tokens, [[row.decode, colours.decode], [row.prefill, colours.prefill]]);
    });
    if (plot.at >= 0 && plot.at < rows.length) {
      const { x, wide } = column(plot.at, width);
      context.strokeStyle = style.color;
      context.lineWidth = 1;
      context.strokeRect(x - 1, upper.top - 4, wide + 2, lower.bottom - upper.top + 4);
    }
  }

  /** Where a step's column is: the newest at the right. */
  function column(index, width) {
    const each = (width - left - 2) / SHOWN;
    return { x: left + (SHOWN - rows.length + index) * each, wide: Math.max(1, each - (each > 4 ? 1.5 : 0.5)) };
  }

  function find(x) {
    const width = plot.node.clientWidth;
    const each = (width - left - 2) / SHOWN;
    const index = Math.floor((x - left) / each) - (SHOWN - rows.length);
    return index >= 0 && index < rows.length ? index : -1;
  }

  function tell(index) {
    const row = rows[index];
    if (!row) return null;
    const words = `Step ${whole(row.number)}: ${duration(row.seconds)}, ${duration(row.compute)} of it compute; ` +
      `${count(row.sequences, "sequence")}, ${whole(row.prefill)} prefill and ${whole(row.decode)} decode tokens` +
      (row.drafted ? `, ${whole(row.kept)} of ${whole(row.drafted)} drafted ones kept` : "");
    return { words, x: column(index, plot.node.clientWidth).x, y: 14 };
  }

  function move(index, key) {
    if (!rows.length) return -1;
    if (index < 0 || key === "End") return rows.length - 1;
    const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: 10, PageDown: -10, Home: -SHOWN }[key] ?? 0;
    return Math.min(rows.length - 1, Math.max(0, index + step));
  }

  function update(snapshot) {
    rows = snapshot.steps.rows.map(([number, seconds, compute, prefill, decode, sequences, drafted = 0, kept = 0]) =>
      ({ number, seconds, compute, prefill, decode, sequences, drafted, kept }));
    none.hidden = rows.length > 0;
    for (const each of [plot.node, legend, details]) each.hidden = rows.length === 0;
    const told = summary(rows);
    write(note, rows.length ? `last ${rows.length}: median ${told.median}, longest ${told.longest}` : "");
    plot.label(`Times of the last ${count(rows.length, "step")}: median ${told.median}, longest ${told.longest}, ` +
      `${told.compute} of the time compute. The arrow keys read single steps.`);
    if (details.open) table.update(latest());
    plot.redraw();
  }

  return { node, update, redraw: () => plot.redraw(), stop: () => plot.stop() };
}

const drafts = (row) => (row.drafted ? `${whole(row.kept)} of ${whole(row.drafted)}` : "–");

function summary(rows) {
  const seconds = rows.map((row) => row.seconds);
  const total = seconds.reduce((sum, each) => sum + each, 0);
  const compute = rows.reduce((sum, row) => sum + Math.min(row.compute, row.seconds), 0);
  return {
    median: duration(median(seconds)),
    longest: duration(Math.max(0, ...seconds)),
    compute: percent(total ? compute / total : 0),
  };
}

function axis(context, { top, bottom }, left, width, marks, line, muted) {
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const [part, words] of marks) {
    const y = Math.round(bottom - part * (bottom - top)) + 0.5;
    context.fillStyle = line;
    context.fillRect(left, y - 0.5, width - left, 1);
    context.fillStyle = muted;
    // Its upper half would be beyond the drawing's edge at the top.
    context.fillText(words, left - 6, Math.max(Math.min(y, bottom - 4), 7));
  }
}

function stack(context, x, wide, { top, bottom }, most, parts) {
  let y = bottom;
  for (const [value, colour] of parts) {
    if (!(value > 0)) continue;
    const tall = ((bottom - top) * value) / most;
    context.fillStyle = colour;
    context.fillRect(x, y - tall, wide, tall);
    y -= tall;
  }
}
