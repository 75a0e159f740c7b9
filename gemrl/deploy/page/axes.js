// From values to places in a picture.

/** Round values between two ends, about `wanted` of them. */
export function ticks(low, high, wanted = 4) {
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => power * factor >= rough);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  const decimals = Math.min(20, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => Number(((first + i) * step).toFixed(decimals)));
}

/** Least and greatest of the numbers given, leaving out what does not exist. */
export function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null || value === undefined) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low > high ? [0, 1] : [low, high];
}

/** An extent with room about it, never empty. */
export function widened([low, high], share) {
  const room = (high - low) * share || Math.abs(high) * 0.1 || 0.5;
  return [low - room, high + room];
}

/** A linear map of [low, high] onto [from, to]. */
export const linear = ([low, high], from, to) => (value) => from + ((value - low) / (high - low)) * (to - from);
