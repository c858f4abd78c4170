/** Numbers as people read them. */

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const whole = (value) => WHOLE.format(value);
export const short = (value) => (Math.abs(value) < 100_000 ? whole(value) : SHORT.format(value));
export const percent = (part) => `${part > 0 && part < 0.01 ? "<1" : Math.round(100 * part)} %`;

/** "1 block", "2 blocks". */
export const count = (value, one, many = `${one}s`) => `${whole(value)} ${value === 1 ? one : many}`;

/** Seconds, in the unit that suits them. */
export function duration(seconds) {
  if (seconds < 0.0995) return `${(1000 * seconds).toFixed(1)} ms`;
  if (seconds < 0.9995) return `${Math.round(1000 * seconds)} ms`;
  return age(seconds);
}

/** Seconds of something that goes on: no finer than a tenth. */
export function age(seconds) {
  if (seconds < 9.95) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (seconds < 99.5) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 100) return `${minutes} min`;
  const hours = seconds / 3600;
  return hours < 48 ? `${Math.floor(hours)} h ${Math.floor((seconds % 3600) / 60)} min` : `${Math.floor(hours / 24)} d`;
}

export function bytes(value) {
  const mebibytes = value / 2 ** 20;
  return mebibytes < 1024 ? `${mebibytes.toFixed(mebibytes < 10 ? 1 : 0)} MiB` : `${(mebibytes / 1024).toFixed(1)} GiB`;
}

/** A tenant's name is the digest of a key: its beginning will do. Empty: it brought none. */
export const tenant = (name) => (name === "" ? "anonymous" : name.length > 12 ? `${name.slice(0, 10)}…` : name);

export function median(values) {
  if (!values.length) return 0;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
