/** The microphone: what is said becomes a WAV file, made in this page. */

import { at, icon } from "./dom.js";
import { speak } from "./notices.js";
import { RATE, wav } from "./wav.js";

/** Seconds after which a recording ends by itself. */
const LONGEST = 120;

export class Recorder {
  #can = false;
  #context = null;
  #stream = null;
  #parts = [];
  #timer = 0;
  #number = 0;

  /** take: is given the file.  refuse: is given words where there is none. */
  constructor({ take, refuse }) {
    this.take = take;
    this.refuse = refuse;
    this.button = at("record");
    this.button.addEventListener("click", () => (this.#context ? this.stop() : this.#start()));
    this.#show();
  }

  /** can: whether the model hears. */
  known(can) {
    this.#can = can;
    if (!can && this.#context) this.#end();
    this.#show();
  }

  /** Ends the recording, and hands it over. */
  stop() {
    const parts = this.#parts;
    this.#end();
    const samples = parts.reduce((sum, part) => sum + part.length, 0);
    if (!samples) {
      this.refuse("Nothing was recorded.");
      return;
    }
    this.#number += 1;
    this.take(new File([wav(parts, samples)], `recording ${this.#number}.wav`, { type: "audio/wav" }));
  }

  async #start() {
    if (!navigator.mediaDevices?.getUserMedia || !window.AudioWorkletNode) {
      this.refuse("Browsers give a page a microphone only over HTTPS, and on this machine itself.");
      return;
    }
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    } catch (error) {
      const none = error.name === "NotFoundError";
      this.refuse(none ? "There is no microphone." : "The browser doesn't let this page use the microphone.");
      return;
    }
    if (this.#context || !this.#can) {
      stopped(stream);
      return;
    }
    const context = new AudioContext({ sampleRate: RATE });
    [this.#context, this.#stream, this.#parts] = [context, stream, []];
    this.#show();
    try {
      await context.audioWorklet.addModule(new URL("./listener.js", import.meta.url));
    } catch {
      if (this.#context === context) this.#end();
      this.refuse("The recording could not begin.");
      return;
    }
    if (this.#context !== context) return; // It was stopped meanwhile.
    const listener = new AudioWorkletNode(context, "listener", { numberOfOutputs: 0 });
    const parts = this.#parts;
    let samples = 0;
    listener.port.onmessage = ({ data }) => {
      parts.push(data);
      samples += data.length;
      this.button.dataset.seconds = (samples / RATE).toFixed(1);
    };
    context.createMediaStreamSource(stream).connect(listener);
    this.#timer = setTimeout(() => this.stop(), 1000 * LONGEST);
    speak("Recording");
  }

  #end() {
    clearTimeout(this.#timer);
    stopped(this.#stream);
    this.#context.close();
    [this.#context, this.#stream, this.#parts] = [null, null, []];
    this.#show();
  }

  #show() {
    const runs = Boolean(this.#context);
    const words = runs ? "Stop the recording" : "Record a sound";
    this.button.hidden = !this.#can;
    this.button.setAttribute("aria-pressed", String(runs));
    this.button.setAttribute("aria-label", words);
    this.button.title = words;
    this.button.dataset.seconds = "";
    this.button.replaceChildren(icon(runs ? "stop" : "microphone"));
  }
}

function stopped(stream) {
  for (const track of stream.getTracks()) track.stop();
}
