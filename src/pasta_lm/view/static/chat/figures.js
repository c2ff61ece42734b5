// The line under an answer: figures as the server sends them; none is computed here.

import { element, figure, plural, visible } from "../elements.js";

const MEANINGS = {
  "theoretical speedup": "passes of the same text by one thread / critical path",
  parallelism: "content tokens of all threads / critical path",
  "critical path": "tokens that had to be decoded one after another",
  "tokens/s": "content tokens per second of wall clock",
};

export function figures({ figures: found, asked }) {
  const { theoretical_speedup, parallelism, critical_path_tokens, tokens_per_s, cut_at, strategy } = found;
  const line = element("p", { class: "figures" },
    cut_at === null ? explained(`${theoretical_speedup.toFixed(2)}×`, "theoretical speedup") : remark(`cut at ${plural(cut_at, "token")}`),
    explained(parallelism.toFixed(2), "parallelism"),
    explained(critical_path_tokens, "critical path"),
    tokens_per_s === null ? remark("no wall clock (simulated)") : explained(tokens_per_s.toFixed(1), "tokens/s"));
  if (strategy !== asked.strategy) line.append(remark(`answered by ${visible(strategy)}`));
  return line;
}

function explained(value, name) {
  const node = figure(value, name);
  node.title = MEANINGS[name];
  return node;
}

function remark(text) {
  return element("span", { class: "figure" }, text);
}
