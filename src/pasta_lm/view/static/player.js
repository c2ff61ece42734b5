// The replay: a button, a scrubber, a speed and the clock; and the keys that do the same.

import { element } from "./elements.js";

const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4];
const WRITTEN = "textarea, input:not([type=range], [type=checkbox])"; // keys write there
const CONTROLS = "button, select, input, summary, textarea, a";

export class Player {
  constructor(stage, root) {
    this.stage = stage;
    this.isPlaying = false;
    this.isCalm = matchMedia("(prefers-reduced-motion: reduce)");
    this.button = element("button", { type: "button", class: "play" });
    this.scrubber = element("input", { type: "range", min: 0, max: 1000, step: "any", "aria-label": "Time of the replay" });
    this.reading = element("output", { class: "reading" });
    this.speed = select("Speed of the replay", SPEEDS.map((one) => [one, `${one}×`]), 1);
    this.clock = select("Clock", [["passes", "passes"], ["seconds", "seconds"]], stage.clock);
    root.replaceChildren(this.button, this.scrubber, this.reading, this.speed, this.clock);
    this.button.addEventListener("click", () => this.toggle());
    this.scrubber.addEventListener("input", () => this.scrub());
    this.clock.addEventListener("change", () => stage.setClock(this.clock.value));
    document.addEventListener("keydown", (event) => this.press(event));
    stage.on("time clock run", () => this.show());
    stage.on("clock", () => { this.clock.value = stage.clock; });
    this.show();
  }

  toggle() {
    this.isPlaying = !this.isPlaying;
    if (this.isPlaying) {
      if (this.stage.now >= this.stage.end) this.stage.goTo(0);
      this.before = null;
      requestAnimationFrame((now) => this.frame(now));
    }
    this.show();
  }

  // Seconds of the replay's clock for one second of the reader's: passes take their mean time.
  get rate() {
    const { stage } = this;
    if (stage.clock === "seconds") return 1;
    const spent = stage.run.secondsAt(stage.run.passes) - stage.run.secondsAt(0);
    return spent > 0 ? stage.run.passes / spent : 50;
  }

  frame(now) {
    if (!this.isPlaying || this.stage.isClosed) return;
    if (this.before === null) this.exact = this.stage.now;
    else this.exact += ((now - this.before) / 1000) * Number(this.speed.value) * this.rate;
    this.before = now;
    const isDone = this.exact >= this.stage.end;
    const isWhole = this.isCalm.matches && this.stage.clock === "passes";
    this.stage.goTo(isWhole ? Math.floor(this.exact) : this.exact);
    if (isDone) this.toggle();
    else requestAnimationFrame((next) => this.frame(next));
  }

  scrub() {
    this.exact = (Number(this.scrubber.value) / 1000) * this.stage.end;
    this.stage.goTo(this.exact);
  }

  press(event) {
    if (this.stage.isClosed) return;
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Escape") this.stage.pick(null);
    if (event.target.closest?.(WRITTEN)) return;
    if (event.target.closest?.(CONTROLS) && event.key === " ") return;
    const acts = { " ": () => this.toggle(), ",": () => this.stage.step(-1), ".": () => this.stage.step(1) };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  show() {
    const { stage } = this;
    this.button.disabled = !stage.runs.every((run) => run.isOver); // nothing to play yet
    this.button.textContent = this.isPlaying ? "Pause" : "Play";
    this.scrubber.value = stage.end ? (1000 * stage.now) / stage.end : 0;
    const pass = Math.floor(stage.passOf(stage.run));
    const seconds = stage.run.secondsAt(stage.passOf(stage.run));
    const simulated = stage.run.facts.kind === "simulated" ? " simulated" : "";
    this.reading.textContent = stage.clock === "seconds"
      ? `${Math.max(seconds, Math.min(stage.now, stage.end)).toFixed(2)} s${simulated}`
      : `pass ${pass} of ${stage.run.passes}`;
    this.scrubber.setAttribute("aria-valuetext", this.reading.textContent);
  }
}

function select(label, choices, value) {
  const options = choices.map(([one, text]) => element("option", { value: one }, text));
  const node = element("select", { "aria-label": label }, ...options);
  node.value = String(value);
  return node;
}
