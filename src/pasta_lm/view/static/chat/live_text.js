// The text of an answer while it is decoded: each thread's in its place and its colour. Only added to.

import { chip, element, look, visible } from "../elements.js";
import { isText } from "./answering.js";

const RECENT_PASSES = 3; // a thread that wrote within them is marked as writing

export class LiveText {
  constructor(run, root) {
    this.run = run;
    this.root = root;
    this.tails = []; // by thread: the part that its next text goes to
    this.numTaken = 0;
    root.classList.add("answer");
  }

  // Show what has come since the last time.
  grow() {
    const { run } = this;
    for (; this.numTaken < run.tokens.length; this.numTaken += 1) this.add(run.tokens[this.numTaken]);
    run.threads.forEach((thread) => this.tails[thread.id]?.classList.toggle("writing", this.isWriting(thread)));
  }

  isWriting({ tokens, finish_reason }) {
    const isRecent = tokens.length > 0 && tokens.at(-1).decoded + RECENT_PASSES >= this.run.step_s.length;
    return isRecent && finish_reason === null;
  }

  add({ thread, text, role, forks }) {
    const tail = this.tailOf(thread);
    if (isText(role)) tail.append(visible(text));
    if (forks !== null && this.run.threads[forks]) this.tailOf(forks);
  }

  // Where a thread writes; one that is new stands behind all that its parent has written.
  tailOf(thread) {
    if (!this.tails[thread]) {
      const { parent } = this.run.threads[thread];
      this.tails[thread] = this.part(thread);
      if (parent === null) this.root.append(this.tails[thread]);
      else this.fork(parent, thread);
    }
    return this.tails[thread];
  }

  fork(parent, child) {
    const before = this.tailOf(parent);
    before.classList.remove("writing");
    this.tails[child].append(chip(this.run.threads[child]));
    this.tails[parent] = this.part(parent);
    before.after(this.tails[child], this.tails[parent]);
  }

  part(thread) {
    const { hue, mark } = look(thread);
    return element("bdi", { class: `part ${hue} line-${mark}` });
  }
}
