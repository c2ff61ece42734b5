// How the next question is asked: strategy, temperature, seed, tokens, a system message, the key; in a sheet of its own.

import { TOLD } from "../choices.js";
import { byId, element } from "../elements.js";
import { offerColours } from "../theme.js";

const STRATEGIES = ["pasta", "sequential"]; // until the server tells those of its model
const KEPT = ["strategy", "temperature", "top_p", "tokens", "fork_bias", "seed", "system"]; // never the key

export class Settings {
  constructor() {
    this.strategy = element("select", {});
    this.temperature = element("input", { type: "number", min: 0, max: 2, step: 0.05, value: 0, required: "" });
    this.top_p = element("input", { type: "number", min: 0.01, max: 1, step: 0.01, placeholder: "1" });
    this.fork_bias = element("input", { type: "number", min: -100, max: 100, step: 0.5, placeholder: "the model's", title: "Below 0 fewer threads, above 0 more" });
    this.seed = element("input", { type: "number", step: 1, value: 0, required: "", title: "Without effect at temperature 0; Regenerate takes the next one" });
    this.colours = element("input", { type: "checkbox", checked: "" });
    offerColours(this.colours);
    this.tokens = element("input", { type: "number", min: 1, step: 1, value: 1024, required: "" });
    this.system = element("textarea", { rows: 2, placeholder: "None" });
    this.key = element("input", { type: "password", autocomplete: "off", placeholder: "None" });
    this.offer(STRATEGIES);
    this.button = byId("settings");
    this.root = byId("sheet");
    byId("fields").append(
      label("Strategy", this.strategy),
      label("Temperature", this.temperature),
      label("Top p", this.top_p),
      label("Max tokens", this.tokens),
      label("Fork bias", this.fork_bias),
      label("Seed", this.seed),
      label("API key", this.key),
      label("Colours of threads", this.colours),
      label("System message", this.system));
    this.root.addEventListener("change", () => this.summarise());
    this.button.addEventListener("click", () => this.open());
    this.summarise();
  }

  // Offer these strategies; the chosen one stays.
  offer(names, limits = {}) {
    const chosen = this.strategy.value;
    this.strategy.replaceChildren(...names.map((name) => element("option", { value: name, title: TOLD[name] }, name)));
    this.strategy.value = names.includes(chosen) ? chosen : names[0];
    if (!limits.tokens) return;
    this.tokens.max = limits.tokens;
    if (Number(this.tokens.value) > limits.tokens) this.tokens.value = limits.tokens;
  }

  summarise() {
    const { strategy, temperature, tokens } = this;
    this.button.textContent = `⚙ ${strategy.value} · temperature ${temperature.value} · ${tokens.value} tokens`;
  }

  open() {
    if (!this.root.open) this.root.showModal();
  }

  // Whether all values can be sent; if not, the browser points at the wrong one.
  check() {
    const wrong = [this.temperature, this.top_p, this.tokens, this.fork_bias, this.seed].find((field) => !field.checkValidity());
    if (!wrong) return true;
    this.open();
    return wrong.reportValidity();
  }

  askForKey() {
    this.open();
    this.key.focus();
  }

  // ``number`` is that of the variant, each of which has a seed of its own.
  asked(number) {
    const [temperature, tokens, seed] = [this.temperature, this.tokens, this.seed].map(({ value }) => Number(value));
    const optional = ({ value }) => (value === "" ? undefined : Number(value));
    return { strategy: this.strategy.value, temperature, top_p: optional(this.top_p), max_tokens: tokens, fork_bias: optional(this.fork_bias), seed: seed + number };
  }

  toJSON() {
    return Object.fromEntries(KEPT.map((name) => [name, this[name].value]));
  }

  restore(values = {}) {
    for (const name of KEPT) {
      if (typeof values[name] !== "string") continue;
      if (name === "strategy") this.offer([...new Set([...STRATEGIES, values.strategy])]);
      this[name].value = values[name];
    }
    this.summarise();
  }
}

function label(name, field) {
  return element("label", {}, name, field);
}
