// One turn on the page: the question, its answer live or finished, the line of figures, the buttons.

import { copier } from "../copying.js";
import { button, element, plural, visible } from "../elements.js";
import { problem } from "../problem.js";
import { textOf, thoughtOf } from "../reading.js";
import { Run } from "../run.js";
import { shown } from "./conversation.js";
import { figuresOf } from "./figures.js";
import { markdown } from "./markdown.js";
import { Prose } from "./prose.js";
import { Strip } from "./strip.js";

const LONG = 1200; // characters of a question that is folded

export class TurnView {
  // ``acts`` has what the buttons do: again, edit, forget, goOn, key, retry, show, watch.
  constructor(turn, number, acts) {
    this.turn = turn;
    this.acts = acts;
    this.question = element("div", { class: "question" });
    this.text = element("div", { class: "reply-text" });
    this.side = element("div", { class: "reply-side" });
    this.foot = element("div", { class: "reply-foot" });
    this.heading = element("h2", { class: "for-readers", id: `turn-${number}`, tabindex: "-1" }, `Question ${number}`);
    this.root = element("article", { class: "turn", "aria-labelledby": `turn-${number}` },
      this.heading, this.question, element("div", { class: "reply" }, this.text, this.side, this.foot));
    this.showQuestion();
    this.showAnswer();
  }

  get variant() {
    return shown(this.turn);
  }

  showQuestion() {
    const edit = button("Edit", () => this.editQuestion(), { "data-changes": "" });
    const { question } = this.variant;
    const fold = question.length > LONG ? { class: "said long", tabindex: "0", role: "group", "aria-label": "A long question" } : { class: "said" };
    const said = element("p", fold, visible(question));
    this.question.replaceChildren(said, edit);
  }

  editQuestion() {
    const field = element("textarea", { rows: 3, "aria-label": "The question", required: "" });
    field.value = this.variant.question;
    const form = element("form", { class: "edit" }, field,
      element("button", { type: "submit", "data-changes": "" }, "Ask again"),
      button("Cancel", () => this.leaveEditing()));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (field.value.trim()) this.acts.edit(this.turn, field.value.trim());
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.leaveEditing();
    });
    this.question.replaceChildren(form);
    field.focus();
  }

  leaveEditing() {
    this.showQuestion();
    this.question.querySelector("button").focus();
  }

  // Follow an answer while it is written; return what shows the rest of it.
  follow(run, before) {
    const live = new Prose(run, before);
    const strip = new Strip(run, { isLive: true });
    const thought = this.thought("");
    this.text.replaceChildren(thought, live.root);
    thought.open = true;
    this.side.replaceChildren(strip.root);
    this.foot.replaceChildren(element("p", { class: "figures" }, "…"));
    return () => {
      thought.lastChild.textContent = thoughtOf(run);
      thought.hidden = !thought.lastChild.textContent;
      live.show();
      strip.grow();
    };
  }

  showAnswer() {
    const { answer } = this.variant;
    this.text.replaceChildren();
    this.side.replaceChildren();
    this.foot.replaceChildren();
    if (!answer) return;
    const run = answer.run ? Run.stored(answer.run) : null;
    if (run && thoughtOf(run)) this.text.append(this.thought(thoughtOf(run)));
    if (answer.text) this.text.append(this.prose(answer, run));
    if (answer.state === "failed") this.text.append(this.failure(answer));
    if (answer.numForgotten) this.text.append(element("p", { class: "mark" }, `${plural(answer.numForgotten, "earlier turn")} not sent.`));
    if (answer.state === "stopped") this.text.append(element("p", { class: "mark" }, "Stopped: the text ends here."));
    if (answer.run) this.side.append(new Strip(run, { isLive: false }).root);
    if (answer.figures) this.foot.append(figuresOf(answer));
    this.foot.append(this.buttons(answer));
  }

  // What the model thought before its answer, dimmed, to be folded.
  thought(text) {
    const details = element("details", { class: "thought" }, element("summary", {}, "Thought"), element("p", {}, visible(text)));
    details.hidden = !text;
    return details;
  }

  // The text of an answer, in the colours of its threads if its run is still there.
  prose({ text, before = "" }, run) {
    if (!run || before + textOf(run) !== text) return element("div", { class: "markdown" }, markdown(text));
    const prose = new Prose(run, before);
    prose.show();
    return prose.root;
  }

  failure({ error, canForget }) {
    const { acts, turn } = this;
    const shorten = canForget ? () => acts.forget(turn) : null;
    const node = problem(error, { key: acts.key, shorten, change: () => this.editQuestion(), retry: () => acts.retry(turn) });
    node.setAttribute("role", "alert");
    return node;
  }

  buttons(answer) {
    const row = element("div", { class: "acts", role: "group", "aria-label": "This answer" });
    if (this.turn.variants.length > 1) row.append(this.switcher());
    if (answer.text) row.append(copier(() => answer.text));
    if (answer.state !== "failed") row.append(button("Regenerate", () => this.acts.again(this.turn), { "data-changes": "" }));
    const isCut = answer.state === "stopped" || (answer.figures?.cut_at ?? null) !== null;
    const canGoOn = isCut && answer.text && answer.asked.strategy !== "sot";
    if (canGoOn) row.append(button("Continue", () => this.acts.goOn(this.turn), { "data-changes": "", title: "Write on at the end of this text" }));
    if (answer.run) row.append(button("Watch", () => this.acts.watch(answer.run, this.variant.question)));
    return row;
  }

  switcher() {
    const { shown: index, variants } = this.turn;
    const to = (other, name, sign) => {
      const arrow = button(sign, () => this.acts.show(this.turn, other, name), { "aria-label": name, "data-changes": "" });
      arrow.toggleAttribute("data-end", !variants[other]);
      arrow.disabled = !variants[other];
      return arrow;
    };
    return element("span", { class: "variants" },
      to(index - 1, "Earlier variant", "‹"),
      element("span", {}, `${index + 1} of ${variants.length}`),
      to(index + 1, "Later variant", "›"));
  }

  // Give the focus to the button of this name, or else to the turn.
  focus(name) {
    const named = [...this.root.querySelectorAll("button")].find((one) => one.getAttribute("aria-label") === name);
    if (named && !named.disabled) named.focus();
    else this.heading.focus({ preventScroll: true });
  }
}
