/** A table whose rows are kept, by a key, from one snapshot to the next. */

import { make, write } from "./dom.js";

/**
 * columns: {title, text(row)} and, where wanted, {number, mono, head, hint(row), bar(row), mark(row),
 * long}. head: the cell names its row.  bar: {part, kind} of a bar behind the text.  mark: a class.
 * long: the title in full, for who can't see the short one's context.
 */
export class Table {
  constructor({ caption, columns, key, empty }) {
    this._columns = columns;
    this._key = key;
    this._rows = new Map();
    this._heads = columns.map((column) =>
      make("th", { scope: "col", class: classes(column), abbr: column.long, text: column.title, title: column.long }),
    );
    this._body = make("tbody");
    this._empty = make("p", { class: "lv-empty", text: empty });
    const table = make(
      "table",
      {},
      make("caption", { class: "lv-unseen", text: caption }),
      make("thead", {}, make("tr", {}, ...this._heads)),
      this._body,
    );
    this._scroller = make("div", { class: "lv-scroller", tabindex: 0, role: "region", "aria-label": caption }, table);
    this.node = make("div", { class: "lv-tabled" }, this._scroller, this._empty);
    this.update([]);
  }

  /** Shows a column or not. */
  show(index, shown) {
    this._heads[index].hidden = !shown;
    for (const { cells } of this._rows.values()) cells[index].node.hidden = !shown;
  }

  update(rows) {
    const kept = new Map();
    let place = this._body.firstElementChild;
    for (const row of rows) {
      const key = this._key(row);
      const entry = this._rows.get(key) ?? this._make();
      this._rows.delete(key);
      kept.set(key, entry);
      this._fill(entry, row);
      if (entry.node === place) place = place.nextElementSibling;
      else this._body.insertBefore(entry.node, place);
    }
    for (const { node } of this._rows.values()) node.remove();
    this._rows = kept;
    this._empty.hidden = rows.length > 0;
    this._scroller.hidden = rows.length === 0;
  }

  _make() {
    const cells = this._columns.map((column, index) => {
      const text = make("span", { class: "lv-text" });
      const bar = column.bar ? make("span", { class: "lv-bar", "aria-hidden": "true" }) : null;
      const head = column.head;
      const node = make(head ? "th" : "td", { scope: head ? "row" : null, class: classes(column) }, bar, text);
      node.hidden = this._heads[index].hidden;
      return { node, text, bar };
    });
    return { node: make("tr", {}, ...cells.map((cell) => cell.node)), cells };
  }

  _fill({ cells }, row) {
    this._columns.forEach((column, index) => {
      const { node, text, bar } = cells[index];
      write(text, column.text(row));
      if (column.hint) {
        const hint = column.hint(row);
        if (text.title !== hint) text.title = hint;
      }
      if (column.mark) node.dataset.mark = column.mark(row);
      if (bar) {
        const { part, kind } = column.bar(row);
        bar.style.setProperty("--part", Math.min(1, Math.max(0, part)).toFixed(4));
        bar.dataset.kind = kind;
      }
    });
  }
}

function classes(column) {
  const names = ["number", "mono", "wide", "lesser"].filter((name) => column[name]);
  return names.length ? names.map((name) => `lv-${name}`).join(" ") : null;
}
