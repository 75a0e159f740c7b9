// Numbers and times as people read them. What does not exist is a dash, never NaN.

export const NONE = "—";
const MINUS = "−";

const exists = (value) => typeof value === "number" && Number.isFinite(value);

/** A number with about `digits` significant digits, with a real minus sign. */
export function number(value, digits = 3) {
  if (!exists(value)) return NONE;
  const size = Math.abs(value);
  let text;
  if (size === 0) text = "0";
  else if (size >= 1e6 || size < 1e-4) text = value.toExponential(digits - 1).replace("e+", "e");
  else text = value.toFixed(Math.max(0, Math.min(6, digits - 1 - Math.floor(Math.log10(size)))));
  return text.replaceAll("-", MINUS);
}

/** A number with a fixed count of decimals, for columns that are compared. */
export function fixed(value, decimals = 3) {
  if (!exists(value)) return NONE;
  if (Math.abs(value) >= 1e6) return number(value);
  return value.toFixed(decimals).replace(/^-(0\.?0*)$/, "$1").replace("-", MINUS);
}

/** A round number, as on an axis. */
export const round = (value) => (Math.abs(value) >= 1e6 ? number(value, 2) : value.toLocaleString("en", { maximumFractionDigits: 6 }).replace("-", MINUS));

/** A count, with thousands set apart. */
export const count = (value) => (exists(value) ? value.toLocaleString("en") : NONE);

/** A probability: small ones are bounded, not rounded to nothing. */
export function probability(value) {
  if (!exists(value)) return NONE;
  return value > 0 && value < 0.001 ? "< 0.001" : value.toFixed(3);
}

/** Milliseconds with their unit. */
export const milliseconds = (value) => (exists(value) ? `${number(value)} ms` : NONE);

/** Yes, no, or a dash. */
export const yesNo = (value) => (value === null || value === undefined ? NONE : value ? "yes" : "no");

/** A list of numbers; a long one is cut and its length said. */
export function vector(values, decimals = 3, most = 6) {
  if (!values) return NONE;
  const shown = values.slice(0, most).map((value) => fixed(value, decimals)).join(", ");
  return values.length > most ? `${shown}, … (${values.length})` : shown;
}

/** Time of day of unix seconds. */
export function clock(seconds) {
  return exists(seconds) ? new Date(seconds * 1000).toLocaleTimeString("en-GB") : NONE;
}

/** The shortest text that names the same 32-bit float: what the policy computes with. */
export function float32(value) {
  const rounded = Math.fround(value);
  for (let digits = 6; digits <= 9; digits += 1) {
    const text = rounded.toPrecision(digits);
    if (Math.fround(Number(text)) === rounded) return String(Number(text));
  }
  return String(value);
}

/** What a person typed: a number where it is one, else the text, for the server to judge. */
export function typed(text) {
  const trimmed = text.trim().replace(MINUS, "-");
  const value = Number(trimmed);
  return trimmed !== "" && Number.isFinite(value) ? value : trimmed;
}
