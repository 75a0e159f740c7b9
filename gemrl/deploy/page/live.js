// The live view: the newest decision, the audits and times of the last ones, counters and a table.

import * as api from "./api.js";
import { EventChart, LineChart, pointTogether } from "./chart.js";
import { Cloud } from "./cloud.js";
import { curlLine } from "./code.js";
import { byId, copiesFrom, make, setText } from "./dom.js";
import { clock, count, fixed, float32, milliseconds, NONE, number, vector } from "./format.js";

const KEPT = 240;
const IN_TABLE = 12;
const VIOLATION = -2;

// Heading, cell text, and whether a phone has room for it.
const COLUMNS = [
  ["#", (d) => String(d.id), true],
  ["Time", (d) => clock(d.time), false],
  ["By", (d) => (d.rows > 1 ? `${d.source}, last of ${d.rows}` : d.source), false],
  ["Episode", (d) => d.episode ?? NONE, true],
  ["t", (d) => count(d.t), false],
  ["Action", (d) => vector(d.action, 2, 4), true],
  ["Scored", (d) => count(d.n_scored), false],
  ["w_p", (d) => number(d.wp), false],
  ["Support z", (d) => fixed(d.executed_support_z, 2), true],
  ["Collapse", (d) => fixed(d.executed_collapse_dist, 3), false],
  ["Events", (d) => events(d), true],
  ["Total", (d) => milliseconds(d.total_ms), false],
];

const EVENTS = COLUMNS.findIndex(([name]) => name === "Events");

/** What was out of the ordinary about a decision. */
function events(decision) {
  const gates = Object.entries(decision.flags ?? {}).filter(([, flag]) => flag).map(([name]) => `${name} gate`);
  return [
    decision.executed_violation ? "violation" : "",
    ...gates,
    decision.flagged ? "flagged" : "",
    decision.fallback ? `fell back: ${decision.fallback}` : "",
    decision.rung !== "search" ? `rung: ${decision.rung}` : "",
  ].filter(Boolean).join(", ") || NONE;
}

export class Live {
  constructor(meta) {
    this.meta = meta;
    this.paused = false;
    this.forget();
    this.cloud = new Cloud(byId("live-cloud"), meta, "Newest decision", ["executed", "chosen", "anchor", "behavior"]);
    this.#buildCharts();
    this.#buildTable();
    const area = byId("empty-curl");
    const state = meta.obs_mean.map((value) => Number(float32(Number(value.toPrecision(3)))));
    area.value = curlLine({ observation: state }, meta.token);
    byId("empty-token").hidden = !meta.token;
    this.#wire(area);
  }

  /** Begin anew, as when the server was started again. */
  forget() {
    this.decisions = [];
    this.last = 0;
    this.unseen = 0;
    this.newest = null;
    this.fresh = true;
  }

  /** Ask for what is new and show it. */
  async poll() {
    let answer = await api.recent(this.last);
    if (answer.last < this.last) {
      this.forget();
      answer = await api.recent(0);
    }
    this.last = answer.last;
    this.decisions.push(...answer.decisions);
    this.decisions.splice(0, Math.max(0, this.decisions.length - KEPT));
    // There is a cloud only where there is a new decision.
    this.newest = answer.cloud ?? this.newest;
    this.#counters(answer);
    if (this.paused) {
      this.unseen += answer.decisions.length;
      this.#nameButton();
    } else if (this.fresh || answer.decisions.length > 0) {
      this.render();
      this.fresh = false;
    }
  }

  render() {
    const cloud = this.newest;
    const empty = this.decisions.length === 0;
    byId("live-empty").hidden = !empty;
    byId("live-data").hidden = empty;
    byId("pause").hidden = empty;
    if (empty) return;
    if (cloud) this.cloud.show({ ...cloud, marks: { executed: cloud.action } });
    const shown = [...this.decisions];
    this.charts.forEach((chart) => chart.show(shown));
    const [first, newest] = [shown[0], shown.at(-1)];
    setText(this.span, `${count(shown.length)} decisions, ${clock(first.time)} to ${clock(newest.time)}`);
    this.#rows(shown.slice(-IN_TABLE).reverse());
  }

