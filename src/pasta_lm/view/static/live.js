// Asking the server: one run for each strategy, one after the other, fed by the events of its stream.

import { Choices, ONE_THREAD } from "./choices.js";
import { button, element } from "./elements.js";
import { EXAMPLES, FIELDS } from "./examples.js";
import { lesson, modelFacts } from "./lesson.js";
import { problem } from "./problem.js";
import { Run } from "./run.js";
import { piecesOf, reach, save, servedModel } from "./net.js";

const INTRODUCTION = "Ask something, and watch several threads write one answer. Then one thread decodes the same text beside it, so that the two clocks compare. Each has the machine to itself.";
const PARTS = "parts"; // the fields of a schema at the same time
const WAIT_MS = 400; // without a word, until the page says that it waits
const NO_RUNS = 'id="runs">[]'; // in the page that the server gives

export class AskForm {
  // ``show`` takes runs and returns the stage on which they stand; ``hide`` takes them away.
  constructor(root, facts, show, hide) {
    Object.assign(this, { facts, show, hide, ready: null });
    this.stage = null;
    this.fields = null; // of the example with a schema, until the prompt is another
    this.choices = new Choices();
    this.prompt = element("textarea", { rows: 2, "aria-label": "Prompt", placeholder: "Ask something" });
    this.prompt.value = this.choices.kept.question ?? "";
    this.key = element("input", { type: "password", "aria-label": "API key", placeholder: "API key", autocomplete: "off", hidden: "" });
    this.button = element("button", { type: "submit", class: "send" }, "Ask");
    this.said = element("div", { role: "status" });
    this.examples = this.exampleButtons();
    this.savers = element("p", { class: "savers", hidden: "" }, button("Save page", () => this.savePage()), button("Save trace", () => this.saveTrace()));
    const line = element("div", { class: "line" }, this.choices.strategies, this.key, this.button);
    this.introduction = element("div", { class: "introduction" }, element("p", {}, INTRODUCTION), lesson());
    this.form = element("form", { class: "ask", novalidate: "" },
      this.prompt, line, element("div", { class: "line" }, this.said, this.savers), this.introduction,
      element("div", { class: "more" }, this.choices.settings, this.examples));
    this.form.addEventListener("submit", (event) => this.submit(event));
    this.form.addEventListener("change", () => this.choices.keep(this.prompt.value));
    this.prompt.addEventListener("input", () => { this.fields = null; });
    for (const kind of ["input", "pointerdown"]) this.prompt.addEventListener(kind, () => this.form.classList.remove("asked"));
    this.prompt.addEventListener("keydown", (event) => this.press(event));
    this.key.addEventListener("change", () => this.learn());
    this.key.addEventListener("keydown", (event) => this.unlock(event));
    root.append(this.form);
    this.learn();
  }

  exampleButtons() {
    const example = (label, text, fields) => button(label, () => {
      this.prompt.value = text;
      this.fields = fields;
      this.choices.keep(text);
      this.prompt.focus();
      if (!this.stopping) this.form.requestSubmit();
    });
    const buttons = [example(FIELDS.label, FIELDS.prompt, FIELDS), ...EXAMPLES.map((text) => example(text, text, null))];
    const details = element("details", { class: "examples" }, element("summary", {}, "Examples"), element("div", {}, ...buttons));
    details.open = true;
    return details;
  }

  // Ask the server for its model: name, strategies and limits.
  async learn() {
    try {
      const { id, pasta } = await servedModel(this.key.value);
      const { strategies, replays, limits } = pasta;
      this.facts.replaceChildren(modelFacts({ id, pasta }));
      this.choices.offer(replays ? [...strategies, ONE_THREAD] : strategies, limits);
      this.said.textContent = "";
    } catch (error) {
      if (error.status === 401) this.key.hidden = false;
      this.tell(error, () => this.learn());
    }
  }

  // Say what went wrong, with what helps.
  tell(error, retry) {
    const toKey = () => this.key.focus();
    this.said.replaceChildren(problem(error, { key: toKey, change: () => this.prompt.focus(), ...(error.status !== 401 && { retry }) }));
  }

