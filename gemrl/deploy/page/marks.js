// The marks of a decision. Each has a shape of its own: colour alone never tells them apart.

import { pageColour } from "./colour.js";
import { draw, make } from "./dom.js";

// Paths about the origin, drawn as lines. `fill` closes them with a colour of their own.
export const MARKS = {
  behavior: { name: "behaviour mean", path: "M0-6.5L6.5 0 0 6.5-6.5 0Z", colour: "--mark-behavior", fill: true },
  anchor: { name: "anchor", path: "M-7-7H7V7H-7Z", colour: "--mark-anchor" },
  default: { name: "with default knobs", path: "M0-8.5L8 5.5H-8Z", colour: "--mark-default" },
  logged: { name: "logged action", path: "M-6-6L6 6M-6 6L6-6", colour: "--mark-logged" },
  chosen: { name: "chosen", path: "M9 0A9 9 0 1 1-9 0 9 9 0 1 1 9 0Z", colour: "--mark-chosen" },
  executed: { name: "executed", path: "M-13 0H-3M3 0H13M0-13V-3M0 3V13", colour: "--mark-executed" },
};

/** Draw a mark on a canvas, with a rim in the page's colour that sets it off from the candidates. */
export function drawMark(context, kind, x, y, size = 1) {
  const { path, colour, fill } = MARKS[kind];
  const shape = new Path2D(path);
  context.save();
  context.translate(x, y);
  context.scale(size, size);
  context.lineJoin = "round";
  context.strokeStyle = pageColour("--surface");
  context.lineWidth = 5.5 / size;
  context.stroke(shape);
  if (fill) {
    context.fillStyle = pageColour("--surface");
    context.fill(shape);
  }
  context.strokeStyle = pageColour(colour);
  context.lineWidth = 2.25 / size;
  context.stroke(shape);
  context.restore();
}

/** A legend of the marks that a picture uses. */
export function legend(kinds) {
  return make("ul", { className: "legend" }, ...kinds.map((kind) => {
    const { name, path, colour } = MARKS[kind];
    const shape = draw("path", { d: path, fill: "none", stroke: `var(${colour})`, "stroke-width": 2.25 });
    const picture = draw("svg", { viewBox: "-14 -14 28 28", width: 22, height: 22, "aria-hidden": "true" }, shape);
    return make("li", {}, picture, name);
  }));
}
