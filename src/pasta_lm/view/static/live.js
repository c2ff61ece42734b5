// Asking the server: one run for each strategy, one after the other, fed by the events of its stream.

import { Choices } from "./choices.js";
import { element, visible } from "./elements.js";
import { EXAMPLES } from "./examples.js";
import { Run } from "./run.js";
import { pageOf, save } from "./saving.js";

const INTRODUCTION = "Ask something, and watch several threads write one answer. Each strategy answers after the one before it has ended, so that each has the machine to itself and the clocks can be compared.";
const UNREACHED = "The server does not answer.";
const BROKEN = "The connection to the server broke.";

export class AskForm {
  // ``show`` takes runs and returns the stage on which they stand.
  constructor(root, facts, show) {
    this.facts = facts;
    this.show = show;
    this.stage = null;
    this.choices = new Choices();
    this.prompt = element("textarea", { rows: 2, "aria-label": "Prompt", placeholder: "Ask something" });
    this.prompt.value = this.choices.kept.question ?? "";
    this.key = element("input", { type: "password", "aria-label": "API key", placeholder: "API key", autocomplete: "off", hidden: "" });
    this.button = element("button", { type: "submit", class: "send" }, "Ask");
    this.said = element("p", { role: "status" });
    this.examples = this.exampleButtons();
    const savers = element("p", { class: "savers" }, this.saver("Save page", () => this.savePage()), this.saver("Save trace", () => this.saveTrace()));
    this.savers = savers;
    savers.hidden = true;
    const line = element("div", { class: "line" }, this.choices.strategies, this.key, this.button);
    this.introduction = element("p", { class: "introduction" }, INTRODUCTION);
    this.form = element("form", { class: "ask", novalidate: "" },
      this.introduction, this.prompt, line,
      element("div", { class: "more" }, this.choices.settings, this.examples),
      element("div", { class: "line" }, this.said, savers));
    this.form.addEventListener("submit", (event) => this.submit(event));
    this.form.addEventListener("change", () => this.choices.keep(this.prompt.value));
    this.prompt.addEventListener("keydown", (event) => this.press(event));
    this.key.addEventListener("change", () => this.learn());
    root.append(this.form);
    this.learn();
  }

  exampleButtons() {
    const buttons = EXAMPLES.map((text) => {
      const button = element("button", { type: "button" }, text);
      button.addEventListener("click", () => {
        this.prompt.value = text;
        this.choices.keep(text);
        this.prompt.focus();
        if (!this.stopping) this.form.requestSubmit();
      });
      return button;
    });
    const details = element("details", { class: "examples" }, element("summary", {}, "Examples"), element("div", {}, ...buttons));
    details.open = true;
    return details;
  }

  saver(name, act) {
    const button = element("button", { type: "button" }, name);
    button.addEventListener("click", act);
    return button;
  }

  // Ask the server for its model: name, strategies and limits.
  async learn() {
    try {
      const reply = await reach("v1/models", { headers: this.headers() });
      if (reply.status === 401) {
        this.key.hidden = false;
        if (!this.key.value) this.said.textContent = "This server wants an API key.";
        return;
      }
      if (!reply.ok) throw new Error(await whyOf(reply));
      const [{ id, pasta }] = (await reply.json()).data;
      const { strategies, limits, device, dtype, positions, version } = pasta;
      this.model = id;
      const told = [id, [device, dtype].filter((one) => one && one !== "none").join(", "), positions && `positions ${positions}`, `at most ${limits.tokens} tokens`, `pasta-lm ${version}`];
      this.facts.replaceChildren(...told.filter(Boolean).map((one) => element("span", {}, visible(one))));
      this.choices.offer(strategies, limits);
      if (this.said.textContent === UNREACHED) this.said.textContent = "";
    } catch (error) {
      this.said.textContent = visible(error.message);
    }
  }

