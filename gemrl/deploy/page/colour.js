// Colours for the plots: a scale that is even to the eye, and the page's own colours for canvases.

export const darkScheme = window.matchMedia("(prefers-color-scheme: dark)");

const STEPS = 96;

// Ends of the scale in OKLCH (lightness, chroma, hue). Lightness runs evenly, so equal differences
// look equal and the order survives in grey. High scores stand out from the page in both schemes.
const LIGHT = { low: [0.8, 0.09, 200], high: [0.3, 0.15, 300] };
const DARK = { low: [0.36, 0.1, 290], high: [0.93, 0.15, 105] };

function ramp({ low, high }) {
  return Array.from({ length: STEPS }, (_, step) => {
    const at = low.map((value, i) => value + (high[i] - value) * (step / (STEPS - 1)));
    return `oklch(${at[0].toFixed(4)} ${at[1].toFixed(4)} ${at[2].toFixed(2)})`;
  });
}

const RAMPS = { light: ramp(LIGHT), dark: ramp(DARK) };

const current = () => (darkScheme.matches ? RAMPS.dark : RAMPS.light);

/** A function from a value to a colour; the lowest 2 % share the scale's low end. */
export function scaleOf(values) {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  if (known.length === 0) return null;
  const low = known[Math.floor(known.length * 0.02)];
  const high = known[known.length - 1];
  const colours = current();
  const span = high - low || 1;
  const colour = (value) => {
    if (value === null) return pageColour("--muted");
    const share = known.length === 1 ? 1 : Math.min(1, Math.max(0, (value - low) / span));
    return colours[Math.round(share * (STEPS - 1))];
  };
  return { colour, low, high, cut: known[0] < low };
}

/** The scale as a CSS gradient, for the legend. */
export const gradient = () => `linear-gradient(to right, ${current().join(", ")})`;

/** A colour of the style sheet. */
export const pageColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
