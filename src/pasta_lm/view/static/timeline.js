// The timeline of one run: a bar for each thread over the passes, its forks, syncs and waits.

import { chip, drawn, element, figures, gain, look, nameOf, plural, topicOf } from "./elements.js";

const TICKS = 8;
const FEW = 12;
const MANY = 28;
const MAX_GHOST = 2.2; // rows keep their width: a longer ghost bar ends at the edge
const ROOM = 1.3; // a live run gets room in steps of this factor, so that its bars seldom shrink

export class TimelineView {
  constructor(stage, run, root) {
    this.stage = stage;
    this.run = run;
    this.labels = element("ol", { class: "labels" });
    this.picture = drawn("svg", { class: "picture", role: "img" });
    this.root = element("div", { class: "timeline" }, this.labels, this.picture);
    root.append(this.heading(), this.root);
    this.buildLabels();
    this.picture.addEventListener("pointermove", (event) => this.point(event));
    this.picture.addEventListener("pointerleave", () => this.stage.hover(null));
    this.picture.addEventListener("click", (event) => this.click(event));
    stage.on("clock runs", () => this.draw());
    stage.on("grow", () => this.grow());
    stage.on("time", () => this.showTime());
    stage.on("hover pick run", () => this.showFocus());
    new ResizeObserver(() => this.draw()).observe(this.picture.parentElement);
  }

  grow() {
    if (this.buttons.length !== this.run.threads.length) this.buildLabels();
    this.draw();
  }

  // The name of the run, which picks it, and its figures; one run alone has them in the header.
  heading() {
    const button = element("button", { type: "button", class: "run-name" }, this.run.name);
    const line = element("p", { class: "run-figures" });
    const heading = element("div", { class: "run-heading" }, button, line);
    button.addEventListener("click", () => this.stage.show(this.run));
    const show = () => {
      heading.hidden = this.stage.runs.length === 1 && this.run.asked === null;
      button.setAttribute("aria-pressed", String(this.stage.run === this.run));
      line.replaceChildren(...this.figures());
      if (this.run.isComplete && !heading.lastChild.matches("details")) heading.append(this.moreFigures());
    };
    this.stage.on("run runs grow clock", show);
    show();
    return heading;
  }

  figures() {
    const { run, stage } = this;
    if (!run.isComplete) return [element("span", { class: "state" }, run.isOver ? "stopped" : "is being decoded")];
    const { facts, threads } = run;
    const isTimed = facts.kind !== "simulated" && facts.wall_s > 0;
    const large = isTimed ? `${facts.wall_s.toFixed(2)} s` : plural(run.passes, "pass");
    const speedup = stage.speedup(run);
    const compared = speedup && `${speedup.toFixed(2)} times ${isTimed ? "as fast as" : "fewer than"} the same text by one thread${isTimed ? ", the prompt apart" : ""}`;
    const sentence = facts.cut_at === null ? compared ?? gain(threads.length, run.theoretical_speedup) : `cut at ${plural(facts.cut_at, "token")}`;
    return [element("strong", { class: "large" }, large), element("span", {}, sentence)];
  }

  moreFigures() {
    const { facts } = this.run;
    return figures([
      [facts.parallelism.toFixed(2), "parallelism"],
      [facts.critical_path, "critical path"],
      [facts.num_content_tokens, "tokens"],
      [facts.tokens_per_s?.toFixed(1) ?? null, "tokens/s"],
    ]);
  }

  get rowHeight() {
    const count = this.run.threads.length;
    if (count <= FEW) return 26;
    return count <= MANY ? 20 : 15;
  }

  // The bar of the same answer written by one thread has no clock, only a number of tokens.
  get hasGhost() {
    return this.stage.clock === "passes" && this.run.threads.length > 1 && this.run.isComplete;
  }

  get domain() {
    const { runs, clock, end } = this.stage;
    if (clock === "seconds") return this.room(end);
    const ghosts = runs.map((run) => (run.threads.length > 1 ? run.facts.num_content_tokens ?? 0 : 0));
    return Math.max(this.room(end), Math.min(MAX_GHOST * end, Math.max(...ghosts)));
  }

  // As much as is to be drawn; more while a run goes on.
  room(end) {
    if (this.stage.runs.every((run) => run.isOver)) return end;
    return ROOM ** Math.ceil(Math.log(Math.max(end, 0.1) * 1.05) / Math.log(ROOM));
  }

  x(pass) {
    return (this.stage.positionOf(this.run, pass) / this.domain) * this.width;
  }

  y(thread) {
    return thread * this.rowHeight + this.rowHeight / 2;
  }

  buildLabels() {
    this.buttons = this.run.threads.map((thread) => {
      const button = element("button", { type: "button", title: nameOf(thread) }, chip(thread), element("span", {}, topicOf(thread)));
      button.addEventListener("click", () => this.pick(thread.id, null));
      button.addEventListener("pointerenter", () => this.hover(thread.id));
      button.addEventListener("pointerleave", () => this.stage.hover(null));
      button.addEventListener("keydown", (event) => this.press(event, thread));
      return button;
    });
    this.labels.replaceChildren(...this.buttons.map((button) => element("li", {}, button)));
  }