  #wire(area) {
    copiesFrom(byId("empty-copy"), area);
    byId("pause").addEventListener("click", () => {
      this.paused = !this.paused;
      this.unseen = 0;
      this.#nameButton();
      if (!this.paused) this.render();
    });
  }

  #nameButton() {
    const button = byId("pause");
    button.setAttribute("aria-pressed", String(this.paused));
    setText(button, this.paused ? `Resume (${count(this.unseen)} new)` : "Pause");
  }

  #buildCharts() {
    const chosen = (name, field, style) => ({ name, value: (d) => d[field], style });
    const gates = (this.meta.gates?.names ?? []).map((name) => ({ name: `${name} gate`, test: (d) => Boolean(d.flags?.[name]) }));
    this.charts = [
      new LineChart({
        title: "Support z",
        series: [chosen("executed", "executed_support_z", "main"), chosen("chosen", "support_z", "second")],
        line: { at: VIOLATION, name: "violation below −2" },
      }),
      new LineChart({
        title: "Collapse distance",
        series: [chosen("executed", "executed_collapse_dist", "main"), chosen("chosen", "collapse_dist", "second")],
        fromZero: true,
      }),
      new LineChart({
        title: "Latency",
        series: [chosen("queue", "queue_ms", "second"), chosen("decide", "decide_ms", "main")],
        stacked: true, fromZero: true, cut: true, unit: " ms",
      }),
      new LineChart({ title: "Candidates scored", series: [chosen("scored", "n_scored", "main")], fromZero: true, height: 70 }),
      new EventChart("Gates and fallbacks", [
        { name: "violation", test: (d) => Boolean(d.executed_violation) },
        ...gates,
        ...(gates.length ? [{ name: "flagged", test: (d) => Boolean(d.flagged) }] : []),
        { name: "fallback", test: (d) => Boolean(d.fallback) || d.rung !== "search" },
      ]),
    ];
    pointTogether(this.charts);
    this.span = make("p", { className: "muted" });
    const off = this.meta.gates ? [] : [make("p", { className: "muted", textContent: "The server runs without gates." })];
    byId("live-charts").replaceChildren(
      make("h3", { textContent: "Over time" }), this.span, ...this.charts.map((chart) => chart.element), ...off);
  }

  #buildTable() {
    const cells = COLUMNS.map(([name, , narrow]) => make("th", { scope: "col", className: narrow ? "" : "wide", textContent: name }));
    byId("decisions").tHead.replaceChildren(make("tr", {}, ...cells));
  }

  #rows(decisions) {
    const body = byId("decisions").tBodies[0];
    body.replaceChildren(...decisions.map((decision) => make("tr", {}, ...COLUMNS.map(([, text, narrow]) =>
      make("td", { className: narrow ? "" : "wide", textContent: text(decision) })))));
    for (const row of body.rows) {
      const cell = row.cells[EVENTS];
      cell.classList.toggle("alarm", cell.textContent !== NONE);
    }
  }

  #counters({ counts, latency_ms: latency, waiting }) {
    const shadow = this.meta.shadow ? `${count(counts.shadow_different)} of ${count(counts.shadow_compared)}` : "off";
    const values = [
      ["Decisions", count(counts.decisions), "since the server started"],
      ["Errors", count(counts.errors), "requests that were refused as wrong"],
      ["Shed", count(counts.shed), "requests that were turned away under load"],
      ["Fallbacks", count(counts.fallbacks), "decisions answered with less than was asked for"],
      ["Flagged", this.meta.gates ? count(counts.flagged) : "off", "decisions that the gates called strange"],
      ["Shadow differs", shadow, "decisions in which the shadow model would act otherwise"],
      ["Waiting", count(waiting), "observations in the queue now"],
      ["Latency p50", milliseconds(latency?.p50), "half of the last answers took less"],
      ["Latency p99", milliseconds(latency?.p99), "99 of 100 of the last answers took less"],
    ];
    const list = byId("counters");
    if (list.children.length === 0) {
      list.append(...values.map(([name, , title]) => make("div", { title }, make("dt", { textContent: name }), make("dd", {}))));
    }
    values.forEach(([, text], i) => setText(list.children[i].lastChild, text));
  }
}
