// The line under an answer: figures as the server sends them; none is computed here.

import { element, figures, gain, plural, visible } from "../elements.js";

export function figuresOf({ figures: found, asked, before }) {
  const { theoretical_speedup, parallelism, critical_path_tokens, tokens_per_s, wall_s, cut_at, num_threads = 1, strategy } = found;
  const large = tokens_per_s === null ? plural(critical_path_tokens, "step") : `${wall_s.toFixed(2)} s`;
  const remarks = [
    cut_at === null ? gain(num_threads, theoretical_speedup) : `cut at ${plural(cut_at, "token")}`,
    strategy === asked.strategy ? null : `answered by ${visible(strategy)}`,
    before ? "of the part written last" : null,
  ].filter(Boolean);
  return element("div", { class: "figures" }, element("strong", { class: "large" }, large), element("span", {}, remarks.join("; ")),
    figures([
      [cut_at === null ? `${theoretical_speedup.toFixed(2)}×` : null, "theoretical speedup"],
      [parallelism.toFixed(2), "parallelism"],
      [critical_path_tokens, "critical path"],
      [tokens_per_s?.toFixed(1) ?? null, "tokens/s"],
    ]));
}
