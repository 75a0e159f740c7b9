// The explorer: a state and knobs on one side, the decision they give on the other.

import * as api from "./api.js";
import { Cloud } from "./cloud.js";
import { CodeCard } from "./code.js";
import { byId, setText } from "./dom.js";
import { fixed, vector } from "./format.js";
import { KnobPanel } from "./knobs.js";
import { ResultCard } from "./result.js";
import { StatePanel } from "./state.js";

// Key repeats and drags within this time become one request.
const GATHER_MS = 25;
// A screen reader hears of a result once the person has paused.
const ANNOUNCE_MS = 900;

const pause = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });

export class Explore {
  constructor(meta) {
    this.meta = meta;
    this.wanted = 0;
    this.busy = false;
    this.usual = { key: null, answer: null };
    const change = () => this.ask();
    this.knobs = new KnobPanel(byId("knobs"), meta, change);
    this.state = new StatePanel(byId("state"), meta, change, (step) => { this.knobs.step = step; });
    this.cloud = new Cloud(byId("explore-cloud"), meta, "Candidates",
      ["executed", "chosen", "anchor", "behavior", "default", ...(meta.states ? ["logged"] : [])]);
    this.result = new ResultCard(byId("result"));
    this.code = new CodeCard(byId("code"), meta);
    byId("controls").addEventListener("submit", (event) => event.preventDefault());
  }

  start() {
    return this.meta.states ? this.state.pick(0) : this.ask();
  }

  /**
   * Ask for the setting as it now stands. One request is under way at a time, and when it is
   * answered the newest setting is asked for: no answer can overtake another.
   */
  async ask() {
    this.wanted += 1;
    if (this.busy) return;
    this.busy = true;
    try {
      let done = 0;
      while (done !== this.wanted) {
        await pause(GATHER_MS);
        done = this.wanted;
        await this.#decide(() => done === this.wanted);
      }
    } finally {
      this.busy = false;
    }
  }

  #request(knobs) {
    const request = { observation: this.state.observation, knobs, seed: this.state.seed };
    const { step } = this.knobs;
    return step === undefined ? request : { ...request, t: step };
  }

  async #decide(newest) {
    const request = this.#request(this.knobs.knobs);
    const { logged } = this.state;
    const { changes } = this.knobs;
    let answer;
    try {
      answer = await api.act({ ...request, detail: true });
    } catch (error) {
      await this.#refused(error, newest);
      return;
    }
    this.#complain(null);
    this.code.show(request);
    const key = JSON.stringify({ ...request, knobs: null });
    if (changes.length === 0) this.usual = { key, answer };
    this.#show(answer, this.usual.key === key ? this.usual.answer : null, logged, changes);
    if (this.usual.key !== key && newest()) await this.#compare(request, key, { answer, logged, changes });
  }

  /** What the default knobs decide for the same state and seed. */
  async #compare(request, key, { answer, logged, changes }) {
    try {
      const usual = await api.act({ ...request, knobs: this.meta.knobs, detail: true });
      this.usual = { key, answer: usual };
      this.#show(answer, usual, logged, changes);
    } catch {
      // The comparison stays empty; the setting itself was answered.
      this.usual = { key, answer: null };
    }
  }

  async #refused(error, newest) {
    this.#complain(error.message);
    this.#announce(error.message);
    if (error.status === 503 && newest()) {
      await pause(1000 * (error.retryAfter || 1));
      this.wanted += newest() ? 1 : 0;
    }
  }

  #complain(message) {
    const atKnob = this.knobs.complain(message);
    const atState = this.state.complain(message);
    this.result.refuse(Boolean(message), message && !atKnob && !atState ? `${message}.` : "");
  }

  #show(answer, usual, logged, changes) {
    const { detail } = answer;
    this.result.show(answer, usual, logged, changes);
    this.cloud.show({
      ...detail,
      anchor: answer.anchor ? 0 : null,
      chosen: answer.chosen,
      marks: { default: changes.length ? usual?.action : null, logged, executed: answer.action },
    });
    const { executed } = answer.audit;
    const support = executed.support_z === null ? "Support is not known"
      : `Support z ${fixed(executed.support_z, 2)}, ${executed.violation ? "a violation" : "no violation"}`;
    this.#announce(`Action ${vector(answer.action)}. ${support}.`);
  }

  #announce(text) {
    clearTimeout(this.announcing);
    this.announcing = setTimeout(() => setText(byId("explore-status"), text), ANNOUNCE_MS);
  }
}
