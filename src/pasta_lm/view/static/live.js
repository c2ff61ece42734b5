// Asking the server: one run for each strategy, one after the other, fed by the events of its stream.

import { Choices, ONE_THREAD } from "./choices.js";
import { button, element, visible } from "./elements.js";
import { DOCUMENTS, EXAMPLES } from "./examples.js";
import { FIELD_KINDS, schemaOf } from "./fields.js";
import { lesson, modelFacts, UNTAUGHT } from "./lesson.js";
import { problem } from "./problem.js";
import { Run } from "./run.js";
import { piecesOf, reach, save, servedModel } from "./net.js";

const MODES = {
  fields: ["Fields of a document", "values, and how likely each is"],
  answer: ["A question", "several threads write the answer"],
};
const ABOUT = {
  answer: "Ask something, and watch several threads write one answer. Then one thread decodes the same text beside it, so that the two clocks compare. Each has the machine to itself.",
  fields: "Put in a text of your own and name its fields: any model reads them at the same time, a thread for each, and says how likely each value is. Beside it one thread decodes the same text, and JSON mode does the same job: three runs on one clock, each with the machine to itself. All fields are required.",
};
const WAIT_MS = 400; // without a word, until the page says that it waits
const NO_RUNS = 'id="runs">[]'; // in the page that the server gives

export class AskForm {
  // ``show`` takes runs and returns the stage on which they stand; ``hide`` takes them away.
  constructor(root, facts, show, hide) {
    Object.assign(this, { facts, show, hide, ready: null });
    this.stage = null;
    this.isTaught = true; // until the server says
    this.choices = new Choices();
    const { question, text, schema } = this.choices.kept;
    this.boxes = {
      question: box("Prompt", 2, question ?? "", { placeholder: "Ask something" }),
      text: box("Text", 9, text ?? DOCUMENTS[0].text, { placeholder: "A letter, an invoice, a page: whatever the fields are to be read from" }),
      schema: box("Fields, or a JSON schema", 9, schema ?? DOCUMENTS[0].schema, { class: "code-box", spellcheck: "false", "aria-describedby": "kinds of-schema", placeholder: "guest, nights int, paid bool, or a JSON schema" }),
    };
    this.ofSchema = element("p", { id: "of-schema", role: "alert" });
    this.key = element("input", { type: "password", "aria-label": "API key", placeholder: "API key", autocomplete: "off", hidden: "" });
    this.button = element("button", { type: "submit", class: "send" }, "Ask");
    this.said = element("div", { role: "status" });
    this.savers = element("p", { class: "savers", hidden: "" }, button("Save page", () => this.savePage()), button("Save trace", () => this.saveTrace()));
    this.modes = Object.entries(MODES).map(([value]) => element("input", { type: "radio", name: "mode", value }));
    this.introduction = element("div", { class: "introduction" });
    this.examples = element("div", {});
    this.shownExamples = element("details", { class: "examples", open: "" }, element("summary", {}, "Examples"), this.examples);
    this.form = this.drawn();
    this.form.addEventListener("submit", (event) => this.submit(event));
    this.form.addEventListener("change", () => this.keep());
    for (const kind of ["input", "pointerdown"]) this.boxed.addEventListener(kind, () => this.form.classList.remove("asked"));
    for (const one of Object.values(this.boxes)) one.addEventListener("keydown", (event) => this.press(event));
    this.boxes.schema.addEventListener("input", () => this.refuse(""));
    this.key.addEventListener("change", () => this.learn());
    this.key.addEventListener("keydown", (event) => this.unlock(event));
    root.append(this.form);
    this.turnTo(this.choices.kept.mode ?? "answer");
    this.learn();
  }

  drawn() {
    const { question, text, schema } = this.boxes;
    const modes = this.modes.map((one) => element("label", {}, one, element("strong", {}, MODES[one.value][0]), element("small", {}, MODES[one.value][1])));
    this.modes.forEach((one) => one.addEventListener("change", () => this.turnTo(one.value)));
    const kinds = element("p", { id: "kinds" }, "Such as ", element("code", {}, "guest, nights int, paid bool"), "; kinds: ", element("code", {}, Object.keys(FIELD_KINDS).join(" ")));
    this.document = element("div", { class: "document" },
      element("label", {}, "Text", text), element("div", {}, element("label", {}, "Fields, or a JSON schema", schema), kinds, this.ofSchema));
    this.boxed = element("div", {}, question, this.document);
    return element("form", { class: "ask", novalidate: "" },
      element("fieldset", { class: "modes" }, element("legend", { class: "for-readers" }, "What is decoded"), ...modes),
      this.boxed, element("div", { class: "line" }, this.choices.strategies, this.key, this.button),
      element("div", { class: "line" }, this.said, this.savers), this.introduction,
      element("div", { class: "more" }, this.choices.settings, this.shownExamples));
  }

  // Show what belongs to an answer, or to fields.
  turnTo(mode) {
    this.mode = mode;
    const isFields = mode === "fields";
    this.modes.forEach((one) => { one.checked = one.value === mode; });
    this.boxes.question.hidden = isFields;
    this.document.hidden = !isFields;
    this.choices.show(mode);
    if (!this.stopping) this.button.textContent = this.verb;
    const about = element("p", {}, isFields || this.isTaught ? ABOUT[mode] : UNTAUGHT);
    this.introduction.replaceChildren(about, ...(isFields || !this.isTaught ? [] : [lesson()]));
    const examples = isFields ? DOCUMENTS.map(({ label, ...boxes }) => [label, boxes]) : EXAMPLES.map((question) => [question, { question }]);
    this.examples.replaceChildren(...examples.map(([label, boxes]) => button(label, () => this.take(boxes))));
  }

