// Small charts of the last decisions, oldest at the left, as SVG.

import { extent, linear, ticks, widened } from "./axes.js";
import { draw, make, setText } from "./dom.js";
import { number, round } from "./format.js";

const HEIGHT = 110;
const LEFT = 44;
const RIGHT = 8;
const TOP = 6;
const BOTTOM = 6;
const CUT_FACTOR = 3;

/** The frame that all charts share: a caption with a readout, and a picture that follows its width. */
class Figure {
  constructor(title, height) {
    this.height = height;
    this.decisions = [];
    this.pointed = null;
    this.readout = make("span", { className: "values" });
    this.picture = draw("svg", { role: "img", height });
    this.element = make("figure", { className: "chart" },
      make("figcaption", {}, make("strong", { textContent: title }), this.readout), this.picture);
    new ResizeObserver(() => this.render()).observe(this.element);
  }

  show(decisions) {
    this.decisions = decisions;
    this.render();
  }

  /** Mark one decision, or with null the newest. */
  point(index) {
    this.pointed = index;
    this.render();
  }

  get width() {
    return this.element.clientWidth;
  }

  get read() {
    return this.decisions[this.pointed ?? this.decisions.length - 1];
  }

  /** From the index of a decision to its place; a single one stands at the right. */
  get toX() {
    const last = this.decisions.length - 1;
    return linear([last > 0 ? 0 : -1, Math.max(last, 0)], LEFT, this.width - RIGHT);
  }

  pointer() {
    if (this.pointed === null) return [];
    const x = this.toX(this.pointed);
    return [draw("line", { class: "pointer", x1: x, x2: x, y1: TOP, y2: this.height - BOTTOM })];
  }

  paint(label, children) {
    this.picture.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.picture.setAttribute("aria-label", label);
    this.picture.replaceChildren(...children, ...this.pointer());
  }
}

/**
 * Lines over the decisions. A series has a `name`, a `value` of a decision (null leaves a gap) and a
 * `style`; `stacked` series stand on one another as areas. `line` is a level with a name. `cut` lets
 * rare peaks leave the picture, and says how high they are.
 */
export class LineChart extends Figure {
  constructor({ title, series, stacked = false, line = null, fromZero = false, cut = false, unit = "", height = HEIGHT }) {
    super(title, height);
    Object.assign(this, { title, series, stacked, line, fromZero, cut, unit });
  }

  render() {
    if (this.width === 0 || this.decisions.length === 0) return;
    const own = this.series.map(({ value }) => this.decisions.map(value));
    const levels = this.stacked ? summed(own) : own;
    const range = this.range(levels);
    const toY = linear(range, this.height - BOTTOM, TOP);
    const parts = [...this.grid(range, toY), ...this.peak(range, levels)];
    if (this.line) parts.push(this.level(toY));
    [...this.series.keys()].reverse().forEach((i) => {
      if (this.stacked) parts.push(draw("path", { class: `area ${this.series[i].style}`, d: this.area(levels[i], toY(0), toY) }));
      parts.push(draw("path", { class: `series ${this.series[i].style}`, d: this.path(levels[i], toY) }));
    });
    if (this.line) parts.push(this.levelName(toY));
    this.paint(this.summary(own), parts);
    this.readout.replaceChildren(...this.series.map(({ name, value, style }) => make("span", {},
      make("span", { className: `swatch ${style}` }), `${name} ${number(value(this.read))}${this.unit}`)));
  }

  range(levels) {
    const all = levels.flat();
    const [low, high] = widened(extent([...all, ...(this.line ? [this.line.at] : []), ...(this.fromZero ? [0] : [])]), 0.08);
    const usual = CUT_FACTOR * quantile(all, 0.95);
    return [this.fromZero ? 0 : low, this.cut && usual > 0 ? Math.min(high, usual) : high];
  }

  /** How high the highest peak is, where it leaves the picture. */
  peak([, top], levels) {
    const known = levels.flat().filter(Number.isFinite);
    const [, high] = extent(known);
    if (known.length === 0 || high <= top) return [];
    return [draw("text", { class: "level-name", x: LEFT + 14, y: TOP + 10 }, `peak ${number(high)}${this.unit}`)];
  }

