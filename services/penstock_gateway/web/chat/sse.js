/** Server-sent events from bytes that come in any pieces, as the HTML standard reads them. */

const MOST = 16 * 1024 * 1024;

export class EventParser {
  #decoder = new TextDecoder("utf-8");
  #line = "";
  #data = [];
  #size = 0;
  #event = "";
  #id = "";
  #afterReturn = false;

  /** The events that these bytes complete: [{event, data, id}]. Throws RangeError over 16 MiB. */
  feed(bytes) {
    const events = [];
    let text = this.#decoder.decode(bytes, { stream: true });
    if (!text) return events; // half a character, or nothing
    if (this.#afterReturn && text[0] === "\n") text = text.slice(1);
    let from = 0;
    for (const { 0: end, index } of text.matchAll(/\r\n|\n|\r/g)) {
      this.#take(this.#line + text.slice(from, index), events);
      this.#line = "";
      from = index + end.length;
    }
    // A line feed that comes with the next piece belongs to this return.
    this.#afterReturn = text.endsWith("\r");
    this.#line += text.slice(from);
    if (this.#line.length + this.#size > MOST) throw new RangeError("an event of the stream is over 16 MiB");
    return events;
  }

  #take(line, events) {
    if (line === "") {
      if (this.#data.length) events.push({ event: this.#event || "message", data: this.#data.join("\n"), id: this.#id });
      this.#data = [];
      this.#size = 0;
      this.#event = "";
      this.#id = "";
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment: the server's sign of life
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "data") {
      this.#data.push(value);
      this.#size += value.length;
    } else if (field === "event") this.#event = value;
    else if (field === "id") this.#id = value;
  }
}
