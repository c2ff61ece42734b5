// The line under an answer: figures as the server sends them; none is computed here.

import { element, figure, plural, visible } from "../elements.js";

export function figures({ figures: found, asked, before }) {
  const { theoretical_speedup, parallelism, critical_path_tokens, tokens_per_s, cut_at, strategy } = found;
  const line = element("p", { class: "figures" },
    cut_at === null ? figure(`${theoretical_speedup.toFixed(2)}×`, "theoretical speedup") : remark(`cut at ${plural(cut_at, "token")}`),
    figure(parallelism.toFixed(2), "parallelism"),
    figure(critical_path_tokens, "critical path"),
    tokens_per_s === null ? remark("no wall clock (simulated)") : figure(tokens_per_s.toFixed(1), "tokens/s"));
  if (strategy !== asked.strategy) line.append(remark(`answered by ${visible(strategy)}`));
  if (before) line.append(remark("(of the part written last)"));
  return line;
}

function remark(text) {
  return element("span", { class: "figure" }, text);
}
