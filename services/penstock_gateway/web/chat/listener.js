/** In the browser's audio thread: hands on what the microphone hears. */

class Listener extends AudioWorkletProcessor {
  process([[samples]]) {
    if (samples?.length) this.port.postMessage(samples.slice());
    return true;
  }
}

registerProcessor("listener", Listener);
