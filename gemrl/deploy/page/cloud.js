// The candidate cloud of one decision, in two chosen action dimensions, coloured by score.

import { extent, linear, ticks, widened } from "./axes.js";
import { darkScheme, gradient, pageColour, scaleOf } from "./colour.js";
import { make, oncePerFrame, setOptions, setText } from "./dom.js";
import { count, number, round, vector } from "./format.js";
import { drawMark, legend, MARKS } from "./marks.js";
import { candidateTable } from "./tables.js";

const MARGIN = { left: 52, right: 14, top: 12, bottom: 40 };
const SCORE = "score";
const SHADES = [["score", "score"], ["lcb", "lower bound on value"], ["support_z", "support z"]];
const NEAR_PX = 14;

/**
 * A canvas with its selects, legends and a table that says the same. What it shows:
 * `candidates`, `score`, `lcb`, `support_z`, `behavior` as the server gives them, `anchor` and
 * `chosen` as indices (or null), and `marks`, further actions by kind of mark.
 */
export class Cloud {
  constructor(container, meta, title, kinds) {
    this.meta = meta;
    this.kinds = kinds;
    this.shown = null;
    this.draw = oncePerFrame(() => this.#draw());
    this.#build(container, title);
    new ResizeObserver(this.draw).observe(this.canvas);
    darkScheme.addEventListener("change", this.draw);
  }

  show(decision) {
    this.shown = decision;
    this.draw();
  }

  #build(container, title) {
    const dims = Array.from({ length: this.meta.action_size }, (_, i) => [String(i), `action ${i}`]);
    const chooser = (name, options, chosen) => {
      const select = make("select", { onchange: this.draw });
      select.name = `${container.id}-${name}`;
      setOptions(select, options, chosen);
      return [make("label", {}, make("span", { textContent: name }), select), select];
    };
    const [across, x] = chooser("Across", dims, "0");
    const [up, y] = chooser("Up", [...dims, [SCORE, "score"]], dims.length > 1 ? "1" : SCORE);
    const [colour, shade] = chooser("Colour", SHADES, "score");
    this.zoom = make("input", { type: "checkbox", name: `${container.id}-zoom`, onchange: this.draw });
    Object.assign(this, { x, y, shade });
    this.canvas = make("canvas", { className: "cloud", role: "img" });
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => setText(this.readout, this.summary ?? ""));
    this.readout = make("p", { className: "readout" });
    this.low = make("span", {});
    this.high = make("span", {});
    this.strip = make("span", { className: "strip" });
    this.scaleName = make("span", {});
    this.details = make("details", { className: "more", ontoggle: this.draw },
      make("summary", { textContent: "The same as a table" }));
    container.replaceChildren(
      make("div", { className: "cloud-head" },
        make("h3", { textContent: title }),
        make("div", { className: "choosers" }, across, up, colour,
          make("label", { className: "check" }, this.zoom, make("span", { textContent: "Zoom to candidates" })))),
      make("div", { className: "canvas-frame" }, this.canvas),
      make("div", { className: "scale" }, this.scaleName, this.low, this.strip, this.high),
      legend(this.kinds),
      this.readout,
      this.details,
    );
  }

  /** The place of each mark: an action, and its score where it is a candidate. */
  #marks() {
    const { candidates, score, anchor, chosen, behavior, marks } = this.shown;
    const placed = [];
    (behavior?.means ?? []).forEach((action, k) => {
      placed.push({ kind: "behavior", action, score: null, size: 0.55 + 0.6 * Math.sqrt(behavior.weights[k]) });
    });
    const candidate = (kind, index) => {
      if (index !== null) placed.push({ kind, action: candidates[index], score: score[index], size: 1 });
    };
    candidate("anchor", anchor);
    for (const [kind, action] of Object.entries(marks)) {
      if (!action || kind === "executed") continue;
      placed.push({ kind, action, score: null, size: 1 });
    }
    candidate("chosen", chosen);
    if (marks.executed) {
      const same = chosen !== null && candidates[chosen].every((value, i) => value === marks.executed[i]);
      placed.push({ kind: "executed", action: marks.executed, score: same ? score[chosen] : null, size: 1 });
    }
    // A refused decision has no action.
    return placed.filter(({ kind, action }) => this.kinds.includes(kind) && !action.includes(null));
  }

  #range(axis, marks) {
    const { candidates, score } = this.shown;
    if (axis === SCORE) return widened(extent(score), 0.08);
    const dim = Number(axis);
    if (!this.zoom.checked) return widened([this.meta.action_low[dim], this.meta.action_high[dim]], 0.06);
    const close = marks.filter(({ kind }) => kind !== "behavior").map(({ action }) => action[dim]);
    return widened(extent([...candidates.map((action) => action[dim]), ...close]), 0.1);
  }

  #draw() {
    const { canvas } = this;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (!this.shown || width === 0) return;
    const density = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * density);
    canvas.height = Math.round(height * density);
    const context = canvas.getContext("2d");
    context.scale(density, density);
    const marks = this.#marks();
    const area = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
    const ranges = [this.#range(this.x.value, marks), this.#range(this.y.value, marks)];
    const toX = linear(ranges[0], area.left, area.right);
    const toY = linear(ranges[1], area.bottom, area.top);
    const valueOn = (axis, action, score) => (axis === SCORE ? score : action[Number(axis)]);
    const place = (action, score) => {
      const up = valueOn(this.y.value, action, score);
      // What has no score sits on the lower edge.
      return [toX(valueOn(this.x.value, action, score)), up === null ? area.bottom : toY(up)];
    };
    this.#frame(context, area, ranges, toX, toY);
    context.save();
    context.beginPath();
    context.rect(area.left, area.top, area.right - area.left, area.bottom - area.top);
    context.clip();
    this.#spread(context, toX, toY);
    this.#points(context, place);
    context.restore();
    for (const { kind, action, score, size } of marks) {
      const [x, y] = place(action, score);
      const inside = x >= area.left - 1 && x <= area.right + 1 && y >= area.top - 1 && y <= area.bottom + 1;
      if (inside) drawMark(context, kind, x, y, size);
    }
    this.#describe(marks);
  }

  #frame(context, area, [rangeX, rangeY], toX, toY) {
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = pageColour("--plot");
    context.fillRect(area.left, area.top, area.right - area.left, area.bottom - area.top);
    context.strokeStyle = pageColour("--grid");
    context.fillStyle = pageColour("--muted");
    context.lineWidth = 1;
    context.textAlign = "center";
    const wanted = Math.max(2, Math.round((area.right - area.left) / 90));
    for (const tick of ticks(...rangeX, wanted)) {
      const x = Math.round(toX(tick)) + 0.5;
      context.strokeRect(x, area.top, 0, area.bottom - area.top);
      context.fillText(round(tick), x, area.bottom + 16);
    }
    context.textAlign = "right";
    for (const tick of ticks(...rangeY, Math.max(2, Math.round((area.bottom - area.top) / 60)))) {
      const y = Math.round(toY(tick)) + 0.5;
      context.strokeRect(area.left, y, area.right - area.left, 0);
      context.fillText(round(tick), area.left - 6, y + 4);
    }
    context.textAlign = "center";
    context.fillStyle = pageColour("--text");
    context.fillText(this.x.selectedOptions[0].textContent, (area.left + area.right) / 2, area.bottom + 33);
    context.save();
    context.translate(12, (area.top + area.bottom) / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(this.y.selectedOptions[0].textContent, 0, 0);
    context.restore();
    this.#bounds(context, area, toX, toY);
  }

  /** The action bounds, as dashed lines. */
  #bounds(context, area, toX, toY) {
    context.save();
    context.beginPath();
    context.rect(area.left, area.top, area.right - area.left, area.bottom - area.top);
    context.clip();
    context.strokeStyle = pageColour("--muted");
    context.setLineDash([5, 4]);
    const ends = (axis) => [this.meta.action_low[axis], this.meta.action_high[axis]];
    const [left, right] = ends(Number(this.x.value)).map(toX);
    const up = this.y.value === SCORE ? [area.bottom + 9, area.top - 9] : ends(Number(this.y.value)).map(toY);
    context.strokeRect(left, up[1], right - left, up[0] - up[1]);
    context.restore();
  }

  /** One standard deviation of each behaviour component. */
  #spread(context, toX, toY) {
    const { behavior } = this.shown;
    if (!behavior || this.y.value === SCORE) return;
    const [i, j] = [Number(this.x.value), Number(this.y.value)];
    context.strokeStyle = pageColour("--mark-behavior");
    behavior.means.forEach((mean, k) => {
      if (behavior.weights[k] < 0.01) return;
      const radius = (to, dim) => Math.abs(to(mean[dim] + behavior.stds[k][dim]) - to(mean[dim]));
      context.globalAlpha = 0.25 + 0.6 * behavior.weights[k];
      context.beginPath();
      context.ellipse(toX(mean[i]), toY(mean[j]), radius(toX, i), radius(toY, j), 0, 0, 2 * Math.PI);
      context.stroke();
    });
    context.globalAlpha = 1;
  }

  #points(context, place) {
    const { candidates, score } = this.shown;
    const shades = this.shown[this.shade.value];
    const scale = scaleOf(shades);
    const radius = candidates.length > 1500 ? 2.2 : candidates.length > 300 ? 3 : 4;
    // The best on top.
    const order = candidates.map((_, index) => index);
    order.sort((a, b) => (shades[a] ?? -Infinity) - (shades[b] ?? -Infinity));
    this.places = candidates.map((action, index) => place(action, score[index]));
    for (const index of order) {
      const [x, y] = this.places[index];
      context.fillStyle = scale ? scale.colour(shades[index]) : pageColour("--muted");
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.fill();
    }
    this.strip.style.background = scale ? gradient() : "none";
    setText(this.scaleName, this.shade.selectedOptions[0].textContent);
    setText(this.low, scale ? `${scale.cut ? "≤ " : ""}${number(scale.low)}` : "not known");
    setText(this.high, scale ? number(scale.high) : "");
  }

  /** The candidate under the pointer, in words. */
  #point(event) {
    if (!this.places) return;
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let nearest = null;
    let least = NEAR_PX;
    this.places.forEach(([px, py], index) => {
      const distance = Math.hypot(px - x, py - y);
      if (distance < least) [nearest, least] = [index, distance];
    });
    setText(this.readout, nearest === null ? this.summary : this.#candidate(nearest));
  }

  #candidate(index) {
    const { candidates, score, lcb, support_z: z } = this.shown;
    return `Candidate ${index}: action ${vector(candidates[index])}; score ${number(score[index])}, `
      + `lower bound ${number(lcb[index])}, support z ${number(z[index])}.`;
  }

  #describe(marks) {
    const { candidates } = this.shown;
    const many = candidates.length === 1 ? "1 candidate" : `${count(candidates.length)} candidates`;
    const said = marks.filter(({ kind }) => kind === "executed" || kind === "anchor")
      .map(({ kind, action }) => `${MARKS[kind].name} ${vector(action)}`);
    const below = this.y.value === SCORE && marks.some(({ score }) => score === null);
    this.summary = `${[many, ...said].join("; ")}.${below ? " Marks that have no score stand on the lower edge." : ""}`;
    this.canvas.setAttribute("aria-label", `Candidate cloud. ${this.summary}`);
    if (!this.canvas.matches(":hover")) setText(this.readout, this.summary);
    if (this.details.open) {
      this.details.querySelector(".scroll")?.remove();
      this.details.append(candidateTable(this.shown, marks));
    }
  }
}
