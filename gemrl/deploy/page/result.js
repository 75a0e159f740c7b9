// What was decided: the action, its audits, the gates, and the same with the default knobs.

import { make, setText } from "./dom.js";
import { count, fixed, float32, milliseconds, NONE, number, probability, yesNo } from "./format.js";
import { alarming, scrolling, table } from "./tables.js";

// A policy without a behaviour density knows no support, and no violation either.
function violation(value, { support_z: z }) {
  if (z === null) return NONE;
  return value ? alarming(yesNo(value)) : yesNo(value);
}

const AUDITS = [
  ["Support z", "support_z", (value) => fixed(value, 3)],
  ["Log support", "log_support", (value) => fixed(value, 3)],
  ["Violation", "violation", violation],
  ["Collapse distance", "collapse_dist", (value) => fixed(value, 3)],
];

function difference(now, before) {
  if (typeof now !== "number" || typeof before !== "number") return "";
  const text = fixed(now - before, 3);
  return now > before && Number(text) !== 0 ? `+${text}` : text;
}

export class ResultCard {
  constructor(container) {
    this.message = make("p", { className: "problem", id: "result-problem", hidden: true });
    this.changes = make("p", { id: "changes" });
    this.facts = make("dl", { className: "facts" });
    this.actions = scrolling("Actions", "");
    this.actions.id = "actions";
    this.audits = make("div", { id: "audits" });
    this.gates = make("div", { id: "gates" });
    this.body = make("div", { className: "result" }, this.facts, this.actions, make("div", { className: "stack" }, this.audits, this.gates));
    container.replaceChildren(make("h3", { textContent: "Decision" }), this.changes, this.message, this.body);
  }

  /**
   * Say that the setting has no answer, and that what is shown belongs to an earlier one. The reason
   * may stand beside a control already: then `reason` is empty.
   */
  refuse(refused, reason) {
    const old = "This setting has no answer. What is shown belongs to the one before.";
    setText(this.message, refused ? `${reason} ${old}`.trim() : "");
    this.message.hidden = !refused;
    this.changes.hidden = refused;
    this.body.classList.toggle("stale", refused);
  }

  /** `usual` is the decision with the default knobs, or null while it is not known. */
  show(answer, usual, logged, changes) {
    setText(this.changes, changes.length ? `Changed: ${changes.join(", ")}.` : "These are the default knobs.");
    this.#facts(answer);
    this.#actions(answer, usual, logged);
    this.#audits(answer.audit, usual?.audit);
    this.#gates(answer.gates);
  }

  #facts(answer) {
    const values = [
      ["Candidates scored", count(answer.n_scored)],
      ["Chosen", answer.anchor && answer.chosen === 0 ? "the anchor" : `candidate ${answer.chosen}`],
      ["Score", number(answer.score, 4)],
      ["Lower bound on value", number(answer.lcb, 4)],
      ["w_p used", number(answer.wp)],
      ["Executed by", answer.rung],
      ["Fallback", answer.fallback ?? "none"],
      ["Time", milliseconds(answer.timings.total_ms)],
    ];
    this.facts.replaceChildren(...values.map(([name, text]) => make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: text }))));
  }

  #actions(answer, usual, logged) {
    const chosen = answer.detail.candidates[answer.chosen];
    const columns = [["Executed", answer.action], ["Chosen", chosen], ["Anchor", answer.anchor], ["Default", usual?.action]];
    if (logged) columns.push(["Logged", logged]);
    const rows = answer.action.map((_, i) => [String(i), ...columns.map(([, action]) => fixed(action?.[i], 3))]);
    this.actions.replaceChildren(table("Action", ["", ...columns.map(([name]) => name)], rows));
    // The whole number under the pointer.
    [...this.actions.querySelectorAll("tbody tr")].forEach((row, i) => {
      columns.forEach(([, action], column) => { row.cells[column + 1].title = action ? float32(action[i]) : ""; });
    });
  }

  #audits(audit, usual) {
    const cell = (text, key, of) => text(of[key], of);
    const rows = AUDITS.map(([name, key, text]) => [
      name, cell(text, key, audit.executed), cell(text, key, audit.chosen), usual ? cell(text, key, usual.executed) : "…",
      usual ? difference(audit.executed[key], usual.executed[key]) : "",
    ]);
    this.audits.replaceChildren(table("Audits", ["", "Executed", "Chosen", "Default", "Change"], rows));
  }

  #gates(gates) {
    if (!gates) {
      this.gates.replaceChildren(make("p", { className: "muted", textContent: "The server runs without gates." }));
      return;
    }
    const verdict = (flag) => (flag ? alarming("flagged") : "passes");
    const rows = Object.entries(gates.p).map(([name, p]) => [name, probability(p), verdict(gates.flags[name])]);
    rows.push(["all together", probability(gates.joint_p), verdict(gates.flagged)]);
    this.gates.replaceChildren(table(`Gates, at a false-alarm rate of ${gates.alpha}`, ["Gate", "p-value", "Verdict"], rows));
  }
}
