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

  /** may: says why nothing can be recorded now; "" where it can.  take: is given the file.  refuse:
   * is given words where there is none. */
  constructor({ may, take, refuse }) {
    [this.may, this.take, this.refuse] = [may, take, refuse];
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
    const [parts, rate] = [this.#parts, this.#context.sampleRate];
    this.#end();
    const samples = parts.reduce((sum, part) => sum + part.length, 0);
    if (!samples) {
      this.refuse("Nothing was recorded.");
      return;
    }
    this.#number += 1;
    this.take(new File([wav(parts, samples, rate)], `recording ${this.#number}.wav`, { type: "audio/wav" }));
  }

  async #start() {
    const wrong = this.may();
    if (wrong) {
      this.refuse(wrong);
      return;
    }
    if (!navigator.mediaDevices?.getUserMedia || !window.AudioWorkletNode) {
      this.refuse("Browsers allow recording only over HTTPS or on this machine itself.");
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
    let context;
    let source;
    try {
      [context, source] = heard(stream);
    } catch {
      stopped(stream);
      this.refuse("The recording could not begin.");
      return;
    }
    [this.#context, this.#stream, this.#parts] = [context, stream, []];
    this.#show();
    // A microphone that is pulled out: what it heard is there.
    for (const track of stream.getTracks()) track.addEventListener("ended", () => this.#context === context && this.stop());
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
      if (this.#context !== context) return; // It was under way when the recording ended.
      parts.push(data);
      samples += data.length;
      this.button.dataset.seconds = (samples / context.sampleRate).toFixed(1);
    };
    source.connect(listener);
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

/** [context, source]: at the microphone's own rate where the browser can't bring it to ours. */
function heard(stream) {
  let wrong = null;
  for (const options of [{ sampleRate: RATE }, {}]) {
    const context = new AudioContext(options);
    try {
      return [context, context.createMediaStreamSource(stream)];
    } catch (error) {
      context.close();
      wrong = error;
    }
  }
  throw wrong;
}

function stopped(stream) {
  for (const track of stream.getTracks()) track.stop();
}