  press(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!this.stopping) this.form.requestSubmit();
  }

  submit(event) {
    event.preventDefault();
    if (this.stopping) this.stopping.abort();
    else this.ask();
  }

  async ask() {
    const { chosen } = this.choices;
    const missing = !this.prompt.value.trim() ? "Write a question first." : !chosen.length ? "Choose at least one strategy." : "";
    this.said.textContent = missing;
    if (missing) return;
    this.choices.keep(this.prompt.value);
    this.stopping = new AbortController();
    this.stage = null;
    this.examples.open = false;
    this.introduction.hidden = true;
    this.button.textContent = "Stop";
    this.savers.hidden = true;
    try {
      for (const [index, strategy] of chosen.entries()) {
        this.said.textContent = `${strategy} answers${chosen.length > 1 ? ` (${index + 1} of ${chosen.length})` : ""} …`;
        await this.follow(strategy);
      }
      this.said.textContent = chosen.length > 1 ? "Asked one after the other; shown on one clock." : "";
    } catch (error) {
      this.said.textContent = error.name === "AbortError" ? "Stopped." : visible(error.message);
    }
    this.stopping = null;
    this.button.textContent = "Ask";
    this.savers.hidden = !this.completeRuns.length;
  }

  // Follow one answer to its end.
  async follow(strategy) {
    const messages = [{ role: "user", content: this.prompt.value }];
    const run = new Run(strategy, { strategy, kind: "generated" });
    run.asked = { messages, max_threads: this.choices.request(strategy).pasta.max_threads };
    try {
      for await (const event of this.events(strategy, messages)) {
        const isFirst = run.threads.length === 0;
        takeEvent(run, event);
        if (!isFirst) this.stage.grow();
        else if (run.threads.length) this.put(run);
      }
      if (!run.isComplete) throw new Error("The stream ended before the answer did.");
    } finally {
      run.isOver = true;
      this.stage?.grow();
    }
  }

  put(run) {
    if (this.stage) this.stage.add(run);
    else this.stage = this.show([run]);
  }

  // What every request to the server has; the editor of tags sends them, too.
  headers() {
    const headers = { "Content-Type": "application/json" };
    if (this.key.value) headers.Authorization = `Bearer ${this.key.value}`;
    return headers;
  }

  async *events(strategy, messages) {
    const body = JSON.stringify({ messages, ...this.choices.request(strategy) });
    const { signal } = this.stopping;
    const reply = await reach("v1/chat/completions", { method: "POST", headers: this.headers(), signal, body });
    if (reply.status === 401) this.key.hidden = false;
    if (!reply.ok) throw new Error(await whyOf(reply));
    yield* eventsOf(reply);
  }

  // Files

  get completeRuns() {
    return (this.stage?.runs ?? []).filter((run) => run.isComplete);
  }

  // The run that is shown comes last, as in `pasta view RUN --beside OTHER`: the page opens with it.
  async savePage() {
    try {
      const reply = await reach("v1/page", { headers: this.headers() });
      if (!reply.ok) throw new Error(await whyOf(reply));
      const runs = this.completeRuns.toSorted((one, other) => (one === this.stage.run) - (other === this.stage.run));
      save("pasta-run.html", "text/html", pageOf(await reply.text(), runs.map((run) => run.data)));
    } catch (error) {
      this.said.textContent = visible(error.message);
    }
  }

  saveTrace() {
    const run = this.stage.run.isComplete ? this.stage.run : this.completeRuns[0];
    save(`pasta-trace-${run.name}.json`, "application/json", JSON.stringify(run.trace));
  }
}

// The events of a reply that is a stream.
export const eventsOf = async function* (reply) {
  for await (const data of lines(reply.body)) {
    const piece = JSON.parse(data);
    if (piece.error) throw new Error(piece.error.message);
    if (piece.pasta?.kind) yield piece.pasta;
  }
};

export function takeEvent(run, { kind, thread, finish_reason, news, run: data, trace }) {
  if (kind === "traced") run.take(news);
  if (kind === "ended" && run.threads[thread]) run.threads[thread].finish_reason = finish_reason;
  if (kind === "finished") {
    run.complete(data);
    run.trace = trace;
  }
}

export async function reach(address, request) {
  try {
    return await fetch(address, request);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error(UNREACHED);
  }
}

// Why a request was refused.
export async function whyOf(reply) {
  try {
    return (await reply.json()).error.message;
  } catch {
    return `The server answered with status ${reply.status}.`;
  }
}

// The data of a stream of server-sent events, up to [DONE].
async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = []; // of a line whose end has not come
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new Error(BROKEN);
    });
    if (done) return;
    const found = value.split("\n");
    while (found.length > 1) {
      const line = [...parts, found.shift()].join("");
      parts = [];
      if (line.startsWith("data: ") && !line.startsWith("data: [DONE]")) yield line.slice(6);
    }
    parts.push(found[0]);
  }
}
