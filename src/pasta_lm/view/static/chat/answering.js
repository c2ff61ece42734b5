// One answer while the server sends it: its text in reading order, and its run pass by pass.

import { Run } from "../run.js";

const FIGURES = ["theoretical_speedup", "parallelism", "critical_path_tokens", "tokens_per_s", "wall_s", "cut_at"];

export class Answering {
  constructor(asked) {
    this.asked = asked;
    this.run = new Run(asked.strategy, { strategy: asked.strategy, kind: "generated" });
    this.answer = { state: "writing", text: "", asked };
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
    answer.figures = { ...Object.fromEntries(named), finish_reason, strategy };
    answer.state = "finished";
  }

  // The stream is over. Of an answer without its end, the text of all threads is kept.
  end(state, error = null) {
    const { answer, run } = this;
    answer.ended_ms = Date.now();
    run.isOver = true;
    if (run.isComplete) return;
    answer.text = run.threads.length ? textOf(run, run.threads[0]) : "";
    answer.state = state;
    answer.error = error;
  }
}

// The text of a thread, each block behind its promise; a skeleton is no part of the answer.
function textOf(run, thread) {
  const forked = new Set(thread.tokens.map((token) => token.forks));
  const others = thread.children.filter((child) => !forked.has(child));
  const isSkeleton = run.name.startsWith("sot") && thread.parent === null && others.length > 0;
  const parts = thread.tokens.map(({ role, text, forks }) => {
    if (forks !== null && run.threads[forks]) return textOf(run, run.threads[forks]);
    return !isSkeleton && isText(role) ? text : "";
  });
  return [...parts, ...others.map((child) => textOf(run, run.threads[child]))].join("");
}

// Whether tokens of a role are text of the answer: written, or given with a request for a part of it.
export function isText(role) {
  return role === "content" || role === "given";
}
