// Labelled controls: a slider with a field, a select, a field; each with room for what is wrong with it.

import { make, setOptions, setText } from "./dom.js";
import { typed } from "./format.js";

/** A control's surroundings: its label, its inputs, a note and the place for a message. */
class Control {
  constructor(name, label, inputs, onChange) {
    this.name = name;
    this.inputs = inputs;
    this.onChange = onChange;
    this.note = make("span", { className: "note" });
    this.problem = make("p", { id: `${name}-problem`, className: "problem", hidden: true });
    this.head = make("div", { className: "control-head" }, make("label", { for: name, textContent: label }), this.note);
    this.element = make("div", { className: "control" }, this.head);
  }

  /** Show what is wrong with the control; without a message nothing is. */
  complain(message) {
    setText(this.problem, message ?? "");
    this.problem.hidden = !message;
    for (const input of this.inputs) {
      if (message) {
        input.setAttribute("aria-invalid", "true");
        input.setAttribute("aria-describedby", this.problem.id);
      } else {
        input.removeAttribute("aria-invalid");
        input.removeAttribute("aria-describedby");
      }
    }
  }

  /** Say what the default is, where the value is another. */
  compare(fallback) {
    const changed = JSON.stringify(this.value) !== JSON.stringify(fallback);
    this.element.classList.toggle("changed", changed);
    setText(this.note, changed ? `changed, default ${fallback}` : "");
    return changed;
  }
}

/** Let the up and down keys change a field by a step, ten steps with Shift. */
export function nudges(input, step) {
  input.addEventListener("keydown", (event) => {
    const way = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    const value = typed(input.value);
    if (!way || typeof value !== "number") return;
    event.preventDefault();
    const size = step * (event.shiftKey ? 10 : 1);
    input.value = String(Number((value + way * size).toPrecision(7)));
    input.dispatchEvent(new Event("input", { bubbles: true }));
  });
}

const field = (id, extra = {}) =>
  make("input", { id, name: id, type: "text", inputMode: "decimal", spellcheck: false, ...extra });

/** A field for a number. What is no number goes to the server as it stands, which says so. */
export class NumberControl extends Control {
  constructor(name, label, onChange, step) {
    const input = field(name);
    super(name, label, [input], onChange);
    this.input = input;
    nudges(input, step);
    input.addEventListener("input", onChange);
    this.element.append(input, this.problem);
  }

  get value() {
    return typed(this.input.value);
  }

  set value(value) {
    this.input.value = String(value);
  }
}

/** The places of a slider, from a list of values. */
export const listed = (values) => ({
  last: values.length - 1,
  step: 1,
  valueAt: (place) => values[place],
  placeOf: (value) => values.reduce((best, one, i) => (Math.abs(one - value) < Math.abs(values[best] - value) ? i : best), 0),
});

/** The places of a slider, from 0 to `last` in steps. */
export const evenly = (last, step) => ({
  last,
  step,
  valueAt: (place) => Number(place.toFixed(6)),
  placeOf: (value) => value,
});

/** A slider beside a field. The field is the value; it may lie beyond the slider's ends. */
export class SliderControl extends Control {
  constructor(name, label, places, onChange) {
    const input = field(name);
    const slider = make("input", {
      type: "range", min: 0, max: places.last, step: places.step, name: `${name}-slider`, id: `${name}-slider`,
      disabled: places.last === 0, "aria-label": `${label}, slider`,
    });
    super(name, label, [input, slider], onChange);
    Object.assign(this, { input, slider, places });
    slider.addEventListener("input", () => {
      this.input.value = String(places.valueAt(slider.valueAsNumber));
      this.#tell();
      onChange();
    });
    input.addEventListener("input", () => {
      this.#follow();
      onChange();
    });
    this.element.append(make("div", { className: "pair" }, slider, input), this.problem);
  }

  get value() {
    return typed(this.input.value);
  }

  set value(value) {
    this.input.value = String(value);
    this.#follow();
  }

  #follow() {
    if (typeof this.value === "number") this.slider.value = this.places.placeOf(this.value);
    this.#tell();
  }

  #tell() {
    this.slider.setAttribute("aria-valuetext", this.input.value);
  }
}

/** A choice between words. */
export class WordControl extends Control {
  constructor(name, label, words, onChange) {
    const select = make("select", { id: name, name });
    super(name, label, [select], onChange);
    this.select = select;
    setOptions(select, words.map((word) => (Array.isArray(word) ? word : [word, word])), undefined);
    select.addEventListener("change", onChange);
    this.element.append(select, this.problem);
  }

  get value() {
    return this.select.value;
  }

  set value(value) {
    this.select.value = value;
  }
}
