// Asking the server: one run for each strategy, one after the other, fed by the events of its stream.

import { element, visible } from "./elements.js";
import { Run } from "./run.js";

const SAME_PASS_S = 0.002; // the events of one pass are sent within this time
const STRATEGIES = ["sequential", "pasta"];

export class AskForm {
  // ``show`` takes runs and returns the stage on which they stand.
  constructor(root, show) {
    this.show = show;
    this.prompt = element("textarea", { rows: 2, "aria-label": "Prompt", placeholder: "Ask something", required: "" });
    this.key = element("input", { type: "password", "aria-label": "API key, if the server wants one", placeholder: "API key, if needed", autocomplete: "off" });
    this.button = element("button", { type: "submit" }, "Ask");
    this.said = element("p", { role: "status" });
    const form = element("form", { class: "ask" }, this.prompt, this.key, this.button, this.said);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.stopping) this.stopping.abort();
      else this.ask();
    });
    root.append(form);
  }

  async ask() {
    this.stopping = new AbortController();
    this.button.textContent = "Stop";
    this.said.textContent = "";
    try {
      const runs = STRATEGIES.map((name) => new Run(name, { strategy: name, kind: "generated" }));
      for (const index of [1, 0]) {
        runs[index] = await this.answer(runs, index);
        this.show(runs.filter((run) => run.threads.length > 0));
      }
    } catch (error) {
      this.said.textContent = error.name === "AbortError" ? "Stopped." : visible(error.message);
    }
    this.stopping = null;
    this.button.textContent = "Ask";
  }

  // Follow one answer; return its stored form, which the server sends at its end.
  async answer(runs, index) {
    const run = runs[index];
    const messages = [{ role: "user", content: this.prompt.value }];
    const shown = runs.filter((one) => one === run || one.threads.length > 0);
    let [stage, whole] = [null, run];
    for await (const facts of this.events(run.name, messages)) {
      take(run, facts);
      if (facts.run) whole = Run.stored(facts.run);
      stage ??= run.threads.length ? this.show(shown) : null;
      stage?.grow();
    }
    whole.asked = { messages };
    return whole;
  }

  // What every request to the server has; the editor of tags sends them, too.
  headers() {
    const headers = { "Content-Type": "application/json" };
    if (this.key.value) headers.Authorization = `Bearer ${this.key.value}`;
    return headers;
  }

  async *events(strategy, messages) {
    const pasta = { strategy, stream: "events", trace: true };
    const body = { messages, stream: true, pasta };
    const { signal } = this.stopping;
    const reply = await fetch("v1/chat/completions", { method: "POST", headers: this.headers(), signal, body: JSON.stringify(body) });
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    for await (const data of lines(reply.body)) {
      const piece = JSON.parse(data);
      if (piece.error) throw new Error(piece.error.message);
      if (piece.pasta?.kind) yield piece.pasta;
    }
  }
}

// The data of a stream of server-sent events, up to [DONE].
async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const found = (rest + value).split("\n");
    rest = found.pop();
    for (const line of found) {
      if (line.startsWith("data: ") && !line.startsWith("data: [DONE]")) yield line.slice(6);
    }
  }
}

function take(run, { kind, thread, parent, topic, promised_tokens, delta, joined, t_ms }) {
  const now = t_ms / 1000;
  if (run.step_s.length === 0 || now > run.step_s.at(-1) + SAME_PASS_S) run.step_s.push(now);
  const pass = run.step_s.length - 1;
  const written = { role: "content", decoded: pass, fed: pass };
  if (kind === "started") {
    run.addThread({ id: thread, parent, topic, promised: promised_tokens });
    if (parent !== null) run.addToken({ ...written, thread: parent, text: "", role: "tag", forks: thread });
  } else if (kind === "text") {
    run.addToken({ ...written, thread, text: delta });
  } else if (kind === "synced") {
    run.syncs.push({ thread, joined, step: pass });
  }
}
