// What a question is asked with: strategies and settings, kept over a reload; never the key.

import { element } from "./elements.js";

// The first answer again, decoded by one thread: the fair clock beside it.
export const ONE_THREAD = "same text, one thread";
const OFFERED = ["pasta", ONE_THREAD, "sequential", "apar", "sot"]; // in the order in which they answer
const AT_FIRST = ["pasta", ONE_THREAD];
export const TOLD = {
  pasta: "the model promises parts of its answer, and threads write them at the same time",
  [ONE_THREAD]: "the first answer is decoded again, token after token: both have the same tokens, so their clocks compare",
  sequential: "one token after another: an answer of its own, so its clock compares with no other",
  apar: "a thread goes on while others write the details of its items",
  sot: "Skeleton-of-Thought: an outline, then all of its points at once",
};
const KEPT = "pasta-lm.question";

export class Choices {
  constructor() {
    this.strategies = element("fieldset", { class: "strategies" });
    this.fields = {
      temperature: number("Temperature", { min: 0, max: 2, step: 0.1, placeholder: "0" }),
      max_tokens: number("Max tokens", { min: 1, step: 1 }),
      top_p: number("Top p", { min: 0.01, max: 1, step: 0.01, placeholder: "1" }),
      fork_bias: number("Fork bias", { min: -100, max: 100, step: 0.5, placeholder: "the model's" }),
      seed: number("Seed", { step: 1, placeholder: "drawn" }),
      max_threads: number("Max threads", { min: 1, step: 1 }),
    };
    const labels = Object.values(this.fields).map(({ label }) => label);
    const hint = element("p", {}, "At temperature 0 the likeliest token is taken each time, and the seed has no effect. Tokens of all threads count together. A fork bias below 0 makes fewer threads, above 0 more.");
    this.settings = element("details", { class: "settings" }, element("summary", {}, "Settings"), element("div", { class: "fields" }, ...labels), hint);
    this.kept = read();
    this.settings.open = this.kept.isOpen ?? false;
    for (const [name, { input }] of Object.entries(this.fields)) input.value = this.kept[name] ?? "";
    this.offer(AT_FIRST);
  }

  // Offer the strategies by which the model answers, and its limits.
  offer(names, limits = {}) {
    const chosen = this.kept.strategies ?? AT_FIRST;
    this.boxes = OFFERED.filter((name) => names.includes(name)).map((name) => {
      const box = element("input", { type: "checkbox", name: "strategy", value: name });
      box.checked = chosen.includes(name);
      return box;
    });
    const others = this.boxes.filter((box) => box.value !== ONE_THREAD);
    if (!others.some((box) => box.checked)) others.forEach((box) => { box.checked = true; });
    const labels = this.boxes.map((box) => element("label", { title: TOLD[box.value] }, box, ` ${box.value}`));
    this.strategies.replaceChildren(element("legend", {}, "Answer by"), ...labels);
    const { max_tokens, max_threads } = this.fields;
    for (const [field, most, usual] of [[max_tokens, limits.tokens, limits.default_tokens], [max_threads, limits.threads, limits.threads]]) {
      if (most) field.input.max = most;
      field.input.placeholder = usual ?? "";
    }
  }

  get offered() {
    return this.boxes.map((box) => box.value);
  }

  get chosen() {
    return this.boxes.filter((box) => box.checked).map((box) => box.value);
  }

  // The fields of a request that asks for one strategy's answer, pass by pass.
  request(strategy) {
    const value = (name) => (this.fields[name].input.value === "" ? undefined : Number(this.fields[name].input.value));
    const pasta = { strategy, stream: "events", trace: true, max_threads: value("max_threads"), fork_bias: value("fork_bias") };
    return { temperature: value("temperature"), top_p: value("top_p"), max_tokens: value("max_tokens"), seed: value("seed"), stream: true, pasta };
  }

  // The same for the fields of a schema, all at the same time.
  fieldsOf({ schema }) {
    const { pasta, ...request } = this.request();
    return { ...request, response_format: { type: "json_schema", json_schema: { name: "fields", schema } }, pasta: { ...pasta, parts: true } };
  }

  keep(question) {
    const settings = Object.entries(this.fields).map(([name, { input }]) => [name, input.value]);
    this.kept = { question, strategies: this.chosen, isOpen: this.settings.open, ...Object.fromEntries(settings) };
    try {
      sessionStorage.setItem(KEPT, JSON.stringify(this.kept));
    } catch {
      // A browser that keeps nothing: the next page begins anew.
    }
  }
}

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT)) ?? {};
  } catch {
    return {};
  }
}

function number(name, attributes) {
  const input = element("input", { type: "number", ...attributes });
  return { input, label: element("label", {}, name, input) };
}
