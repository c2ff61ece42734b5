// Editing the tags of a finished answer: the server checks them as they are typed, and replays them.

import { button, element, figure, visible } from "./elements.js";
import { piecesOf, reach } from "./net.js";
import { Run } from "./run.js";
import { indexOf, insertSync, makeBlock, removeBlock } from "./tagging.js";

const PAUSE_MS = 350; // of typing, before the text is checked
const MAX_FAULTS = 5; // shown at a time
const CHANGED = "The plain text has changed: this is another answer, and it is replayed as it stands.";
const CUT = "The replay was cut: the answer does not fit the model's context.";
const GUIDE = "The shown answer, each block with its topic. Change the tags only: what stands between them is the answer. Blocks are written beside each other; a sync waits for those before it.";

export class TagEditor {
  // ``key`` returns the key of the server.
  constructor(root, key) {
    this.root = root;
    this.key = key;
    this.original = null; // the run that was opened
    this.opener = button("Edit the tags", () => this.open());
    this.area = element("textarea", { rows: 12, spellcheck: "false", autocomplete: "off", "aria-label": "Answer with its tags", "aria-describedby": "edit-guide" });
    this.area.addEventListener("input", () => this.changed());
    this.faults = element("ul", { class: "faults" });
    this.said = element("p", { role: "status" });
    this.figures = element("p", { class: "edit-figures" });
    this.sender = button("Replay", () => (this.stopping ? this.stopping.abort() : this.replay()));
    this.sender.classList.add("send");
    const tools = [
      button("Make this a block", () => this.apply(makeBlock)),
      button("Remove this block", () => this.apply(removeBlock)),
      button("Insert sync", () => this.apply(insertSync)),
    ];
    this.panel = element("section", { class: "editor", "aria-label": "Edit the tags" },
      element("p", { id: "edit-guide", class: "hint" }, GUIDE),
      element("div", { class: "line", role: "group", "aria-label": "Change the tags" }, ...tools),
      this.area, this.faults, this.figures,
      element("div", { class: "line" }, this.sender, button("Start again", () => this.write(this.original.annotated)), button("Close", () => this.close()), this.said));
    root.append(this.opener, this.panel);
    this.close();
  }

  // Belong to the runs of a stage.
  follow(stage) {
    this.close();
    this.stage = stage;
    stage.on("run grow runs", () => this.offer());
    this.offer();
  }

  offer() {
    const { run } = this.stage;
    this.opener.hidden = !this.panel.hidden || !run.isComplete || run.annotated === null || run.asked === null;
    this.sender.disabled = !this.stopping && this.stage.runs.some((one) => !one.isOver);
  }

  open() {
    this.original = this.stage.run;
    this.plain = this.cost = this.checked = null;
    this.panel.hidden = false;
    this.offer();
    this.write(this.original.annotated);
    this.area.focus();
    this.area.setSelectionRange(0, 0);
  }

  close() {
    this.stopping?.abort();
    this.checking?.abort();
    clearTimeout(this.timer);
    const had = this.panel.contains(document.activeElement);
    this.panel.hidden = true;
    if (this.stage) this.offer();
    if (had) this.opener.focus();
  }

  write(text) {
    this.area.value = text;
    this.check();
  }

  // Do an operation on the selection, so that the browser can undo it.
  apply(operation) {
    const { value, selectionStart, selectionEnd } = this.area;
    const { refused, start, end, text, select } = operation(value, selectionStart, selectionEnd);
    this.area.focus();
    this.said.textContent = refused ?? "";
    if (refused) return;
    this.area.setSelectionRange(start, end);
    if (!document.execCommand("insertText", false, text)) {
      this.area.setRangeText(text);
      this.changed();
    }
    this.area.setSelectionRange(...select);
  }

