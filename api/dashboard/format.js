// Figures as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** A size in binary units, with three digits that count. */
export function bytes(count) {
  let unit = 0;
  while (count >= 1024 && unit < UNITS.length - 1) { count /= 1024; unit += 1; }
  const digits = unit === 0 || count >= 100 ? 0 : count >= 10 ? 1 : 2;
  return `${count.toFixed(digits)} ${UNITS[unit]}`;
}

export const rate = (count) => `${bytes(count)}/s`;

export function number(count) {
  if (count >= 1e6) return `${(count / 1e6).toFixed(1)} M`;
  if (count >= 1e4) return `${(count / 1e3).toFixed(0)} k`;
  return count >= 10 ? count.toFixed(0) : String(Math.round(count * 10) / 10);
}

/** A time that is given in microseconds. */
export function latency(us) {
  if (us == null) return "–";
  if (us >= 1e6) return `${(us / 1e6).toFixed(1)} s`;
  if (us >= 1e4) return `${(us / 1e3).toFixed(0)} ms`;
  return us >= 1e3 ? `${(us / 1e3).toFixed(1)} ms` : `${us.toFixed(0)} µs`;
}

export const percent = (part, whole) => (whole > 0 ? (100 * part) / whole : 0);

export function share(part, whole) {
  const value = percent(part, whole);
  return value > 0 && value < 0.1 ? "< 0.1 %" : `${value.toFixed(value < 10 ? 1 : 0)} %`;
}

export function duration(seconds) {
  const [days, hours, minutes] = [seconds / 86400, (seconds / 3600) % 24, (seconds / 60) % 60].map(Math.floor);
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  return minutes > 0 ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

/** A time of RFC 3339 as this place writes it. */
export const time = (text) => new Date(text).toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" });

/** The bytes of a size as people write it: binary units, such as 100G or 1.5 TiB. */
export function size(text) {
  const found = /^\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)(?:i?B)?\s*$/i.exec(text);
  if (!found) throw new Error(`'${text}' is not a size: write a number and K, M, G or T, such as 100G`);
  const count = Number(found[1]) * 1024 ** " KMGTP".indexOf(found[2].toUpperCase() || " ");
  const blocks = Math.round(count / 4096);
  if (blocks < 1 || !Number.isSafeInteger(blocks * 4096)) throw new Error(`'${text}' is no size that a volume can have`);
  return blocks * 4096;
}
