// The panel of knobs: what a decision is asked with beside its state.

import { evenly, listed, NumberControl, SliderControl, WordControl } from "./controls.js";
import { make } from "./dom.js";

const SMOOTHING = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];
const CUSTOM = "";
const DEFAULT = "default";

/** 0, 1, 2, 4 and so on up to the server's limit. */
function counts(limit) {
  const values = [0];
  for (let value = 1; value < limit; value *= 2) values.push(value);
  return [...values, limit];
}

/** The values of a knob that the server has compiled programs for; all of `values` where it needs none. */
function possible(meta, name, values) {
  if (!meta.compiled) return values;
  const known = new Set(meta.compiled.map((shape) => shape[name]));
  return typeof values[0] === "number" ? [...known].sort((a, b) => a - b) : values.filter((value) => known.has(value));
}

/** Any temperature up to 5, or none where the server has no compiled program that draws. */
const temperatures = (meta) => (meta.compiled && !meta.compiled.some((shape) => shape.draws) ? listed([0]) : evenly(5, 0.05));

const SYMBOLS = { n: "N", lam: "λ", wp: "w_p", k_smooth: "k_smooth" };

const weightText = (wp) => (typeof wp === "object" ? `${wp.start} → ${wp.end} over ${wp.horizon}` : String(wp));

export class KnobPanel {
  constructor(container, meta, onChange) {
    this.meta = meta;
    this.onChange = onChange;
    const change = () => this.#changed();
    const word = (name) => new WordControl(name, name, possible(meta, name, meta.words[name]), change);
    const sizes = (name, values) => listed(possible(meta, name, values));
    this.controls = {
      n: new SliderControl("n", "N, candidates", sizes("n", counts(meta.limits.candidates)), change),
      lam: new SliderControl("lam", "λ, pessimism", evenly(5, 0.1), change),
      wp: new SliderControl("wp", "w_p, weight of support", evenly(3, 0.05), change),
      k_smooth: new SliderControl("k_smooth", "k_smooth, best ones averaged", sizes("k_smooth", SMOOTHING), change),
      source: word("source"),
      anchor: word("anchor"),
      support: word("support"),
      value: word("value"),
      temperature: new SliderControl("temperature", "temperature, 0 takes the best", temperatures(meta), change),
      start: new NumberControl("start", "w_p at the start", change, 0.05),
      horizon: new NumberControl("horizon", "steps until w_p is reached", change, 1),
      t: new NumberControl("t", "t, step of the episode", change, 1),
    };
    this.scheduled = make("input", { type: "checkbox", id: "scheduled", name: "scheduled", onchange: change });
    this.#build(container);
    this.controls.start.value = 1;
    this.controls.horizon.value = 300;
    this.controls.t.value = 0;
    this.set(meta.knobs);
  }

  /** The knobs as the server takes them. */
  get knobs() {
    const { controls } = this;
    const wp = this.scheduled.checked
      ? { end: controls.wp.value, horizon: controls.horizon.value, start: controls.start.value }
      : controls.wp.value;
    return {
      n: controls.n.value, lam: controls.lam.value, wp, k_smooth: controls.k_smooth.value,
      source: controls.source.value, anchor: controls.anchor.value,
      support: controls.support.value, value: controls.value.value,
      temperature: controls.temperature.value,
    };
  }

  /** The step of the episode, where the chosen or the default knobs have a schedule. */
  get step() {
    return this.#stepCounts() ? this.controls.t.value : undefined;
  }

  set step(value) {
    this.controls.t.value = value;
  }

  /** Take over whole knobs, from the defaults or a profile. */
  set(knobs) {
    const schedule = typeof knobs.wp === "object";
    this.scheduled.checked = schedule;
    for (const [name, value] of Object.entries(knobs)) {
      if (name === "wp" && schedule) {
        this.controls.wp.value = value.end;
        this.controls.horizon.value = value.horizon;
        this.controls.start.value = value.start;
      } else {
        this.controls[name].value = value;
      }
    }
    this.#changed(false);
  }

