// Tables about one decision.

import { make } from "./dom.js";
import { fixed, NONE, number, vector } from "./format.js";
import { MARKS } from "./marks.js";

const BEST = 8;

/** A cell that should catch the eye. */
export const alarming = (text) => ({ text, className: "alarm" });

/** A table: a caption, column heads, and rows whose first cell heads the row. */
export function table(caption, heads, rows) {
  const data = (cell) => make("td", { textContent: cell.text ?? cell, className: cell.className ?? "" });
  const line = ([first, ...rest]) => make("tr", {}, make("th", { scope: "row", textContent: first }), ...rest.map(data));
  return make("table", {},
    make("caption", { textContent: caption }),
    make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col", textContent: head })))),
    make("tbody", {}, ...rows.map(line)));
}

/** A box of its own for what can be wider or longer than its place; the keyboard can scroll it. */
export const scrolling = (label, inside) =>
  make("div", { className: "scroll", role: "region", tabIndex: 0, "aria-label": label }, inside);

/** What the cloud shows: its marks, then the best candidates. */
export function candidateTable({ candidates, score, lcb, support_z: z }, marks) {
  const whole = (action) => vector(action, 3, action.length);
  // What is drawn last, on top, comes first here.
  const marked = marks.toReversed().map(({ kind, action, score: value }) =>
    [MARKS[kind].name, number(value), NONE, NONE, whole(action)]);
  const order = candidates.map((_, index) => index).sort((a, b) => (score[b] ?? 0) - (score[a] ?? 0));
  const best = order.slice(0, BEST).map((index) =>
    [`candidate ${index}`, number(score[index]), number(lcb[index]), fixed(z[index], 2), whole(candidates[index])]);
  const heads = ["What", "Score", "Lower bound", "Support z", "Action"];
  return scrolling("Marks and best candidates", table("Marks and best candidates", heads, [...marked, ...best]));
}
