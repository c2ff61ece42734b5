// The chat: questions go to the server, its answers onto the page; one answer at a time.

import { button, byId, element, plural, visible } from "../elements.js";
import { EXAMPLES } from "../examples.js";
import { lesson, modelFacts, UNTAUGHT } from "../lesson.js";
import { Refused, piecesOf, reach, save, servedModel } from "../net.js";
import { offerTheme } from "../theme.js";
import { Answering } from "./answering.js";
import { Conversation, shown } from "./conversation.js";
import { keep, kept, readBack } from "./keeping.js";
import { Settings } from "./settings.js";
import { Shelf } from "./shelf.js";
import { TurnView } from "./turn.js";
import { watch } from "./watch.js";

const NEAR_END = 120; // pixels: who reads the end of the page follows it
const REFUSED = 400; // the status of a request that the server will never answer
const NUM_EXAMPLES = 4;
const MAX_TOLD = 2000; // characters of an answer that a screen reader is told at once
const NOT_KEPT = "This conversation is too long to be kept over a reload. Export it to keep it.";
const NO_IMPORT = "This file is no exported conversation.";
const SAME_ANSWER = "At temperature 0 the same strategy writes the same answer: see the settings.";

class Chat {
  constructor() {
    this.log = byId("turns");
    this.question = byId("question");
    this.send = byId("send");
    this.settings = new Settings();
    this.conversation = new Conversation();
    this.views = [];
    this.stopping = null; // while an answer is written: what stops it
    byId("ask").addEventListener("submit", (event) => this.submit(event));
    this.question.addEventListener("keydown", (event) => this.press(event));
    byId("new").addEventListener("click", () => this.startAnew());
    byId("as-markdown").addEventListener("click", () => this.download("md", this.conversation.toMarkdown()));
    byId("as-json").addEventListener("click", () => this.download("json", JSON.stringify(this.conversation, null, 2)));
    byId("examples").append(...EXAMPLES.slice(0, NUM_EXAMPLES).map((text) => button(text, () => this.takeExample(text))));
    byId("import").addEventListener("click", () => byId("file").click());
    byId("file").addEventListener("change", async () => this.bring(await byId("file").files[0].text()));
    this.shelf = new Shelf(byId("shelf"), (text) => this.open(readBack(text)));
    this.settings.root.addEventListener("change", () => this.keep());
    this.settings.key.addEventListener("change", () => this.meetModel());
    this.settings.key.addEventListener("keydown", (event) => this.unlock(event));
    addEventListener("pagehide", () => this.leave());
    this.restore();
    this.meetModel();
  }

  restore() {
    this.open(kept());
  }

  // Show a stored conversation; null is an empty one.
  open(found) {
    if (found) {
      this.conversation = found.conversation;
      this.settings.restore(found.settings);
    }
    this.show();
  }

  async meetModel() {
    const served = document.querySelectorAll(".served");
    try {
      const { id, pasta } = await servedModel(this.settings.key.value);
      for (const node of served) node.replaceChildren(modelFacts({ id, pasta }));
      byId("lesson").replaceChildren(pasta.strategies.includes("pasta") ? lesson() : element("p", {}, UNTAUGHT));
      this.settings.offer(pasta.strategies, pasta.limits);
      this.settings.summarise();
    } catch (error) {
      const isLocked = error.status === 401;
      for (const node of served) node.textContent = isLocked ? "This server wants an API key: see the settings." : visible(error.message);
    }
  }

  // Enter in the field of the key: try it, and answer what was refused for want of it.
  async unlock(event) {
    if (event.key !== "Enter") return;
    event.preventDefault();
    await this.meetModel();
    this.settings.root.close();
    const last = this.conversation.turns.at(-1);
    if (last && shown(last).answer?.error?.status === 401) this.answer(last);
  }

  // The turns from one on, anew.
  show(from = 0) {
    const { turns } = this.conversation;
    this.views.splice(from).forEach((view) => view.root.remove());
    for (const turn of turns.slice(from)) {
      const view = new TurnView(turn, this.views.length + 1, this.acts);
      this.views.push(view);
      this.log.append(view.root);
    }
    byId("empty").hidden = turns.length > 0;
    if (turns.length === 0) this.shelf.show();
    for (const name of ["new", "as-markdown", "as-json"]) byId(name).disabled = turns.length === 0;
    this.showWriting();
  }

  // While an answer is written, nothing may change the conversation.
  showWriting() {
    const isWriting = this.stopping !== null;
    this.send.textContent = isWriting ? "Stop" : "Ask";
    for (const one of document.querySelectorAll("[data-changes]")) {
      one.disabled = isWriting || one.hasAttribute("data-end");
    }
  }

  get acts() {
    return {
      again: (turn) => this.again(turn),
      forget: (turn) => this.forget(turn),
      edit: (turn, question) => this.vary(turn, question),
      goOn: (turn) => this.answer(turn, shown(turn).answer.text),
      key: () => this.settings.askForKey(),
      retry: (turn) => this.answer(turn, shown(turn).answer.before),
      show: (turn, index, name) => this.showVariant(turn, index, name),
      watch,
    };
  }

