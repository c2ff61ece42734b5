// The small picture beside an answer: a lane for each thread over the passes, live or finished.

import { chip, drawn, element, look, nameOf, plural } from "../elements.js";

const MAX_NAMED = 12; // with more threads the lanes are thin and have no names
const MIN_PASSES = 24; // so that the first words do not fill the whole width

export class Strip {
  constructor(run, { isLive }) {
    this.run = run;
    this.isLive = isLive;
    this.numTaken = 0;
    this.lanes = []; // by thread: {row, bar, end}
    this.names = element("div", { class: "lane-names", "aria-hidden": "true" });
    this.picture = drawn("svg", { class: "lanes", role: "img", preserveAspectRatio: "none" });
    this.root = element("div", { class: "strip" }, this.names, this.picture);
    this.grow();
  }

  get numRows() {
    return this.lanes.length + (this.hasGhost ? 1 : 0);
  }

  // A lane as long as the answer's tokens one after another, once they are counted.
  get hasGhost() {
    return this.run.threads.length > 1 && this.run.facts.num_content_tokens > 0;
  }

  grow() {
    const { run } = this;
    while (this.lanes.length < run.threads.length) this.addLane(run.threads[this.lanes.length]);
    for (; this.numTaken < run.tokens.length; this.numTaken += 1) this.extend(run.tokens[this.numTaken]);
    if (this.hasGhost && !this.ghost) this.addGhost(run.facts.num_content_tokens);
    const least = this.isLive ? MIN_PASSES : 1;
    const width = Math.max(least, run.passes, this.ghost ? run.facts.num_content_tokens : 0);
    this.picture.setAttribute("viewBox", `0 0 ${width} ${Math.max(1, this.numRows)}`);
    this.root.classList.toggle("many", this.lanes.length > MAX_NAMED);
    this.picture.setAttribute("data-rows", this.numRows);
    this.picture.style.setProperty("--rows", this.numRows);
    const words = `${plural(run.threads.length, "thread")} over ${plural(run.passes, "pass")}`;
    this.picture.setAttribute("aria-label", words);
  }

  addLane(thread) {
    const row = drawn("g", { class: look(thread.id).hue });
    this.picture.append(row);
    this.names.append(element("span", { title: nameOf(thread) }, chip(thread), element("span", {}, nameOf(thread).replace(/^\d+ /, ""))));
    this.lanes.push({ row, bar: null, end: 0 });
  }

  extend({ thread, fed, decoded }) {
    const pass = this.isLive ? decoded : fed; // a live token is fed in the pass to come
    if (pass === null || pass < 0) return;
    const lane = this.lanes[thread];
    if (!lane.bar || pass > lane.end) {
      if (lane.bar) lane.row.append(this.box("lane-waits", thread, lane.end, pass));
      lane.bar = this.box("bar", thread, pass, pass + 1);
      lane.row.append(lane.bar);
    }
    lane.end = Math.max(lane.end, pass + 1);
    lane.bar.setAttribute("width", lane.end - Number(lane.bar.getAttribute("x")));
  }

  box(kind, row, first, last) {
    const [y, height] = kind === "bar" ? [row + 0.2, 0.6] : [row + 0.45, 0.1];
    return drawn("rect", { class: kind, x: first, y, width: last - first, height });
  }

  addGhost(numTokens) {
    this.ghost = drawn("rect", { class: "lane-ghost", x: 0, y: this.lanes.length + 0.25, width: numTokens, height: 0.5 });
    this.picture.append(this.ghost);
    this.names.append(element("span", { title: "The answer's tokens one after another" }, "in sequence"));
  }
}
