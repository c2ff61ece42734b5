// The text of a run as Markdown, while it is decoded and after it, each thread in its colour.

import { element } from "../elements.js";
import { marked } from "../reading.js";
import { markdown } from "./markdown.js";

const RECENT_PASSES = 3; // a thread that wrote within them is marked as writing

export class Prose {
  constructor(run, before = "") {
    this.run = run;
    this.before = before; // of an answer that is continued: its text so far
    this.drawn = null;
    this.root = element("div", { class: "markdown" });
  }

  // Show what was written within so many passes.
  show(passes = Infinity) {
    const writing = this.writing(passes);
    const text = this.before + marked(this.run, passes, writing);
    const drawn = `${[...writing]} ${text}`;
    this.root.classList.toggle("live", writing.size > 0 || !this.run.isOver);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    renew(this.root, markdown(text, writing));
  }

  // The threads that write at this pass.
  writing(passes) {
    const { run } = this;
    const now = Math.min(passes, run.passes);
    if (run.isOver && now >= run.passes) return new Set();
    const threads = run.threads.filter(({ id, tokens, finish_reason }) => {
      const last = run.written(id, Math.floor(now));
      const goesOn = last && (last.index + 1 < tokens.length || (!run.isOver && finish_reason === null));
      return goesOn && last.decoded + RECENT_PASSES >= now;
    });
    return new Set(threads.map(({ id }) => id));
  }
}

// Put new nodes in the place of those that have changed; the others stay, with what is selected in them.
function renew(root, fresh) {
  const nodes = [...fresh.childNodes];
  nodes.forEach((node, index) => {
    const old = root.childNodes[index];
    if (!old) root.append(node);
    else if (!old.isEqualNode(node)) old.replaceWith(node);
  });
  while (root.childNodes.length > nodes.length) root.lastChild.remove();
}
