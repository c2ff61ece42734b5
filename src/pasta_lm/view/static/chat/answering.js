// One answer while the server sends it: its text in reading order, and its run pass by pass.

import { textOf } from "../reading.js";
import { Run } from "../run.js";

const FIGURES = ["theoretical_speedup", "parallelism", "critical_path_tokens", "tokens_per_s", "wall_s", "cut_at"];

export class Answering {
  // ``before`` is the text so far of an answer that is continued.
  constructor(asked, before = "") {
    this.asked = asked;
    this.run = new Run(asked.strategy, { strategy: asked.strategy, kind: "generated" });
    this.answer = { state: "writing", text: before, before, asked };
  }

  take(piece) {
    const { answer, run } = this;
    answer.model ??= piece.model;
    answer.text += piece.choices[0]?.delta?.content ?? "";
    const facts = piece.pasta;
    run.takePiece(piece);
    if (facts?.kind === "finished") this.finish(facts);
    else if (facts && !facts.kind) answer.asked = { ...this.asked, ...facts }; // as it was limited
  }

  finish(facts) {
    const { answer, run } = this;
    answer.run = run.data;
    const { finish_reason, strategy } = run.facts;
    const named = FIGURES.map((name) => [name, facts[name]]);
    answer.figures = { ...Object.fromEntries(named), num_threads: run.threads.length, finish_reason, strategy };
    answer.state = "finished";
  }

  // The stream is over. Of an answer without its end, the text of all threads is kept.
  end(state, error = null) {
    const { answer, run } = this;
    answer.ended_ms = Date.now();
    run.isOver = true;
    if (run.isComplete) return;
    answer.text = answer.before + textOf(run);
    answer.state = state;
    answer.error = error;
  }
}
