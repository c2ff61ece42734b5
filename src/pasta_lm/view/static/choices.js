// What a question is asked with: strategies and settings, kept over a reload; never the key.

import { element } from "./elements.js";
import { JSON_MODE } from "./fields.js";

// The first answer again, decoded by one thread: the fair clock beside it.
export const ONE_THREAD = "same text, one thread";
const AT_ONCE = "fields at once";
const OFFERED = { // in the order in which they answer
  answer: ["pasta", ONE_THREAD, "sequential", "apar", "sot"],
  fields: [AT_ONCE, ONE_THREAD, JSON_MODE],
};
const IN_TURN = ["sequential", JSON_MODE, ONE_THREAD]; // one thread writes these
const AT_FIRST = ["pasta", AT_ONCE, ONE_THREAD, JSON_MODE];
export const TOLD = {
  pasta: "the model promises parts of its answer, and threads write them at the same time",
  [ONE_THREAD]: "the first answer is decoded again, token after token: both have the same tokens, so their clocks compare",
  sequential: "one token after another: an answer of its own, so its clock compares with no other",
  apar: "a thread goes on while others write the details of its items",
  sot: "Skeleton-of-Thought: an outline, then all of its points at once",
  [AT_ONCE]: "each field is a thread, with any model; each value has a probability",
  [JSON_MODE]: "one thread, held to the same schema: the same job as it is done elsewhere, on the same clock",
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
    this.ticked = new Set(this.kept.ticked ?? AT_FIRST);
    this.settings.open = this.kept.isOpen ?? false;
    for (const [name, { input }] of Object.entries(this.fields)) input.value = this.kept[name] ?? "";
    this.offer(["pasta"]);
  }

  // Offer what the model is capable of, and its limits.
  offer(strategies, { canReplay = true, limits = {} } = {}) {
    this.names = [AT_ONCE, JSON_MODE, ...strategies, ...(canReplay ? [ONE_THREAD] : [])];
    const { max_tokens, max_threads } = this.fields;
    for (const [field, most, usual] of [[max_tokens, limits.tokens, limits.default_tokens], [max_threads, limits.threads, limits.threads]]) {
      if (most) field.input.max = most;
      field.input.placeholder = usual ?? "";
    }
    this.show(this.mode);
  }

  // Show what can be chosen for an answer, or for fields.
  show(mode = "answer") {
    this.mode = mode;
    this.boxes = OFFERED[mode].filter((name) => this.names.includes(name)).map((name) => {
      const box = element("input", { type: "checkbox", name: "strategy", value: name });
      box.checked = this.ticked.has(name);
      box.addEventListener("change", () => this.tick(box));
      return box;
    });
    const others = this.boxes.filter((box) => box.value !== ONE_THREAD);
    if (!others.some((box) => box.checked)) others[0].checked = true;
    const labels = this.boxes.map((box) => element("label", { title: TOLD[box.value] }, box, ` ${box.value}`));
    this.strategies.replaceChildren(element("legend", {}, mode === "fields" ? "Fill by" : "Answer by"), ...labels);
    this.tick();
  }

  // Keep what is ticked; where one thread writes all, there is nothing to decode again.
  tick(box = null) {
    if (box) this.ticked[box.checked ? "add" : "delete"](box.value);
    const isInTurn = !this.boxes.some(({ checked, value }) => checked && !IN_TURN.includes(value));
    for (const one of this.boxes) if (one.value === ONE_THREAD) one.disabled = isInTurn;
  }

  // The chosen runs, first what is decoded again, then that.
  get chosen() {
    const names = this.boxes.filter((box) => box.checked && !box.disabled).map((box) => box.value);
    if (!names.includes(ONE_THREAD)) return names;
    const first = names.find((name) => !IN_TURN.includes(name));
    return [...new Set([first, ONE_THREAD, ...names])];
  }

  // The fields of a request for one run, pass by pass; ``schema`` is of its fields.
  request(name, schema = null) {
    const value = (field) => (this.fields[field].input.value === "" ? undefined : Number(this.fields[field].input.value));
    const kind = name === AT_ONCE ? { parts: true, confidence: true, spans: true } : { strategy: name === JSON_MODE ? "sequential" : name };
    const form = schema && { response_format: { type: "json_schema", json_schema: { name: "fields", schema } } };
    const pasta = { ...kind, stream: "events", trace: true, max_threads: value("max_threads"), fork_bias: value("fork_bias") };
    return { temperature: value("temperature"), top_p: value("top_p"), max_tokens: value("max_tokens"), seed: value("seed"), stream: true, ...form, pasta };
  }

  keep(boxes) {
    const settings = Object.entries(this.fields).map(([name, { input }]) => [name, input.value]);
    this.kept = { ...this.kept, ...boxes, ticked: [...this.ticked], isOpen: this.settings.open, ...Object.fromEntries(settings) };
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