  // Enter in the field of the key: try it, and then ask what waits.
  async unlock(event) {
    if (event.key !== "Enter") return;
    event.preventDefault();
    await this.learn();
    if (!this.said.textContent && this.prompt.value.trim() && !this.stopping) this.form.requestSubmit();
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
    const { offered } = this.choices;
    const chosen = this.fields ? [PARTS, ...offered.filter((name) => name === ONE_THREAD)] : this.choices.chosen;
    const isAlone = chosen.every((name) => name === ONE_THREAD);
    const missing = !this.prompt.value.trim() ? "Write a question first." : isAlone ? "Choose at least one strategy." : "";
    this.said.textContent = missing;
    if (missing) return;
    this.choices.keep(this.prompt.value);
    this.stopping = new AbortController();
    this.stage = null;
    this.hide();
    this.examples.open = false;
    this.introduction.hidden = true;
    this.form.classList.add("asked"); // a narrow page has room for the answer then
    this.button.textContent = "Stop";
    this.savers.hidden = true;
    try {
      await this.ready; // what draws the answers
      for (const [index, strategy] of chosen.entries()) {
        const number = chosen.length > 1 ? ` (${index + 1} of ${chosen.length})` : "";
        const doing = `${strategy === ONE_THREAD ? "One thread decodes the same text" : `${strategy} answers`}${number} …`;
        const waiting = setTimeout(() => { this.said.textContent = "Waiting for a free place …"; }, WAIT_MS);
        await this.follow(strategy, () => {
          clearTimeout(waiting);
          this.said.textContent = doing;
        }).finally(() => clearTimeout(waiting));
      }
      this.said.textContent = chosen.length > 1 ? "Decoded one after the other; shown on one clock." : "";
    } catch (error) {
      if (error.name === "AbortError") this.said.textContent = "Stopped.";
      else this.tell(error, () => this.form.requestSubmit());
    }
    this.stopping = null;
    this.button.textContent = "Ask";
    this.savers.hidden = !this.completeRuns.length;
  }

  // Follow one answer to its end; ``begin`` is called with its first piece.
  async follow(strategy, begin) {
    const messages = [{ role: "user", content: this.prompt.value }];
    const run = new Run(strategy, { strategy, kind: "generated" });
    run.asked = { messages, max_threads: this.choices.request(strategy).pasta.max_threads };
    try {
      for await (const piece of piecesOf(await this.stream(strategy, messages))) {
        const isFirst = run.threads.length === 0;
        run.takePiece(piece);
        if (!isFirst) this.stage.grow();
        else if (run.threads.length) {
          begin();
          this.put(run);
        }
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

  async stream(strategy, messages) {
    const request = { key: this.key.value, signal: this.stopping.signal };
    try {
      if (strategy === PARTS) return await reach("v1/chat/completions", { ...request, body: { messages, ...this.choices.fieldsOf(this.fields) } });
      if (strategy !== ONE_THREAD) return await reach("v1/chat/completions", { ...request, body: { messages, ...this.choices.request(strategy) } });
      const response = this.stage.runs[0].text;
      return await reach("v1/replay", { ...request, body: { messages, response, form: "plain", stream: true, pasta: { trace: true } } });
    } catch (error) {
      if (error.status === 401) this.key.hidden = false;
      throw error;
    }
  }

  // Files

  get completeRuns() {
    return (this.stage?.runs ?? []).filter((run) => run.isComplete);
  }

  // The run that is shown comes last, as in `pasta view RUN --beside OTHER`: the page opens with it.
  async savePage() {
    try {
      const empty = await (await reach("v1/page", { key: this.key.value })).text();
      const runs = this.completeRuns.toSorted((one, other) => (one === this.stage.run) - (other === this.stage.run));
      const escaped = (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`; // no tag, no script ends
      const data = JSON.stringify(runs.map((run) => run.data)).replace(/[<\u007f-\uffff]/g, escaped);
      save("pasta-run.html", "text/html", empty.replace(NO_RUNS, () => `${NO_RUNS.slice(0, -2)}${data}`));
    } catch (error) {
      this.tell(error, () => this.savePage());
    }
  }

  saveTrace() {
    const run = this.stage.run.isComplete ? this.stage.run : this.completeRuns[0];
    save(`pasta-trace-${run.name}.json`, "application/json", JSON.stringify(run.trace));
  }
}
