// The answer of a run as text, in the order of reading: plain, or with its tags.

import { chip, element, look, visible } from "./elements.js";

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
    stage.on("run grow", () => this.build());
    stage.on("time", () => this.showTime());
    stage.on("hover pick", () => this.showFocus());
    stage.on("pick", () => this.showPick());
    this.build();
  }

  build() {
    this.parts = [];
    this.tokens = []; // in the order of reading
    this.spans = new Map(); // by token
    for (const { thread, tokens, isStart } of this.stage.run.parts()) {
      const shown = tokens.filter((one) => this.withTags || one.role === "content");
      if (shown.length === 0 && !(isStart && thread)) continue;
      this.parts.push({ thread, node: this.part(thread, shown, isStart) });
    }
    this.root.replaceChildren(...this.parts.map((one) => one.node));
    const byTime = this.tokens.toSorted((one, other) => one.decoded - other.decoded);
    this.byTime = byTime.map((token) => [token.decoded, this.spans.get(token)]);
    this.numShown = 0;
    this.tips = [];
    this.showTime();
    this.showFocus();
    this.showPick();
  }

  part(thread, tokens, isStart) {
    const { hue, mark } = look(thread);
    const part = element("bdi", { class: `part ${hue} line-${mark}`, "data-thread": thread });
    if (isStart && thread && !this.withTags) part.append(chip(this.stage.run.threads[thread]));
    for (const token of tokens) {
      const span = element("span", { class: `token ${token.role} off`, "data-number": token.number });
      span.textContent = visible(token.text);
      this.spans.set(token, span);
      this.tokens.push(token);
      part.append(span);
    }
    return part;
  }

  showTime() {
    const { stage, byTime } = this;
    const pass = stage.passOf(stage.run);
    while (this.numShown < byTime.length && byTime[this.numShown][0] + 1 <= pass) {
      byTime[this.numShown++][1].classList.remove("off");
    }
    while (this.numShown > 0 && byTime[this.numShown - 1][0] + 1 > pass) {
      byTime[--this.numShown][1].classList.add("off");
    }
    const tips = pass >= stage.run.passes ? [] : stage.run.threads.map((thread) => this.tip(thread, pass));
    this.tips.forEach((span) => span?.classList.remove("tip"));
    tips.forEach((span) => span?.classList.add("tip"));
    this.tips = tips;
    for (const { thread, node } of this.parts) {
      node.classList.toggle("unborn", (stage.run.threads[thread].tokens[0]?.decoded ?? Infinity) + 1 > pass);
    }
  }

  // The token at which a thread writes now: the last one, if another follows.
  tip(thread, pass) {
    const token = this.stage.run.written(thread.id, Math.floor(pass));
    return token && token.index + 1 < thread.tokens.length ? this.spans.get(token) : undefined;
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
      const isSeen = token !== null && other.index < this.stage.run.numSeen(token, other.thread);
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
    const token = this.stage.run.tokens[Number(span.dataset.number)];
    if (!getSelection().isCollapsed) return undefined; // text is being copied
    return this.stage.pick(token.thread, token);
  }

  press(event) {
    const count = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!count) return;
    event.preventDefault();
    this.stage.move(this.tokens.filter((one) => !this.spans.get(one).classList.contains("off")), count);
  }
}
