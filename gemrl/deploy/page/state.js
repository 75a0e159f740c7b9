// The panel of the state: from the dataset, typed, or pasted.

import * as api from "./api.js";
import { NumberControl, nudges } from "./controls.js";
import { make, setText } from "./dom.js";
import { count, float32, number, typed } from "./format.js";

/** The numbers of a pasted list, in brackets or not, with commas or without. */
export const numbersOf = (text) => text.replace(/[[\](),;]/g, " ").trim().split(/\s+/).filter(Boolean).map(typed);

export class StatePanel {
  /** `onStep` is told the episode's step of a state from the dataset. */
  constructor(container, meta, onChange, onStep) {
    Object.assign(this, { meta, onChange, onStep });
    this.logged = null;
    this.place = null;
    this.asked = 0;
    this.pasted = null;
    this.seedControl = new NumberControl("seed", "Seed", onChange, 1);
    this.seedControl.value = 0;
    this.#build(container);
    this.#fill(meta.obs_mean);
  }

  /** The state as numbers; what was typed and is none stays text, for the server to judge. */
  get observation() {
    return this.pasted ?? this.fields.map((field) => typed(field.value));
  }

  get seed() {
    return this.seedControl.value;
  }

  /** Show a message beside what it names, and answer whether that was here. */
  complain(message) {
    this.seedControl.complain(null);
    this.#problem("");
    for (const field of this.fields) field.removeAttribute("aria-invalid");
    if (!message) return false;
    if (message.startsWith("seed")) {
      this.seedControl.complain(message);
      return true;
    }
    if (!/observation/.test(message)) return false;
    this.#problem(message);
    this.fields.forEach((field) => {
      if (typeof typed(field.value) !== "number") field.setAttribute("aria-invalid", "true");
    });
    return true;
  }

  /** Take a state of the dataset; without a row number a random one. */
  async pick(row) {
    this.asked += 1;
    const mine = this.asked;
    let answer;
    try {
      answer = await api.state(row);
    } catch (error) {
      if (mine === this.asked) this.#about(error.message, true);
      return;
    }
    if (mine === this.asked) this.#take(answer);
  }

  /** The state before or after, within the episode. */
  async move(way) {
    if (!this.place) {
      await this.pick(0);
      return;
    }
    const { row, episode } = this.place;
    const end = `Episode ${episode} ${way > 0 ? "ends" : "begins"} here.`;
    if (row + way < 0 || row + way >= this.place.count) {
      this.#about(end);
      return;
    }
    this.asked += 1;
    const mine = this.asked;
    try {
      const answer = await api.state(row + way);
      if (mine !== this.asked) return;
      if (answer.episode === episode) this.#take(answer);
      else this.#about(end);
    } catch (error) {
      if (mine === this.asked) this.#about(error.message, true);
    }
  }

  #take(answer) {
    this.place = answer;
    this.logged = answer.action;
    this.rowField.value = String(answer.row);
    this.#about(`Row ${count(answer.row)} of ${count(answer.count)}: episode ${answer.episode}, step ${answer.t}.`);
    this.onStep(answer.t);
    this.#fill(answer.observation);
    this.onChange();
  }

  #fill(observation) {
    this.pasted = null;
    observation.forEach((value, i) => { this.fields[i].value = float32(value); });
  }

  /** The person changed the state: it is none of the dataset's any more. */
  #edited() {
    this.pasted = null;
    this.logged = null;
    if (this.place) this.#about(`Changed from row ${count(this.place.row)}.`);
    this.onChange();
  }

  #about(text, wrong = false) {
    setText(this.about, text);
    this.about.classList.toggle("problem", wrong);
  }

  #problem(text) {
    setText(this.problem, text);
    this.problem.hidden = !text;
  }

  #build(container) {
    const { meta } = this;
    this.about = make("p", { className: "muted", id: "state-about", role: "status" });
    this.problem = make("p", { className: "problem", id: "state-problem", hidden: true });
    this.fields = meta.obs_mean.map((mean, i) => {
      const input = make("input", {
        id: `state-${i}`, name: `state-${i}`, type: "text", spellcheck: false,
        title: `mean ${number(mean)}, standard deviation ${number(meta.obs_std[i])}`,
        "aria-describedby": "state-problem",
      });
      nudges(input, meta.obs_std[i] / 10);
      input.addEventListener("input", () => this.#edited());
      return input;
    });
    const labelled = this.fields.map((input, i) => make("label", { className: "cell" }, make("span", { textContent: String(i) }), input));
    const none = make("p", { className: "muted", textContent:
      "The server was started without --states, so there is no dataset to pick from. This is the mean state; type another." });
    container.append(
      make("div", { className: "control" }, ...(meta.states ? this.#picker() : [none])),
      make("div", { className: "control" },
        make("div", { className: "cells", role: "group", "aria-label": "The state, a field for each dimension" }, ...labelled),
        this.problem,
        this.#paste()),
      make("div", { className: "seed" }, this.seedControl.element, make("button", {
        type: "button", id: "new-seed", textContent: "New seed", onclick: () => {
          this.seedControl.value = Math.floor(Math.random() * 1e6);
          this.onChange();
        },
      })));
  }

  #picker() {
    const { source, count: rows } = this.meta.states;
    this.rowField = make("input", { id: "row", name: "row", type: "text", inputMode: "numeric", "aria-describedby": "state-about" });
    this.rowField.addEventListener("change", () => this.pick(this.rowField.value.trim()));
    const button = (id, text, label, action) => make("button", { type: "button", id, textContent: text, "aria-label": label, onclick: action });
    return [
      make("div", { className: "control-head" }, make("label", { for: "row", textContent: `Row of ${source}` }),
        make("span", { className: "note", textContent: `0 to ${count(rows - 1)}` })),
      make("div", { className: "picker" }, this.rowField,
        button("previous", "‹", "Back one step in the episode", () => this.move(-1)),
        button("next", "›", "On one step in the episode", () => this.move(1)),
        button("random", "Random", "A random row", () => this.pick())),
      this.about,
    ];
  }

  #paste() {
    const area = make("textarea", { id: "paste", className: "mono", rows: 2, spellcheck: false, "aria-label": "A state as a list of numbers", placeholder: "[0.1, −0.2, …]" });
    const use = make("button", { type: "button", id: "use-paste", textContent: "Use it", onclick: () => {
      const values = numbersOf(area.value);
      this.#edited();
      if (values.length === this.fields.length) values.forEach((value, i) => { this.fields[i].value = String(value); });
      else this.pasted = values;
      this.onChange();
    } });
    return make("details", { className: "more" }, make("summary", { textContent: "Paste a list" }), make("div", { className: "copyable" }, area, use));
  }
}
