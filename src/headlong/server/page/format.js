/** Numbers, times and sizes as people read them. */

const MINUS = "–";

/** A rate: whole numbers from 100 on, one decimal below. */
export function rate(value) {
  if (!isNumber(value)) return MINUS;
  return value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1);
}

/** A ratio with its sign: 1.74 ×. */
export function factor(value) {
  return isNumber(value) ? `${value.toFixed(2)} ×` : MINUS;
}

/** A number with two decimals. */
export function decimal(value) {
  return isNumber(value) ? value.toFixed(2) : MINUS;
}

/** A count with thousands set apart. */
export function count(value) {
  return isNumber(value) ? value.toLocaleString("en") : MINUS;
}

/** A share as a percentage. */
export function percent(value) {
  return isNumber(value) ? `${Math.round(value * 100)} %` : MINUS;
}

/** A number of things: "1 token", "12 tokens". */
export function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** Seconds in the unit that suits them. */
export function duration(seconds) {
  if (!isNumber(seconds)) return MINUS;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** Bytes in the binary unit that suits them. */
export function bytes(value) {
  if (!isNumber(value)) return MINUS;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

/** The time of day of a Unix time. */
export function timeOfDay(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

/** The day and the minute of a time in milliseconds. */
export function dayAndTime(ms) {
  return new Date(ms).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}