  /** What differs from the default knobs, a few words each. */
  get changes() {
    const [now, usual] = [this.knobs, this.meta.knobs];
    return Object.keys(usual)
      .filter((name) => JSON.stringify(now[name]) !== JSON.stringify(usual[name]))
      .map((name) => {
        const text = name === "wp" ? weightText : String;
        return `${SYMBOLS[name] ?? name} ${text(usual[name])} ⇒ ${text(now[name])}`;
      });
  }

  /** Show a message beside the control it names, and answer whether there was one. */
  complain(message) {
    for (const control of Object.values(this.controls)) control.complain(null);
    if (!message) return false;
    const inner = /^wp\.(end|start|horizon)\b/.exec(message)?.[1];
    const name = inner === "end" ? "wp" : inner ?? /^[a-z_]+/.exec(message)?.[0];
    if (!(name in this.controls)) return false;
    this.controls[name].complain(message);
    return true;
  }

  #stepCounts() {
    return this.scheduled.checked || typeof this.meta.knobs.wp === "object";
  }

  #build(container) {
    const { controls } = this;
    const profiles = Object.keys(this.meta.profiles).map((name) => [`profile:${name}`, name]);
    this.profile = new WordControl("profile", "Start from", [[DEFAULT, "server's default"], ...profiles, [CUSTOM, "own setting"]],
      () => this.#takeProfile());
    this.reset = make("button", { type: "button", id: "reset", textContent: "Reset", onclick: () => {
      this.set(this.meta.knobs);
      this.onChange();
    } });
    const schedule = make("label", { className: "check" }, this.scheduled, make("span", { textContent: "w_p follows a cosine schedule" }));
    this.schedule = make("div", { className: "twos" }, controls.start.element, controls.horizon.element);
    const limited = make("p", { className: "muted", hidden: !this.meta.compiled, textContent:
      "This server decides with compiled programs, for the N, k_smooth and words of its profiles alone, and draws only where one of them does. For policies that the fast backend decides all are free." });
    const first = make("p", { className: "muted", hidden: !this.meta.history, textContent:
      "This policy looks back at an episode's steps. Here a state counts as the first of an episode." });
    container.append(
      limited, first,
      make("div", { className: "twos" }, this.profile.element, make("div", { className: "control end" }, this.reset)),
      controls.n.element, controls.lam.element, controls.wp.element, schedule, this.schedule, controls.t.element,
      controls.k_smooth.element, controls.temperature.element,
      make("div", { className: "twos" }, controls.source.element, controls.anchor.element, controls.support.element, controls.value.element));
  }

  #takeProfile() {
    const name = this.profile.value;
    if (name === CUSTOM) return;
    this.set(name === DEFAULT ? this.meta.knobs : this.meta.profiles[name.slice("profile:".length)]);
    this.onChange();
  }

  #changed(tell = true) {
    const { controls, meta } = this;
    const schedule = this.scheduled.checked;
    this.schedule.hidden = !schedule;
    controls.t.element.hidden = !this.#stepCounts();
    const usual = typeof meta.knobs.wp === "object" ? meta.knobs.wp.end : meta.knobs.wp;
    for (const name of ["n", "lam", "k_smooth", "temperature", "source", "anchor", "support", "value"]) controls[name].compare(meta.knobs[name]);
    controls.wp.compare(usual);
    this.profile.value = this.#profileNow();
    this.reset.disabled = this.changes.length === 0;
    if (tell) this.onChange();
  }

  /** Which preset the controls stand at. */
  #profileNow() {
    const now = JSON.stringify(Object.entries(this.knobs).sort().map(flat));
    const same = (knobs) => JSON.stringify(Object.entries(knobs).sort().map(flat)) === now;
    if (same(this.meta.knobs)) return DEFAULT;
    const found = Object.entries(this.meta.profiles).find(([, knobs]) => same(knobs));
    return found ? `profile:${found[0]}` : CUSTOM;
  }
}

/** A knob as text, with the parts of a schedule in one order. */
const flat = ([name, value]) => [name, typeof value === "object" ? Object.entries(value).sort() : value];
