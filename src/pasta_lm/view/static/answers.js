// The answers of all runs beside each other, on one clock; on a narrow page one at a time, by tabs.

import { copier } from "./copying.js";
import { element } from "./elements.js";
import { FieldList, filledRun, JSON_MODE, verdict } from "./fields.js";
import { Pen, stretches, textOf } from "./reading.js";

export class AnswersView {
  // ``prose`` is the class that draws Markdown; a page in a file has none, and shows the text.
  constructor(stage, root, prose = null) {
    Object.assign(this, { stage, root, prose, columns: [] });
    this.tabs = element("div", { class: "tabs", role: "tablist", "aria-label": "Answers" });
    this.row = element("div", { class: "columns" });
    this.verdict = element("p", { class: "verdict", hidden: "" });
    root.replaceChildren(this.verdict, this.tabs, this.row);
    root.addEventListener("pointerover", (event) => this.point(event));
    root.addEventListener("pointerleave", () => stage.hover(null));
    stage.on("runs", () => this.extend());
    stage.on("grow time", () => this.show());
    stage.on("run runs", () => this.choose());
    stage.on("hover pick run", () => this.showFocus());
    this.extend();
    this.choose();
  }

  extend() {
    for (const run of this.stage.runs.slice(this.columns.length)) this.add(run);
    this.show();
  }

  add(run) {
    const id = `answer-of-${this.columns.length}`;
    const tab = element("button", { type: "button", role: "tab", id: `${id}-tab`, "aria-controls": id }, run.name);
    tab.addEventListener("click", () => this.stage.show(run));
    const filled = filledRun(this.stage.runs);
    const prose = filled ? new FieldList(run, filled) : this.prose ? new this.prose(run) : new Plain(run);
    const state = element("span", { class: "state" });
    const head = element("div", { class: "column-head" }, element("h3", {}, run.name), state, copier(() => prose.text ?? textOf(run)));
    const column = element("section", { class: "column", id, role: "tabpanel", "aria-labelledby": `${id}-tab` }, head, prose.root);
    this.columns.push({ run, prose, column, tab, state });
    this.tabs.append(tab);
    this.row.append(column);
  }

  show() {
    for (const { run, prose, state } of this.columns) {
      const pass = this.stage.passOf(run);
      prose.show(pass);
      const isEnd = run.isComplete && pass >= run.passes;
      const { cut_at, kind, wall_s } = run.facts;
      const end = cut_at === null ? (kind === "simulated" ? "" : `${wall_s.toFixed(2)} s`) : `cut at ${cut_at} tokens`;
      state.textContent = !isEnd ? (run.isOver && !run.isComplete ? "stopped" : "writes …") : end;
    }
    const ofJson = this.columns.find(({ run }) => run.name === JSON_MODE);
    const isWhole = this.stage.now >= this.stage.end;
    this.verdict.textContent = ofJson && isWhole ? verdict(filledRun(this.stage.runs), ofJson.run, ofJson.prose.numOther) : "";
    this.verdict.hidden = !this.verdict.textContent;
  }

  choose() {
    this.tabs.hidden = this.columns.length < 2;
    for (const { run, column, tab } of this.columns) {
      column.classList.toggle("chosen", run === this.stage.run);
      tab.setAttribute("aria-selected", String(run === this.stage.run));
    }
  }

  point({ target }) {
    const chosen = this.columns.find(({ column }) => column.contains(target));
    const part = target.closest(".part");
    if (chosen?.run === this.stage.run) this.stage.hover(part ? Number(part.dataset.thread) : null);
  }

  showFocus() {
    const { focus } = this.stage;
    for (const { run, column } of this.columns) {
      const isMeant = focus !== null && run === this.stage.run;
      column.classList.toggle("focused", isMeant);
      column.querySelectorAll(".part").forEach((part) => part.classList.toggle("focus", isMeant && Number(part.dataset.thread) === focus));
    }
  }
}

class Plain {
  constructor(run) {
    this.run = run;
    this.root = element("p", { class: "as-written" });
  }

  show(passes) {
    const [all, pen] = [stretches(this.run, passes), new Pen()];
    this.root.replaceChildren(...all.map(({ thread, text }) => {
      pen.thread = thread;
      return pen.part(text, false);
    }));
  }
}