  press(event) {
    if (event.key === "Escape" && this.stopping) this.stop();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!this.stopping) byId("ask").requestSubmit();
  }

  submit(event) {
    event.preventDefault();
    if (this.stopping) return this.stop();
    const question = this.question.value.trim();
    if (!question) return this.question.focus();
    if (!this.settings.check()) return undefined;
    this.question.value = "";
    this.say("");
    const turn = this.conversation.ask(question);
    this.show(this.views.length);
    return this.answer(turn);
  }

  takeExample(text) {
    this.question.value = text;
    this.question.focus();
    byId("ask").requestSubmit();
  }

  again(turn) {
    const { asked } = shown(turn).answer;
    const isSame = asked.temperature === 0 && asked.strategy === this.settings.strategy.value;
    if (isSame && Number(this.settings.temperature.value) === 0) this.say(SAME_ANSWER);
    return this.vary(turn);
  }

  vary(turn, question) {
    if (this.stopping || !this.settings.check()) return undefined;
    this.conversation.vary(turn, question);
    this.show(this.conversation.turns.indexOf(turn));
    this.send.focus();
    return this.answer(turn);
  }

  // Ask again with one turn less before it: the conversation may be too long for the model.
  forget(turn) {
    this.conversation.forgetOneMore(turn);
    return this.answer(turn);
  }

  showVariant(turn, index, name) {
    turn.shown = index;
    const position = this.conversation.turns.indexOf(turn);
    this.show(position);
    this.views[position].focus(name);
    this.keep();
  }

  // Answer a turn; ``before`` is its text so far, if it is continued.
  async answer(turn, before = "") {
    if (this.stopping) return;
    const { conversation } = this;
    const view = this.views[conversation.turns.indexOf(turn)];
    const variant = shown(turn);
    const answering = new Answering(this.settings.asked(variant.seed), before);
    variant.answer = answering.answer;
    variant.answer.numForgotten = conversation.numForgotten(turn);
    this.answering = answering;
    this.stopping = new AbortController();
    this.showWriting();
    const grow = this.inFrames(view.follow(answering.run, before));
    this.toEnd();
    const error = await this.follow(turn, answering, grow);
    const isStopped = error?.name === "AbortError";
    answering.end(isStopped ? "stopped" : "failed", error && !isStopped ? told(error) : null);
    const canForget = variant.answer.numForgotten < conversation.answeredBefore(turn).length;
    variant.answer.canForget = error?.status === REFUSED && canForget;
    this.stopping = this.answering = null;
    this.settle(view);
  }

  // An answer has ended: show it, tell it and keep it.
  settle(view) {
    const isFollowed = isAtEnd();
    view.showAnswer();
    this.showWriting();
    if (isFollowed) this.toEnd();
    if (view.root.isConnected) this.tell(view.variant.answer);
    this.keep();
  }

  // Take the pieces of an answer; return the error that ended it, or null.
  async follow(turn, answering, grow) {
    const { before } = answering.answer;
    const messages = this.conversation.messagesFor(turn, this.settings.system.value);
    const goesOn = before ? { continue_final_message: true, add_generation_prompt: false } : {};
    if (before) messages.push({ role: "assistant", content: before });
    const { strategy, fork_bias, ...sampling } = answering.asked;
    const body = { messages, stream: true, ...sampling, ...goesOn, pasta: { strategy, stream: "events", trace: true, fork_bias } };
    const request = { key: this.settings.key.value, signal: this.stopping.signal, body };
    try {
      for await (const piece of piecesOf(await reach("v1/chat/completions", request))) {
        answering.take(piece);
        grow();
      }
      return answering.answer.state === "finished" ? null : new Refused("The server sent no whole answer.");
    } catch (error) {
      return error;
    }
  }

  // What does something at most once a frame, and keeps the end of the page in sight.
  inFrames(act) {
    let isDue = false;
    return () => {
      if (isDue) return;
      isDue = true;
      requestAnimationFrame(() => {
        isDue = false;
        if (!this.stopping) return;
        const isFollowed = isAtEnd();
        act();
        if (isFollowed) this.toEnd();
      });
    };
  }

  toEnd() {
    scrollTo({ top: document.documentElement.scrollHeight });
  }

  stop() {
    this.stopping?.abort();
  }

  // The page goes away: what an answer has so far stays.
  leave() {
    this.answering?.end("stopped");
    this.keep();
  }

  startAnew() {
    this.stop();
    this.conversation = new Conversation();
    this.show();
    this.keep();
    this.question.focus();
  }

  keep() {
    if (!keep(this.conversation, this.settings)) this.say(NOT_KEPT);
  }

  // Open what an exported file holds.
  bring(text) {
    try {
      this.open({ conversation: Conversation.imported(text) });
      this.settings.root.close();
      this.keep();
    } catch {
      this.startAnew();
      this.say(NO_IMPORT);
    }
  }

  download(ending, text) {
    save(`conversation.${ending}`, "text/plain;charset=utf-8", text);
  }

  // One sentence under the question, which a screen reader hears.
  say(sentence) {
    byId("said").textContent = sentence;
  }

  // A finished answer, for screen readers.
  tell({ state, text }) {
    if (state === "failed") return; // its place is an alert
    const more = text.length > MAX_TOLD ? " …" : "";
    const count = plural(text.split(/\s+/).filter(Boolean).length, "word");
    byId("heard").textContent = `${state === "stopped" ? "Stopped" : "Answered"}, ${count}: ${visible(text.slice(0, MAX_TOLD))}${more}`;
  }
}

// What is kept of an error: what the page says of it.
function told({ message, status, code, wait, hasKey }) {
  return { message, status, code, wait, hasKey };
}

function isAtEnd() {
  return innerHeight + scrollY >= document.documentElement.scrollHeight - NEAR_END;
}

offerTheme(byId("theme"));
new Chat();
