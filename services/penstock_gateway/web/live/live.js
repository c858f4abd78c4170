/** The live view: what the engine cores and this gateway are doing, twice a second. */

import { batchPanel } from "./batch.js";
import { blocksPanel } from "./blocks.js";
import { make, write } from "./dom.js";
import { age } from "./format.js";
import { gatewaysPanel } from "./gateways.js";
import { queuePanel } from "./queue.js";
import { readouts } from "./readouts.js";
import { stepsPanel } from "./steps.js";
import { listen } from "./stream.js";
import { tenantsPanel } from "./tenants.js";

const OLD = 2.5; // Seconds after which a snapshot says nothing about now.

/** Fills `root`. api.headers(): those that bring the API key. Returns what takes all of it away. */
export function mount(root, api) {
  const view = new LiveView(api);
  root.append(view.node);
  view.start();
  return () => {
    view.stop();
    view.node.remove();
  };
}

class LiveView {
  constructor(api) {
    this._api = api;
    this._hangUp = null;
    this._paused = false;
    this._link = { state: "connecting" };
    this._heardAt = 0;
    this._state = null;
    this._chosen = "";
    this._last = new Map(); // The latest snapshot of each engine, kept when the engine is gone.
    this._build();
  }

  _build() {
    this._lamp = make("span", { class: "lv-lamp", "aria-hidden": "true" });
    this._words = make("span", { class: "lv-words", role: "status", "aria-live": "polite" });
    this._select = make("select", { id: "live-engine" });
    this._selectBox = make("div", { class: "lv-engine", hidden: true }, make("label", { for: "live-engine", text: "Engine" }), this._select);
    this._facts = make("p", { class: "lv-about" });
    this._pause = make("button", { type: "button", class: "lv-pause", "aria-pressed": "false", text: "Pause" });
    this._gateways = gatewaysPanel();
    this._readouts = readouts();
    this._panels = [this._readouts, stepsPanel(), blocksPanel(), batchPanel(), queuePanel(), tenantsPanel(), this._gateways];
    const [figures, ...rest] = this._panels.map((panel) => panel.node);
    this._shown = make("div", { class: "lv-shown" }, figures, make("div", { class: "lv-panels" }, ...rest));
    this.node = make(
      "div",
      { class: "live", "data-state": "connecting" },
      make("h2", { class: "lv-unseen", text: "Live view" }),
      make("header", { class: "lv-strip" }, make("p", { class: "lv-state" }, this._lamp, this._words), this._facts, this._selectBox, this._pause),
      this._shown,
    );
    this._pause.addEventListener("click", () => this._setPaused(!this._paused));
    this._select.addEventListener("change", () => {
      this._chosen = this._select.value;
      this._show();
    });
    this._themes = [matchMedia("(prefers-color-scheme: dark)"), matchMedia("(resolution: 1dppx)")];
    this._redraw = () => this._panels.forEach((panel) => panel.redraw?.());
    this._attribute = new MutationObserver(this._redraw);
    this._whenSeen = () => (document.hidden ? this._close() : this._open());
  }

