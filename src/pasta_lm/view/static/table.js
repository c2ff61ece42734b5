// The figures of a run in a line, and the run as a table: the picture in words.

import { called, element, figure, nameOf, plural, visible } from "./elements.js";

export class FactsView {
  constructor(stage, title, root) {
    this.stage = stage;
    this.title = title;
    this.root = root;
    stage.on("run grow", () => this.show());
    this.show();
  }

  show() {
    const { run, runs } = this.stage;
    const { facts, threads } = run;
    this.title.textContent = visible([facts.strategy ?? "run", facts.model].filter(Boolean).join(" · "));
    document.title = `${this.title.textContent} · pasta-lm`;
    const figures = [
      ["parallelism", facts.parallelism?.toFixed(2)],
      ["critical path", facts.critical_path],
      ["tokens", facts.num_content_tokens],
      ["threads", threads.length],
      ["time", facts.kind === "simulated" ? "simulated" : facts.wall_s && `${facts.wall_s.toFixed(2)} s`],
    ].filter(([, value]) => value !== undefined);
    if (facts.kind !== "generated" && facts.kind !== "simulated") figures.push(["kind", facts.kind]);
    // Several runs have their figures above their timelines.
    this.root.replaceChildren(...(runs.length > 1 ? [] : figures.map(([name, value]) => figure(value, name))));
  }
}

const HEADINGS = ["Thread", "Forked by", "Passes", "Waited", "Tokens", "Promised", "Saw at its start", "Ended by"];

export class TableView {
  constructor(stage, root) {
    this.stage = stage;
    this.root = root;
    stage.on("run grow", () => this.show());
    root.ontoggle = () => this.show();
    this.show();
  }

  show() {
    const { run } = this.stage;
    if (!this.root.open) return;
    const heads = HEADINGS.map((name) => element("th", { scope: "col" }, name));
    const table = element("table", {},
      element("thead", {}, element("tr", {}, ...heads)),
      element("tbody", {}, ...run.threads.map((thread) => this.row(run, thread))));
    const syncs = run.syncs.map(({ thread, joined, step }) => element("li", {},
      `In pass ${step}, ${called(run.threads[thread])} read ${joined.map((one) => called(run.threads[one])).join(", ")}.`));
    const box = element("div", { class: "scrolls", tabindex: "0", role: "group", "aria-label": "The run as a table" }, table);
    this.root.replaceChildren(this.root.querySelector("summary"), box, element("ul", {}, ...syncs));
  }

  row(run, thread) {
    const { spans } = thread;
    const waited = spans.slice(1).reduce((sum, [, first], index) => sum + first - spans[index][2], 0);
    const passes = spans.length ? `${spans[0][1]}–${spans.at(-1)[2] - 1}` : "none";
    const parent = thread.parent === null ? "" : nameOf(run.threads[thread.parent]);
    const seen = thread.seen?.[0];
    const others = Object.entries(seen?.threads ?? {}).map(([other, count]) => `${count} of ${called(run.threads[other])}`);
    const sight = seen ? [`${seen.prompt} of the prompt`, ...others].join(", ") : "not known";
    const cells = [parent, passes, plural(waited, "pass"), thread.tokens.length, thread.promised ?? "", sight, thread.finish_reason ?? ""];
    return element("tr", {}, element("th", { scope: "row" }, nameOf(thread)), ...cells.map((cell) => element("td", {}, String(cell))));
  }
}