  draw() {
    this.width = Math.max(80, this.root.clientWidth - this.labels.offsetWidth - 8);
    const count = this.run.threads.length;
    this.rows = count * this.rowHeight;
    const height = this.rows + (this.hasGhost ? 26 : 4) + 22;
    this.root.className = `timeline rows-${this.rowHeight}`;
    this.picture.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.picture.setAttribute("width", this.width);
    this.picture.setAttribute("height", height);
    this.picture.setAttribute("aria-label", this.describe());
    this.rowsDrawn = this.run.threads.map((thread) => this.row(thread));
    this.future = drawn("rect", { class: "future", y: 0, height: this.rows });
    this.playhead = drawn("line", { class: "playhead", y1: 0, y2: height - 20 });
    this.cursor = drawn("rect", { class: "cursor", width: 0, height: this.rowHeight - 2 });
    this.unseen = drawn("g", { class: "unseen" });
    this.picture.replaceChildren(
      this.axis(height),
      ...(this.hasGhost ? [this.ghost()] : []),
      drawn("g", {}, ...this.run.forks.map((edge) => this.fork(edge))),
      drawn("g", {}, ...this.run.joins.map((edge) => this.join(edge))),
      ...this.rowsDrawn,
      this.criticalPath(),
      this.unseen,
      this.future,
      this.finish(),
      this.cursor,
      this.playhead,
    );
    this.showTime();
    this.showFocus();
  }

  describe() {
    const { facts, threads, syncs } = this.run;
    return `${plural(threads.length, "thread")} over ${plural(this.run.passes, "pass")}, `
      + `${plural(syncs.length, "sync")}, critical path ${facts.critical_path ?? "not known yet"}. The table below says the same in words.`;
  }

  row(thread) {
    const { hue, mark } = look(thread.id);
    const height = Math.round(this.rowHeight * 0.5);
    const y = this.y(thread.id) - height / 2;
    const row = drawn("g", { class: `row ${hue}` });
    thread.spans.forEach(([, first, stop], index) => {
      const before = thread.spans[index - 1];
      if (before) row.append(this.box("waits", before[2], first, y + height * 0.2, height * 0.6));
      row.append(this.box("bar", first, stop, y, height));
      if (mark) row.append(this.box("mark", first, stop, y, height, `url(#mark-${mark})`));
    });
    const end = thread.spans.at(-1)?.[2];
    const waits = !this.run.isOver && thread.finish_reason === null && end < this.run.passes;
    if (waits) row.append(this.box("waits", end, this.run.passes, y + height * 0.2, height * 0.6));
    return row;
  }

  box(kind, first, last, y, height, fill = kind === "waits" ? "url(#waits)" : null) {
    const [left, right] = [this.x(first), this.x(last)];
    return drawn("rect", { class: kind, x: left, y, width: Math.max(0.75, right - left), height, rx: kind === "waits" ? 0 : 2, fill });
  }

  fork([source, start, target, end]) {
    const [from, to] = [this.x(start), this.x(end)];
    const d = `M${from} ${this.y(source)} V${this.y(target)} H${to}`;
    return drawn("g", { class: `fork ${look(target).hue}` }, drawn("path", { d }), drawn("circle", { cx: from, cy: this.y(source), r: 2.5 }));
  }

  join([source, start, target, end]) {
    const d = `M${this.x(start)} ${this.y(source)} H${this.x(end)} V${this.y(target)}`;
    return drawn("g", { class: `sync ${look(source).hue}` }, drawn("path", { d }));
  }

  criticalPath() {
    const below = (thread) => this.y(thread) + this.rowHeight * 0.25 + 3;
    const points = this.run.critical.flatMap(([thread, first, stop]) => [first, stop].map((pass) => `${this.x(pass)} ${below(thread)}`));
    return drawn("path", { class: "critical", d: points.length ? `M${points.join("L")}` : "" });
  }

  ghost() {
    const count = this.run.facts.num_content_tokens ?? 0;
    const [y, right] = [this.rows + 5, (count / this.domain) * this.width];
    const text = `${plural(count, "token")} one after another${right > this.width ? " →" : ""}`;
    return drawn("g", { class: "ghost" },
      drawn("rect", { x: 0.5, y, width: Math.max(0, right - 1), height: 15, rx: 2 }),
      drawn("text", { x: 6, y: y + 11 }, text));
  }