  grid(range, toY) {
    return ticks(...range, 3).flatMap((tick) => [
      draw("line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: toY(tick), y2: toY(tick) }),
      draw("text", { class: "tick", x: LEFT - 6, y: toY(tick) + 4 }, round(tick)),
    ]);
  }

  level(toY) {
    const y = toY(this.line.at);
    return draw("line", { class: "level", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y });
  }

  /** The level's name, set below it where there is room. */
  levelName(toY) {
    const y = toY(this.line.at);
    return draw("text", { class: "level-name", x: LEFT + 4, y: y + 14 < this.height ? y + 12 : y - 4 }, this.line.name);
  }

  /** A line through the values, broken where there is none; a lone value becomes a dot. */
  path(values, toY) {
    const { toX } = this;
    const known = (i) => values[i] !== null && values[i] !== undefined;
    return values.map((value, i) => {
      if (!known(i)) return "";
      const start = !known(i - 1);
      const place = `${toX(i).toFixed(1)} ${toY(value).toFixed(1)}`;
      return start && !known(i + 1) ? `M${place}h.01` : `${start ? "M" : "L"}${place}`;
    }).join("");
  }

  area(values, floor, toY) {
    const { toX } = this;
    const along = values.map((value, i) => `L${toX(i).toFixed(1)} ${toY(value ?? 0).toFixed(1)}`).join("");
    return `M${toX(0)} ${floor}${along}L${toX(values.length - 1)} ${floor}Z`;
  }

  summary(own) {
    const said = this.series.map(({ name, value }, i) => {
      if (own[i].every((one) => one === null)) return `${name}: not known`;
      const [low, high] = extent(own[i]);
      const newest = number(value(this.decisions.at(-1)));
      return `${name}: newest ${newest}, from ${number(low)} to ${number(high)}`;
    });
    return `${this.title} of the last ${this.decisions.length} decisions. ${said.join("; ")}.`;
  }
}

function quantile(values, share) {
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  return known[Math.floor(share * (known.length - 1))] ?? 0;
}

/** Each series on top of those before it. */
function summed(series) {
  return series.map((_, i) => series[0].map((__, at) =>
    series.slice(0, i + 1).reduce((sum, values) => sum + (values[at] ?? 0), 0)));
}

const LANE = 20;
const LABEL = 84;

/** Events of the decisions, a lane for each kind: a `name` and a `test` of a decision. */
export class EventChart extends Figure {
  constructor(title, lanes) {
    super(title, lanes.length * LANE + TOP + BOTTOM);
    Object.assign(this, { title, lanes });
  }

  get toX() {
    const last = this.decisions.length - 1;
    return linear([last > 0 ? 0 : -1, Math.max(last, 0)], LABEL + 6, this.width - RIGHT - 4);
  }

  render() {
    if (this.width === 0 || this.decisions.length === 0) return;
    const { toX } = this;
    const counts = this.lanes.map(({ test }) => this.decisions.filter(test).length);
    const parts = this.lanes.flatMap(({ name, test }, lane) => {
      const y = TOP + LANE * (lane + 0.5);
      const marks = this.decisions.map((decision, i) => (test(decision) ? `M${toX(i).toFixed(1)} ${y - 6}v12` : "")).join("");
      return [
        draw("text", { class: "lane", x: 0, y: y + 4 }, name),
        draw("line", { class: "grid", x1: LABEL, x2: this.width - RIGHT, y1: y, y2: y }),
        draw("path", { class: "event", d: marks }),
      ];
    });
    const said = this.lanes.map(({ name }, i) => `${name} ${counts[i]}`).join(", ");
    this.paint(`${this.title} of the last ${this.decisions.length} decisions: ${said}.`, parts);
    const now = this.lanes.filter(({ test }) => test(this.read)).map(({ name }) => name);
    setText(this.readout, now.length ? now.join(", ") : "none here");
  }
}

/** Let a pointer over any of the charts mark the same decision in all of them. */
export function pointTogether(charts) {
  const all = (index) => charts.forEach((chart) => chart.point(index));
  for (const chart of charts) {
    chart.picture.addEventListener("pointermove", (event) => {
      const { toX, decisions } = chart;
      if (decisions.length === 0) return;
      const x = event.clientX - chart.picture.getBoundingClientRect().left;
      const step = decisions.length > 1 ? toX(1) - toX(0) : 1;
      const index = Math.round((x - toX(0)) / step);
      all(Math.min(decisions.length - 1, Math.max(0, index)));
    });
    chart.picture.addEventListener("pointerleave", () => all(null));
  }
}
