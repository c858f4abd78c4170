/** The KV pool: every block, or cells of several, in the order of their numbers. */

import { Plot, colourOf, swatch } from "./canvas.js";
import { make, panel, write } from "./dom.js";
import { count, percent, short, whole } from "./format.js";

const STATES = [
  ["shared", "Shared", "held by several sequences"],
  ["used", "Used", "held by one sequence"],
  ["cached", "Cached", "held by nobody; its contents can be found"],
  ["free", "Free", "holds nothing of use"],
];
const COARSEST = 14; // Pixels of a cell's side at most, and at least.
const FINEST = 3;

export function blocksPanel() {
  const { node, body, note } = panel("blocks", "KV blocks");
  let view = null;
  let cells = [];
  let grid = { wide: 1, tall: 1, columns: 1, gap: 0 };

  const swatches = Object.fromEntries(STATES.map(([kind]) => [kind, swatch(kind)]));
  const totals = Object.fromEntries(STATES.map(([kind]) => [kind, make("dd", { "data-total": kind })]));
  const legend = make("dl", { class: "lv-legend" }, ...STATES.map(([kind, title, hint]) =>
    make("div", { title: hint }, make("dt", {}, swatches[kind], make("span", { text: title })), totals[kind]),
  ));
  const host = make("p", { class: "lv-remark" });
  const none = make("p", { class: "lv-empty", text: "No worker is ready: there is no pool." });
  const plot = new Plot({
    name: "blocks", label: "Map of the KV blocks", draw, find, tell, move,
  });
  body.append(plot.node, none, legend, host);

  function layout(width, height) {
    const side = Math.sqrt((width * height) / Math.max(1, cells.length));
    let size = Math.min(COARSEST, Math.max(FINEST, Math.floor(side)));
    while (size > FINEST && Math.ceil(cells.length / Math.floor(width / size)) * size > height) size -= 1;
    const columns = Math.max(1, Math.floor(width / size));
    const tall = Math.floor(height / Math.ceil(cells.length / columns));
    return { wide: size, tall: Math.min(COARSEST, Math.max(FINEST, tall)), columns, gap: size >= 5 ? 1 : 0 };
  }

  function draw(context, width, height) {
    if (!view) return;
    grid = layout(width, height);
    const colours = Object.fromEntries(STATES.map(([kind]) => [kind, colourOf(swatches[kind])]));
    const [wide, high] = [grid.wide - grid.gap, grid.tall - grid.gap];
    cells.forEach((cell, index) => {
      const x = (index % grid.columns) * grid.wide;
      let y = Math.floor(index / grid.columns) * grid.tall;
      const blocks = cell.shared + cell.used + cell.cached + cell.free;
      for (const [kind] of STATES) {
        if (!cell[kind]) continue;
        const tall = (high * cell[kind]) / blocks;
        context.fillStyle = colours[kind];
        context.fillRect(x, y, wide, tall);
        y += tall;
      }
    });
    if (plot.at >= 0 && plot.at < cells.length) outline(context, plot.at);
  }

  function outline(context, index) {
    context.strokeStyle = getComputedStyle(node).color;
    context.lineWidth = 1.5;
    const [x, y] = [(index % grid.columns) * grid.wide, Math.floor(index / grid.columns) * grid.tall];
    context.strokeRect(x - 1, y - 1, grid.wide - grid.gap + 2, grid.tall - grid.gap + 2);
  }

  function find(x, y) {
    const column = Math.floor(x / grid.wide);
    const index = Math.floor(y / grid.tall) * grid.columns + column;
    return column < grid.columns && index < cells.length ? index : -1;
  }

  function tell(index) {
    const cell = cells[index];
    if (!cell) return null;
    const first = index * view.span;
    const last = Math.min(first + view.span, view.total) - 1;
    const name = first === last ? `Block ${whole(first)}` : `Blocks ${whole(first)} to ${whole(last)}`;
    const parts = STATES.filter(([kind]) => cell[kind]).map(([kind]) =>
      view.span === 1 ? kind : `${cell.exact ? "" : "about "}${whole(cell[kind])} ${kind}`,
    );
    const x = ((index % grid.columns) + 0.5) * grid.wide;
    return { words: `${name}: ${parts.join(", ")}`, x, y: Math.floor(index / grid.columns) * grid.tall };
  }

  function move(index, key) {
    if (!cells.length) return -1;
    if (index < 0 || key === "Home") return 0;
    const row = grid.columns;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -row, ArrowDown: row, PageUp: -10 * row, PageDown: 10 * row };
    const wanted = key === "End" ? cells.length - 1 : index + (steps[key] ?? 0);
    return wanted < 0 || wanted >= cells.length ? index : wanted;
  }

  function update(snapshot) {
    view = snapshot.blocks;
    none.hidden = view !== null;
    for (const each of [plot.node, legend]) each.hidden = view === null;
    host.hidden = view === null || view.host_total === 0;
    if (!view) {
      write(note, "");
      cells = [];
      return;
    }
    cells = decode(view);
    node.dataset.total = view.total;
    const held = view.used + view.shared;
    write(note, `${count(view.total, "block")} of ${view.block_size} tokens, ${percent(held / view.total)} in use`);
    for (const [kind] of STATES) write(totals[kind], short(view[kind]));
    write(host, `Host tier: ${whole(view.host_used)} of ${count(view.host_total, "block")}; ${whole(view.swapped_out)} went out, ${whole(view.swapped_in)} came back.`);
    const words = STATES.map(([kind]) => `${whole(view[kind])} ${kind}`).join(", ");
    plot.label(`Map of ${count(view.total, "KV block")}: ${words}. The arrow keys read single cells.`);
    plot.redraw();
  }

  return { node, update, redraw: () => plot.redraw(), stop: () => plot.stop() };
}

/** Cells as counts of blocks; see BlockView.map in the protocol. */
export function decode(view) {
  const raw = Uint8Array.from(atob(view.map), (letter) => letter.charCodeAt(0));
  const exact = view.span <= 255;
  const cells = [];
  for (let at = 0, first = 0; first < view.total; at += 3, first += view.span) {
    const blocks = Math.min(view.span, view.total - first);
    const of = (byte) => (exact ? byte : Math.round((byte * view.span) / 255));
    const cell = { used: of(raw[at]), shared: of(raw[at + 1]), cached: of(raw[at + 2]), exact };
    cell.free = Math.max(0, blocks - cell.used - cell.shared - cell.cached);
    cells.push(cell);
  }
  return cells;
}