  axis(height) {
    const rough = this.domain / Math.max(2, Math.min(TICKS, this.width / 70));
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= (this.stage.clock === "passes" ? Math.max(1, rough) : rough));
    const axis = drawn("g", { class: "axis" });
    for (let at = 0; at <= this.domain; at += step) {
      const x = (at / this.domain) * this.width;
      const anchor = at === 0 ? "start" : x > this.width - 20 ? "end" : "middle";
      const label = this.stage.clock === "seconds" ? `${Number(at.toPrecision(3))} s` : String(Math.round(at));
      axis.append(
        drawn("line", { x1: x, x2: x, y1: 0, y2: height - 20 }),
        drawn("text", { x, y: height - 6, "text-anchor": anchor }, label),
      );
    }
    return axis;
  }

  finish() {
    const x = this.x(this.run.passes);
    const line = drawn("line", { x1: x - 1, x2: x - 1, y1: 0, y2: this.rows });
    if (!this.run.isComplete) return drawn("g", { class: "finish" });
    const isRight = x + 90 < this.width;
    if (!isRight) return drawn("g", { class: "finish" }, line);
    return drawn("g", { class: "finish" }, line, drawn("text", { x: x + 6, y: this.y(0) + 4 }, this.ending()));
  }

  // How this run ends: against the same text by one thread, if it is there.
  ending() {
    const { stage, run } = this;
    const reference = stage.referenceOf(run);
    if (run.facts.cut_at !== null) return `cut at ${plural(run.facts.cut_at, "token")}`;
    if (!reference) return stage.clock === "seconds" ? `${stage.endOf(run).toFixed(2)} s` : plural(run.passes, "pass");
    const ratio = stage.endOf(reference) / stage.endOf(run);
    return ratio >= 1 ? `${ratio.toFixed(2)}× sooner` : `${(1 / ratio).toFixed(2)}× later`;
  }

  showTime() {
    if (!this.future) return;
    const x = Math.min(this.x(this.run.passes), (this.stage.now / this.domain) * this.width);
    this.future.setAttribute("x", x);
    this.future.setAttribute("width", Math.max(0, this.x(this.run.passes) - x - 2));
    const isOver = this.run.isOver && this.stage.now >= this.stage.endOf(this.run);
    this.playhead.setAttribute("transform", `translate(${x} 0)`);
    this.playhead.classList.toggle("over", isOver);
  }

  showFocus() {
    if (!this.rowsDrawn) return;
    const isShown = this.stage.run === this.run;
    const focus = isShown ? this.stage.focus : null;
    const picked = isShown ? this.stage.picked : null;
    this.root.classList.toggle("focused", focus !== null && !picked?.token);
    this.rowsDrawn.forEach((row, thread) => row.classList.toggle("focus", thread === focus));
    this.buttons.forEach((button, thread) => {
      button.classList.toggle("focus", thread === focus);
      button.setAttribute("aria-pressed", String(picked?.thread === thread));
    });
    this.showPick(picked?.token ?? null);
  }

  showPick(token) {
    this.unseen.replaceChildren(...(token ? this.run.threads.map((thread) => this.cover(token, thread)) : []));
    this.cursor.setAttribute("width", token ? Math.max(2, this.x(token.decoded + 1) - this.x(Math.max(0, token.decoded))) : 0);
    if (!token) return;
    this.cursor.setAttribute("x", this.x(Math.max(0, token.decoded)));
    this.cursor.setAttribute("y", this.y(token.thread) - this.rowHeight / 2 + 1);
  }

  // Cover what a token's thread could not see of another thread, when it wrote the token.
  cover(token, thread) {
    const last = thread.tokens[this.run.numSeen(token, thread.id) - 1];
    const x = last ? this.x((last.fed ?? last.decoded) + 1) : 0;
    const y = this.y(thread.id) - this.rowHeight / 2;
    return drawn("rect", { x, y, width: Math.max(0, this.width - x), height: this.rowHeight });
  }

  placeOf(event) {
    const frame = this.picture.getBoundingClientRect();
    const thread = Math.floor((event.clientY - frame.top) / this.rowHeight);
    const at = ((event.clientX - frame.left) / frame.width) * this.domain;
    const pass = this.stage.clock === "seconds" ? this.run.passAt(at) : at;
    return { thread: this.run.threads[thread] ? thread : null, pass };
  }

  hover(thread) {
    if (this.stage.run === this.run) this.stage.hover(thread);
  }

  pick(thread, token) {
    this.stage.show(this.run);
    this.stage.pick(thread, token);
  }

  point(event) {
    this.hover(this.placeOf(event).thread);
  }

  click(event) {
    const { thread, pass } = this.placeOf(event);
    if (thread === null) return this.stage.pick(null);
    return this.pick(thread, this.run.written(thread, Math.floor(pass) + 1));
  }

  press(event, thread) {
    const [across, along] = [{ ArrowUp: -1, ArrowDown: 1 }[event.key], { ArrowLeft: -1, ArrowRight: 1 }[event.key]];
    if (across) this.buttons[thread.id + across]?.focus();
    if (along) {
      this.stage.show(this.run);
      this.stage.move(thread.tokens, along);
    }
    if (across || along) event.preventDefault();
  }
}
