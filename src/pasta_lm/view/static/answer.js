// The answer of a run as text, in the order of reading: plain, or with its tags.
//
// Each thread has a box. A promise's block stands in its parent's box, between two parts of the
// parent's text; so a live run only ever adds at the end of boxes.

import { chip, element, look, topicOf, visible } from "./elements.js";
import { filledRun, withoutEnd } from "./fields.js";

const LONG = 2000; // characters of a token that is set in pieces: a browser breaks no endless line

export class AnswerView {
  constructor(stage, root, { withTags, label }) {
    this.stage = stage;
    this.root = root;
    this.withTags = withTags;
    root.classList.add("answer");
    root.setAttribute("tabindex", "0");
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", `${label}; the arrow keys move from token to token`);
    root.addEventListener("click", (event) => this.click(event));
    root.addEventListener("pointerover", (event) => this.stage.hover(this.threadAt(event.target)));
    root.addEventListener("pointerleave", () => this.stage.hover(null));
    root.addEventListener("keydown", (event) => this.press(event));
    stage.on("run", () => this.build());
    stage.on("grow", () => this.extend());
    stage.on("time", () => this.showTime());
    stage.on("hover pick", () => this.showFocus());
    stage.on("pick", () => this.showPick());
    this.build();
  }

  build() {
    this.run = this.stage.run;
    this.source = this.run.tokens;
    this.boxes = new Map(); // by thread: {node, part}
    this.parts = [];
    this.spans = new Map(); // by token
    this.byTime = [];
    this.numBuilt = this.numShown = 0;
    this.tips = [];
    this.fields = filledRun([this.run]) && new Map(); // by thread: its text so far
    this.root.classList.toggle("fields-of", this.fields !== null);
    this.root.replaceChildren();
    if (this.run.threads.length) this.boxOf(0);
    this.extend();
  }

  // Add the tokens that have come.
  extend() {
    const { tokens } = this.run;
    if (tokens !== this.source) return this.build(); // the stored form has other tokens
    for (; this.numBuilt < tokens.length; this.numBuilt++) this.add(tokens[this.numBuilt]);
    this.showTime();
    this.showFocus();
    if (this.stage.picked) this.showPick();
    return undefined;
  }

  shows({ role }) {
    return this.withTags || role === "content" || role === "given" || role === "thought";
  }

  // The box of a thread; a new one stands at the end of its parent's.
  boxOf(thread) {
    if (this.boxes.has(thread)) return this.boxes.get(thread);
    const box = { thread, node: element("span", { class: "unborn" }), part: null };
    const parent = thread ? this.boxOf(this.run.threads[thread].parent) : null;
    (parent?.node ?? this.root).append(box.node);
    if (parent) parent.part = null;
    this.boxes.set(thread, box);
    if (thread && !this.withTags) this.partOf(box).append(chip(this.run.threads[thread]));
    if (thread && this.fields) this.partOf(box).append(element("b", {}, `${topicOf(this.run.threads[thread])}: `));
    return box;
  }

  partOf(box) {
    if (box.part) return box.part;
    const { hue, mark } = look(box.thread);
    const node = element("bdi", { class: `part ${hue} line-${mark}`, "data-thread": box.thread });
    box.part = node;
    box.node.append(node);
    this.parts.push({ thread: box.thread, node });
    return node;
  }

  add(token) {
    const box = this.boxOf(token.thread);
    if (this.shows(token)) {
      const span = element("span", { class: `token ${token.role} off`, "data-number": token.number });
      const text = visible(this.fields ? this.inField(token) : token.text);
      if (text.length <= LONG) span.textContent = text;
      else span.append(...pieces(text));
      this.spans.set(token, span);
      this.byTime.push([token.decoded, span]);
      this.partOf(box).append(span);
    }
    if (token.forks !== null) this.boxOf(token.forks);
  }

  inField({ thread, text }) {
    const before = this.fields.get(thread) ?? "";
    this.fields.set(thread, before + text);
    return withoutEnd(before, text);
  }

  showTime() {
    const { stage, run, byTime } = this;
    const pass = stage.passOf(run);
    while (this.numShown < byTime.length && byTime[this.numShown][0] + 1 <= pass) {
      byTime[this.numShown++][1].classList.remove("off");
    }
    while (this.numShown > 0 && byTime[this.numShown - 1][0] + 1 > pass) {
      byTime[--this.numShown][1].classList.add("off");
    }
    const isOver = run.isOver && pass >= run.passes;
    const tips = isOver ? [] : run.threads.map((thread) => this.tip(thread, pass));
    this.tips.forEach((span) => span?.classList.remove("tip"));
    tips.forEach((span) => span?.classList.add("tip"));
    this.tips = tips;
    for (const { thread, node } of this.boxes.values()) {
      node.classList.toggle("unborn", (run.threads[thread].tokens[0]?.decoded ?? Infinity) + 1 > pass);
    }
  }

  // The token at which a thread writes now: the last one, if another follows.
  tip(thread, pass) {
    const token = this.run.written(thread.id, Math.floor(pass));
    const isLast = token && token.index + 1 === thread.tokens.length;
    const goesOn = token && (!isLast || (!this.run.isOver && thread.finish_reason === null));
    return goesOn ? this.spans.get(token) : undefined;
  }

  showFocus() {
    const { focus, picked } = this.stage;
    this.root.classList.toggle("focused", focus !== null && !picked?.token);
    this.parts.forEach(({ thread, node }) => node.classList.toggle("focus", thread === focus));
  }

  showPick() {
    const token = this.stage.picked?.token ?? null;
    this.root.classList.toggle("inspected", token !== null);
    for (const [other, span] of this.spans) {
      const isSeen = token !== null && other.index < this.run.numSeen(token, other.thread);
      span.classList.toggle("seen", isSeen);
      span.classList.toggle("picked", other === token);
    }
    const span = this.spans.get(token);
    if (span && this.root.contains(document.activeElement)) span.scrollIntoView({ block: "nearest" });
  }

  threadAt(node) {
    const part = node.closest?.(".part");
    return part ? Number(part.dataset.thread) : null;
  }

  click(event) {
    const span = event.target.closest?.(".token");
    if (!span) return this.stage.pick(this.threadAt(event.target));
    const token = this.run.tokens[Number(span.dataset.number)];
    if (!getSelection().isCollapsed) return undefined; // text is being copied
    return this.stage.pick(token.thread, token);
  }

  press(event) {
    const count = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!count) return;
    event.preventDefault();
    const spans = [...this.root.querySelectorAll(".token:not(.off)")];
    this.stage.move(spans.map((span) => this.run.tokens[Number(span.dataset.number)]), count);
  }
}

// A text in pieces that are laid out one by one, and only where they are looked at.
function pieces(text) {
  const found = [];
  for (let [at, end] = [0, 0]; at < text.length; at = end) {
    end = at + LONG;
    if (isLow(text.charCodeAt(end))) end += 1; // a pair of surrogates stays together
    found.push(element("span", { class: "piece" }, text.slice(at, end)));
  }
  return found;
}

function isLow(unit) {
  return unit >= 0xdc00 && unit <= 0xdfff;
}
