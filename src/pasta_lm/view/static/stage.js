// What the views share: the runs, the time that is shown, what is pointed at and what is picked.

import { decodingTime } from "./run.js";

export class Stage extends EventTarget {
  constructor(runs) {
    super();
    this.runs = runs;
    this.run = runs.at(-1);
    this.clock = this.isTimed && runs.length > 1 ? "seconds" : "passes";
    this.now = this.end;
    this.follows = true; // the time shown is the end, also while the end moves on
    this.isGrowing = false;
    this.isClosed = false; // other views stand on the page by now
    this.hovered = null; // a thread's number
    this.picked = null; // {thread, token}; token is null if the thread as a whole is meant
  }

  on(names, act) {
    names.split(" ").forEach((name) => this.addEventListener(name, act));
  }

  tell(name) {
    this.dispatchEvent(new Event(name));
  }

  get isTimed() {
    return this.runs.every((run) => run.facts.kind !== "simulated");
  }

  // The run of the same text by one thread, or null. The server decides which runs compare: by a key.
  referenceOf(run) {
    const key = run.facts.compares ?? null;
    if (key === null || run.threads.length === 1) return null;
    return this.runs.find((one) => one.threads.length === 1 && one.facts.compares === key) ?? null;
  }

  // The realised speedup over that run, on the clock of passes if it is simulated.
  speedup(run) {
    const reference = this.referenceOf(run);
    const length = (one) => (this.isTimed ? decodingTime(one) : one.passes);
    return reference && length(reference) / length(run);
  }

  endOf(run) {
    return this.clock === "seconds" ? run.secondsAt(run.passes) : run.passes;
  }

  get end() {
    return Math.max(...this.runs.map((run) => this.endOf(run)));
  }

  passOf(run) {
    const pass = this.clock === "seconds" ? run.passAt(this.now) : this.now;
    return Math.min(run.passes, pass);
  }

  positionOf(run, pass) {
    return this.clock === "seconds" ? run.secondsAt(pass) : pass;
  }

  goTo(now) {
    this.now = Math.max(0, Math.min(this.end, now));
    this.follows = this.now >= this.end;
    this.tell("time");
  }

  // One more run has begun.
  add(run) {
    this.runs.push(run);
    this.tell("runs");
    if (this.isTimed && this.clock === "passes") this.setClock("seconds");
    this.grow();
  }

  // More of a live run has come: show all of it, unless the reader has gone back.
  grow() {
    if (this.isGrowing) return;
    this.isGrowing = true;
    requestAnimationFrame(() => {
      this.isGrowing = false;
      if (this.isClosed) return;
      if (this.follows) this.now = this.end;
      this.tell("grow");
      this.tell("time");
    });
  }

  step(count) {
    const pass = Math.round(this.passOf(this.run) + count);
    this.goTo(this.positionOf(this.run, Math.max(0, Math.min(this.run.passes, pass))));
  }

  setClock(clock) {
    const pass = this.passOf(this.run);
    const { follows } = this;
    this.clock = clock;
    this.tell("clock");
    this.goTo(follows ? this.end : this.positionOf(this.run, pass));
  }

  hover(thread) {
    if (thread === this.hovered) return;
    this.hovered = thread;
    this.tell("hover");
  }

  show(run) {
    if (run === this.run) return;
    this.run = run;
    this.hovered = this.picked = null;
    this.tell("run");
    this.tell("pick");
  }

  pick(thread, token = null) {
    const isSame = this.picked?.thread === thread && this.picked.token === token;
    this.picked = thread === null || (isSame && token === null) ? null : { thread, token };
    this.tell("pick");
  }

  // The thread that the views emphasise, or null.
  get focus() {
    return this.hovered ?? this.picked?.thread ?? null;
  }

  // Pick the neighbour of the picked token among these, which are in order.
  move(tokens, count) {
    if (tokens.length === 0) return;
    const at = tokens.indexOf(this.picked?.token);
    const next = at < 0 ? (count > 0 ? 0 : tokens.length - 1) : at + count;
    const token = tokens[Math.max(0, Math.min(tokens.length - 1, next))];
    this.pick(token.thread, token);
  }
}
