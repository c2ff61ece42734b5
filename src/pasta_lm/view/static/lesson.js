// What the pages show before the first question: a recorded run, drawn again and again, and the model.

import { chip, drawn, element, look, visible } from "./elements.js";

// The built-in model on "Describe spring, summer, autumn and winter.": when each thread wrote.
const TOPICS = ["main", "spring", "summer", "autumn", "winter"];
const LANES = [[0, 24], [3, 31], [9, 27], [17, 25], [23, 36]];
const [NUM_TOKENS, NUM_PASSES] = [71, 36];
export const UNTAUGHT = "This model was not taught to promise parts, so one thread writes its answer. What works with it as it is: fields of a text, on the page Compare; pasta fill and pasta ask in a terminal. pasta teach teaches it.";
const MEANING = "The model promises parts of its answer, and threads write them at the same time. Each has a colour and a lane; what they wrote is read as one text.";

export function lesson() {
  const names = TOPICS.map((name, id) => element("li", {}, chip({ id, parent: id ? 0 : null }), ` ${name}`));
  const picture = drawn("svg", { viewBox: `0 0 ${NUM_TOKENS} 6`, preserveAspectRatio: "none", "aria-hidden": "true" },
    ...LANES.map(([start, stop], row) => lane(row, start, stop)),
    drawn("rect", { class: "lane-ghost", x: 0, y: 5.2, width: NUM_TOKENS - 0.2, height: 0.6 }),
    drawn("rect", { class: "curtain", x: 0, y: 0, width: NUM_TOKENS, height: 6 }));
  return element("figure", { class: "lesson" },
    element("ol", { class: "lesson-names", "aria-hidden": "true" }, ...names, element("li", {}, "one thread")),
    picture,
    element("figcaption", {}, MEANING, element("span", { class: "record" },
      `A recorded run: five threads wrote ${NUM_TOKENS} tokens of text in ${NUM_PASSES} passes; one thread needs ${NUM_TOKENS}.`)));
}

function lane(row, start, stop) {
  return drawn("g", { class: look(row).hue }, drawn("rect", { class: "bar", x: start, y: row + 0.2, width: stop - start, height: 0.6 }));
}

// The model in a sentence, and the technical facts behind it.
export function modelFacts({ id, pasta }) {
  const { parameters, quality, device, dtype, positions, limits, version } = pasta;
  const size = parameters ? ` · ${parameters} parameters` : "";
  const facts = [[device, dtype].filter((one) => one && one !== "none").join(", "), positions && `positions ${positions}`, `at most ${limits.tokens} tokens an answer`, `pasta-lm ${version}`];
  return element("details", { class: "model" },
    element("summary", {}, visible(`${id}${size}`), quality ? element("span", { class: "warning" }, visible(` · ${quality}`)) : null),
    element("span", {}, visible(facts.filter(Boolean).join(" · "))));
}