  start() {
    for (const query of this._themes) query.addEventListener("change", this._redraw);
    this._attribute.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "class"] });
    document.addEventListener("visibilitychange", this._whenSeen);
    this._clock = setInterval(() => this._showState(), 1000);
    this._open();
    this._showState();
  }

  stop() {
    this._close();
    clearInterval(this._clock);
    document.removeEventListener("visibilitychange", this._whenSeen);
    for (const query of this._themes) query.removeEventListener("change", this._redraw);
    this._attribute.disconnect();
    for (const panel of this._panels) panel.stop?.();
  }

  _open() {
    if (this._hangUp || this._paused || document.hidden) return;
    this._hangUp = listen(this._api, (event) => this._hear(event));
  }

  /** Who doesn't look asks for nothing. */
  _close() {
    this._hangUp?.();
    this._hangUp = null;
  }

  _setPaused(paused) {
    this._paused = paused;
    this._pause.setAttribute("aria-pressed", String(paused));
    write(this._pause, paused ? "Resume" : "Pause");
    if (paused) this._close();
    else this._open();
    this._showState();
  }

  _hear(event) {
    if (event.snapshot) {
      this._state = event.snapshot;
      this._heardAt = Date.now();
      for (const engine of this._state.engines) {
        if (engine.snapshot) this._last.set(engine.engine, engine.snapshot);
      }
      this._show();
    } else {
      this._link = event;
      this._showState();
    }
  }

  _engine() {
    const engines = this._state?.engines ?? [];
    return engines.find((engine) => engine.engine === this._chosen) ?? engines.find((engine) => engine.connected) ?? engines[0];
  }

  _show() {
    this._showChoice();
    const engine = this._engine();
    const snapshot = engine && (engine.snapshot ?? this._last.get(engine.engine));
    this._shown.classList.toggle("lv-nothing", !snapshot);
    if (snapshot) {
      for (const panel of this._panels) panel.update(snapshot);
      this.node.dataset.boot = snapshot.boot;
      this.node.dataset.uptime = snapshot.uptime;
    }
    this._gateways.updateGateway(this._state.gateway);
    this._showFacts(snapshot);
    this._showState();
  }

  _showChoice() {
    const names = this._state.engines.map((engine) => engine.engine);
    this._selectBox.hidden = names.length < 2;
    const shown = [...this._select.options].map((option) => option.value);
    if (names.join("\n") !== shown.join("\n")) {
      this._select.replaceChildren(...names.map((name) => make("option", { value: name, text: name })));
    }
    const engine = this._engine();
    if (engine && this._select.value !== engine.engine) this._select.value = engine.engine;
  }

  _showFacts(snapshot) {
    if (!snapshot) {
      write(this._facts, "");
      return;
    }
    const { worker } = snapshot;
    const parts = [snapshot.model, worker.device, `boot ${snapshot.boot.slice(0, 8)}`, `up ${age(snapshot.uptime)}`];
    if (worker.lost) parts.push(`${worker.lost} ${worker.lost === 1 ? "worker" : "workers"} lost`);
    write(this._facts, parts.filter(Boolean).join(" · "));
    this._facts.title = worker.fingerprint;
  }

  _showState() {
    const { state, words } = this._verdict();
    this.node.dataset.state = state;
    write(this._words, words);
  }

  /** How much what is shown can be trusted: [live | warn | gone | paused | connecting]. */
  _verdict() {
    if (this._paused) return { state: "paused", words: `Paused${this._heardAt ? ` at ${clock(this._heardAt)}` : ""}` };
    const { state, reason } = this._link;
    if (state === "refused") return { state: "gone", words: `Not shown: ${reason}` };
    if (state === "lost") return { state: "gone", words: `Disconnected from the gateway${this._since()}` };
    if (state === "connecting" && !this._state) return { state: "connecting", words: "Connecting" };
    if (state === "connecting") return { state: "gone", words: `Reconnecting to the gateway${this._since()}` };
    const engine = this._engine();
    if (!engine) return { state: "connecting", words: "Waiting for an engine core" };
    if (!engine.connected) return { state: "gone", words: `The engine core is gone${engine.reason ? `: ${engine.reason}` : ""}` };
    if (!engine.knows) return { state: "warn", words: "This engine core is an older version without a live view" };
    if (!engine.snapshot) return { state: "connecting", words: "Waiting for the engine core" };
    const old = engine.age + (Date.now() - this._heardAt) / 1000;
    if (old > OLD) return { state: "warn", words: `No news from the engine core for ${age(old)}` };
    if (engine.snapshot.draining) return { state: "warn", words: "Live; the engine core is draining" };
    if (!engine.snapshot.worker.ready) return { state: "warn", words: `Live; not ready: ${engine.snapshot.worker.reason}` };
    return { state: "live", words: "Live" };
  }

  _since() {
    return this._heardAt ? `; shown is ${clock(this._heardAt)}` : "";
  }
}

const clock = (milliseconds) => new Date(milliseconds).toLocaleTimeString("en", { hour12: false });