  // Ask an example.
  take(boxes) {
    for (const [name, value] of Object.entries(boxes)) this.boxes[name].value = value;
    this.keep();
    this.boxes[this.mode === "fields" ? "text" : "question"].focus();
    if (!this.stopping) this.form.requestSubmit();
  }

  keep() {
    const values = Object.entries(this.boxes).map(([name, { value }]) => [name, value]);
    this.choices.keep({ ...Object.fromEntries(values), mode: this.mode });
  }

  get verb() {
    return this.mode === "fields" ? "Fill" : "Ask";
  }

  // What is asked of the model.
  get prompt() {
    return this.boxes[this.mode === "fields" ? "text" : "question"];
  }

  // Ask the server for its model: name, strategies and limits.
  async learn() {
    try {
      const { id, pasta } = await servedModel(this.key.value);
      const { strategies, replays, limits } = pasta;
      this.facts.replaceChildren(modelFacts({ id, pasta }));
      this.isTaught = strategies.includes("pasta");
      this.choices.offer(strategies, { canReplay: replays, limits });
      this.turnTo(this.isTaught || this.choices.kept.mode ? this.mode : "fields");
      if (!this.stopping) this.said.textContent = "";
    } catch (error) {
      if (error.status === 401) this.key.hidden = false;
      if (!this.stopping) this.tell(error, () => this.learn());
    }
  }

  // Say what went wrong, with what helps.
  tell(error, retry) {
    const toKey = () => this.key.focus();
    this.said.replaceChildren(problem(error, { key: toKey, change: () => this.prompt.focus(), ...(error.status !== 401 && { retry }) }));
  }

  // Say at the schema what is wrong with it.
  refuse(sentence) {
    this.ofSchema.textContent = visible(sentence);
    this.boxes.schema.setAttribute("aria-invalid", String(sentence !== ""));
    if (sentence) this.boxes.schema.focus();
  }

  // The schema as it stands in its box, or null.
  readSchema() {
    try {
      return schemaOf(this.boxes.schema.value);
    } catch (error) {
      this.refuse(error instanceof SyntaxError ? `This is no JSON: ${error.message}` : error.message);
      return null;
    }
  }

  // Enter in the field of the key: try it, and then ask what waits.
  async unlock(event) {
    if (event.key !== "Enter") return;
    event.preventDefault();
    await this.learn();
    if (!this.said.textContent && this.prompt.value.trim() && !this.stopping) this.form.requestSubmit();
  }

  press(event) {
    const asks = event.target === this.boxes.question ? !event.shiftKey : event.ctrlKey || event.metaKey;
    if (event.key !== "Enter" || !asks || event.isComposing) return;
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
    const missing = !this.prompt.value.trim() ? `Write a ${this.mode === "fields" ? "text" : "question"} first.` : !chosen.length ? "Choose at least one strategy." : "";
    this.said.textContent = missing;
    this.refuse("");
    this.schema = this.mode === "fields" ? this.readSchema() : null;
    if (missing || (this.mode === "fields" && this.schema === null)) return;
    this.keep();
    this.stopping = new AbortController();
    this.stage = null;
    this.hide();
    this.shownExamples.open = false;
    this.introduction.hidden = true;
    this.form.classList.add("asked"); // a narrow page has room for the answer then
    this.button.textContent = "Stop";
    this.savers.hidden = true;
    try {
      await this.ready; // what draws the answers
      for (const [index, name] of chosen.entries()) {
        const number = chosen.length > 1 ? ` (${index + 1} of ${chosen.length})` : "";
        const waiting = setTimeout(() => { this.said.textContent = "Waiting for a free place …"; }, WAIT_MS);
        await this.follow(name, () => {
          clearTimeout(waiting);
          this.said.textContent = `${name}${number} …`;
        }).finally(() => clearTimeout(waiting));
      }
      this.said.textContent = chosen.length > 1 ? "Decoded one after the other; shown on one clock." : "";
    } catch (error) {
      this.said.textContent = "";
      if (error.name === "AbortError") this.said.textContent = "Stopped.";
      else if (this.isOfSchema(error)) this.refuse(error.message);
      else this.tell(error, () => this.form.requestSubmit());
    }
    this.stopping = null;
    this.button.textContent = this.verb;
    this.savers.hidden = !this.completeRuns.length;
    this.form.classList.toggle("asked", this.stage !== null);
  }

  isOfSchema({ status, code, param }) {
    return this.schema && status === 400 && !code && (!param || param.startsWith("response_format"));
  }

  // Follow one answer to its end; ``begin`` is called with its first piece.
  async follow(name, begin) {
    const messages = [{ role: "user", content: this.prompt.value }];
    const request = this.choices.request(name, this.schema);
    const run = new Run(name, { strategy: request.pasta.parts ? "parts" : name, kind: "generated" });
    run.asked = { messages, max_threads: request.pasta.max_threads };
    try {
      for await (const piece of piecesOf(await this.stream(name, { messages, ...request }))) {
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

  async stream(name, body) {
    const request = { key: this.key.value, signal: this.stopping.signal };
    try {
      if (name !== ONE_THREAD) return await reach("v1/chat/completions", { ...request, body });
      const { messages } = body;
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

function box(label, rows, value, attributes) {
  const node = element("textarea", { rows, "aria-label": label, ...attributes });
  node.value = value;
  return node;
}
