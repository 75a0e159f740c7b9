// A decision's setting as code that somebody can run: Python, the JSON of /v1/act, and curl.

import { actAddress } from "./api.js";
import { copiesFrom, make } from "./dom.js";

/** Text in single quotes for a shell. */
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** JSON on few lines: one for each field of the request. */
export function prettyRequest(request) {
  const lines = Object.entries(request).map(([name, value]) => `  ${JSON.stringify(name)}: ${JSON.stringify(value)}`);
  return `{\n${lines.join(",\n")}\n}`;
}

/** A curl command for a request; a token comes from the environment. */
export function curlLine(request, withToken) {
  const lines = [`curl -s ${actAddress()}`, "  -H 'Content-Type: application/json'"];
  if (withToken) lines.push(`  -H "Authorization: Bearer $GEMRL_TOKEN"`);
  lines.push(`  -d ${quoted(JSON.stringify(request))}`);
  return lines.join(" \\\n");
}

const python = (value) => (typeof value === "string" ? JSON.stringify(value) : String(value));

/** Named arguments of a call. */
const named = (fields) => Object.entries(fields).map(([name, value]) => `${name}=${python(value)}`).join(", ");

function pythonKnobs({ n, lam, wp, k_smooth, ...words }) {
  const weight = typeof wp === "object" ? `gemrl.Cosine(${named(wp)})` : wp;
  const numbers = `n=${n}, lam=${lam}, wp=${weight}, k_smooth=${k_smooth}`;
  return `gemrl.Knobs(\n    ${numbers},\n    ${named(words)},\n)`;
}

/**
 * The same decision in Python; `RUN` stands for the folder of the policy with this digest, and
 * `DENSITY` for that of the policy whose density it has, where it has another's.
 */
export function pythonCode({ observation, knobs, seed, t }, { digest, density }) {
  const step = t === undefined ? "" : `, t=${t}`;
  return [
    "import gemrl",
    "",
    `policy = gemrl.load("RUN"${density ? `, behavior="DENSITY"` : ""})  # digest ${digest.slice(0, 12)}`,
    `observation = [${observation.join(", ")}]`,
    `knobs = ${pythonKnobs(knobs)}`,
    `decision = policy.decide(observation, knobs, seed=${seed}${step})`,
    "print(decision.action)",
  ].join("\n");
}

/** The card that shows the code in a chosen language, with a button to copy it. */
export class CodeCard {
  constructor(container, meta) {
    this.meta = meta;
    this.request = null;
    const languages = [["python", "Python"], ["json", "JSON"], ["curl", "curl"]];
    const choices = languages.map(([value, name], i) => make("label", { className: "choice" },
      make("input", { type: "radio", name: "language", value, checked: i === 0, onchange: () => this.#render() }),
      make("span", { textContent: name })));
    this.area = make("textarea", { id: "code-text", className: "mono", readOnly: true, rows: 11, spellcheck: false, "aria-label": "Code of this setting" });
    const button = make("button", { type: "button", id: "code-copy", textContent: "Copy" });
    copiesFrom(button, this.area);
    this.container = container;
    container.replaceChildren(
      make("div", { className: "bar" },
        make("h3", { textContent: "As code" }),
        make("div", { className: "choices", role: "radiogroup", "aria-label": "Language" }, ...choices),
        button),
      this.area,
      make("p", { className: "muted", textContent: [
        "RUN is the folder of the policy.",
        ...(meta.density ? ["DENSITY is that of the policy whose behaviour density it has."] : []),
        ...(meta.token ? ["The server wants its token, which curl takes from GEMRL_TOKEN."] : []),
      ].join(" ") }));
  }

  show(request) {
    this.request = request;
    this.#render();
  }

  #render() {
    if (!this.request) return;
    const language = this.container.querySelector("input[name=language]:checked").value;
    const texts = {
      python: () => pythonCode(this.request, this.meta),
      json: () => prettyRequest(this.request),
      curl: () => curlLine(this.request, this.meta.token),
    };
    const text = texts[language]();
    if (this.area.value !== text) this.area.value = text;
  }
}
