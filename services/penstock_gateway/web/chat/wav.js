/** WAV files of 16-bit samples, of one channel. */

/** Samples a second that models want. */
export const RATE = 16000;
const HEAD = 44;

/** parts: arrays of samples in -1 to 1, one behind the other.  samples: of all of them.  rate: samples a second. */
export function wav(parts, samples, rate) {
  const bytes = new DataView(new ArrayBuffer(HEAD + 2 * samples));
  const word = (at, text) => [...text].forEach((letter, i) => bytes.setUint8(at + i, letter.charCodeAt(0)));
  const whole = (at, value) => bytes.setUint32(at, value, true);
  const half = (at, value) => bytes.setUint16(at, value, true);
  word(0, "RIFF");
  whole(4, HEAD - 8 + 2 * samples);
  word(8, "WAVEfmt ");
  whole(16, 16);
  half(20, 1); // PCM
  half(22, 1); // channel
  whole(24, rate);
  whole(28, 2 * rate);
  half(32, 2);
  half(34, 16);
  word(36, "data");
  whole(40, 2 * samples);
  let at = HEAD;
  for (const part of parts) {
    for (const sample of part) {
      bytes.setInt16(at, Math.round(32767 * Math.max(-1, Math.min(1, sample))), true);
      at += 2;
    }
  }
  return bytes.buffer;
}
