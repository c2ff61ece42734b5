// The small picture beside an answer: a lane for each thread over the passes, live or finished.

import { chip, drawn, element, look, nameOf, plural, topicOf } from "../elements.js";

const MAX_NAMED = 12; // with more threads the lanes are thin and have no names
const MIN_PASSES = 24; // so that the first words of a live answer do not fill the whole width

export class Strip {
  constructor(run, { isLive }) {
    this.run = run;
    this.isLive = isLive;
    this.names = element("div", { class: "lane-names", "aria-hidden": "true" });
    this.picture = drawn("svg", { class: "lanes", role: "img", preserveAspectRatio: "none" });
    this.root = element("div", { class: "strip" }, this.names, this.picture);
    this.grow();
  }

  grow() {
    const { threads, passes, facts } = this.run;
    // A lane as long as the answer's tokens one after another, once they are counted.
    const ghost = threads.length > 1 ? facts.num_content_tokens ?? 0 : 0;
    const rows = threads.length + (ghost ? 1 : 0);
    const width = Math.max(this.isLive ? MIN_PASSES : 1, passes, ghost);
    const names = threads.slice(this.names.childElementCount);
    this.names.append(...names.map((thread) => element("span", { title: nameOf(thread) }, chip(thread), element("span", {}, topicOf(thread)))));
    this.picture.replaceChildren(...threads.map((thread) => this.lane(thread)));
    if (ghost) {
      this.picture.append(drawn("rect", { class: "lane-ghost", x: 0, y: threads.length + 0.25, width: ghost, height: 0.5 }));
      this.names.append(element("span", { title: "The answer's tokens one after another" }, "in sequence"));
    }
    this.picture.setAttribute("viewBox", `0 0 ${width} ${Math.max(1, rows)}`);
    this.picture.setAttribute("data-rows", rows);
    this.picture.style.setProperty("--rows", rows);
    this.picture.setAttribute("aria-label", `${plural(threads.length, "thread")} over ${plural(passes, "pass")}`);
    this.root.classList.toggle("many", threads.length > MAX_NAMED);
  }

  lane({ id, spans }) {
    const boxes = spans.flatMap(([, first, stop], index) => [
      ...(index ? [box("lane-waits", id, spans[index - 1][2], first)] : []),
      box("bar", id, first, stop),
    ]);
    return drawn("g", { class: look(id).hue }, ...boxes);
  }
}

function box(kind, row, first, stop) {
  const [y, height] = kind === "bar" ? [row + 0.2, 0.6] : [row + 0.45, 0.1];
  return drawn("rect", { class: kind, x: first, y, width: stop - first, height });
}