  changed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), PAUSE_MS);
  }

  get body() {
    return { response: this.area.value, form: "annotator" };
  }

  // Ask the server for faults and the cost; the first answer is that of the original.
  async check() {
    clearTimeout(this.timer);
    this.checking?.abort();
    this.checking = new AbortController();
    this.said.textContent = "";
    try {
      const reply = await this.post("v1/check", this.body, this.checking.signal);
      this.checked = await reply.json();
      this.plain ??= this.checked.text;
      this.cost ??= this.checked.cost;
      this.showFaults(this.checked.diagnostics);
      this.showFigures("edited, read from its tags", this.checked.cost);
      if (this.checked.valid && this.checked.text !== this.plain) this.said.textContent = CHANGED;
    } catch (error) {
      if (error.name !== "AbortError") this.said.textContent = visible(error.message);
    }
  }

  post(path, body, signal) {
    return reach(path, { key: this.key(), signal, body });
  }

  async replay() {
    clearTimeout(this.timer);
    this.checking?.abort();
    const { stage } = this;
    const { messages, max_threads } = this.original.asked;
    const run = new Run(this.nameOfNext(), { strategy: "pasta", kind: "replayed" });
    Object.assign(run, { asked: this.original.asked });
    this.stopping = new AbortController();
    this.sender.textContent = "Stop";
    this.said.textContent = "Replaying …";
    try {
      const body = { ...this.body, messages, pasta: { max_threads, trace: true }, stream: true };
      const reply = await this.post("v1/replay", body, this.stopping.signal);
      this.told(await this.pour(reply, run, stage));
    } catch (error) {
      this.said.textContent = error.name === "AbortError" ? "Stopped." : visible(error.message);
      if (error.diagnostics) this.refuse(error.diagnostics);
    }
    run.isOver = true;
    this.stopping = null;
    this.sender.textContent = "Replay";
    if (!stage.isClosed) stage.grow();
    this.offer();
  }

  // Put a run on the stage while it is decoded; return its last event.
  async pour(reply, run, stage) {
    let last = null;
    for await (const piece of piecesOf(reply)) {
      this.stopping.signal.throwIfAborted(); // other runs may stand on the page by now
      const isFirst = run.threads.length === 0;
      run.takePiece(piece);
      if (piece.pasta?.kind === "finished") last = piece.pasta;
      if (!isFirst) stage.grow();
      else if (run.threads.length) {
        stage.add(run);
        stage.show(run);
      }
    }
    if (!last) throw new Error("The stream ended before the answer did.");
    return last;
  }

  told(last) {
    this.showFaults(last.diagnostics);
    this.showFigures("edited, replayed", last, last.wall_s);
    const isSame = this.plain === null || last.text === this.plain;
    this.said.textContent = last.finish_reason !== "stop" ? CUT : isSame ? "" : CHANGED;
  }

  // Show why the server refused the text, and set the caret there.
  refuse(diagnostics) {
    this.showFaults(diagnostics);
    this.goTo(diagnostics.find((one) => one.severity === "error"));
  }

  nameOfNext() {
    const names = new Set(this.stage.runs.map((run) => run.name));
    let number = 1;
    while (names.has(number === 1 ? "edited" : `edited ${number}`)) number += 1;
    return number === 1 ? "edited" : `edited ${number}`;
  }

  showFaults(diagnostics) {
    const rows = diagnostics.slice(0, MAX_FAULTS).map((one) => {
      const weight = one.severity === "error" ? "" : "warning: ";
      const place = button(`Line ${one.line}, column ${one.column}`, () => this.goTo(one));
      return element("li", { class: one.severity }, place, ` ${weight}${visible(one.message)}; ${visible(one.hint)} (${one.code})`);
    });
    if (diagnostics.length > MAX_FAULTS) rows.push(element("li", {}, `and ${diagnostics.length - MAX_FAULTS} more`));
    this.area.setAttribute("aria-invalid", String(diagnostics.some((one) => one.severity === "error")));
    this.faults.replaceChildren(...rows);
  }

  goTo({ line, column }) {
    const place = indexOf(this.area.value, line, column);
    this.area.focus();
    this.area.setSelectionRange(place, place);
    const lines = this.area.value.slice(0, place).length / Math.max(1, this.area.value.length);
    this.area.scrollTop = lines * this.area.scrollHeight - this.area.clientHeight / 2;
  }

  // The figures of the opened run and, behind an arrow, those of the text as it is now.
  showFigures(how, cost, wall_s = null) {
    this.figures.replaceChildren();
    if (!cost || !this.cost) return;
    const { facts, name, theoretical_speedup } = this.original;
    const path = facts.critical_path;
    const pair = (before, after, digits, unit = "") => `${before.toFixed(digits)}${unit} → ${after.toFixed(digits)}${unit}`;
    const isTimed = wall_s !== null && facts.kind !== "simulated";
    this.figures.append(
      element("span", { class: "figure" }, `${visible(name)} → ${how}: `),
      figure(pair(theoretical_speedup, cost.theoretical_speedup, 2), "theoretical speedup"),
      figure(pair(facts.parallelism, cost.parallelism, 2), "parallelism"),
      figure(pair(path, cost.critical_path_tokens, 0), "critical path"),
      isTimed ? figure(pair(facts.wall_s, wall_s, 2, " s"), "time") : "");
  }
}
