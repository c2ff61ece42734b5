// Elements of the page. Text enters as text: nothing here, or anywhere, parses HTML.

const SVG = "http://www.w3.org/2000/svg";
const NUM_HUES = 8;
const NUM_MARKS = 5;

// Controls and overrides of direction would act on the page, so they are shown by number.
const ACTS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

export function visible(text) {
  return text.replace(ACTS, (one) => {
    const number = one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    return `⟨U+${number}⟩`;
  });
}

export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((one) => one !== null));
  return node;
}

export function button(name, act, attributes = {}) {
  const node = element("button", { type: "button", ...attributes }, name);
  node.addEventListener("click", act);
  return node;
}

export function byId(id) {
  return document.getElementById(id);
}

// A colour and a mark for each thread. Eight and five have no common factor: forty pairs.
export function look(thread) {
  if (thread === 0) return { hue: "hue-main", mark: 0 };
  return { hue: `hue-${(thread - 1) % NUM_HUES}`, mark: (thread - 1) % NUM_MARKS };
}

export function nameOf(thread) {
  if (thread.parent === null) return "main";
  const topic = visible((thread.topic ?? "").split(/\s+/).join(" ").trim());
  return topic ? `${thread.id} ${topic}` : `thread ${thread.id}`;
}

// The name beside a chip, which has its number.
export function topicOf(thread) {
  return nameOf(thread).replace(/^\d+ /, "");
}

// The name inside a sentence, where a number alone would read as a count.
export function called(thread) {
  return thread.parent === null ? "main" : `thread ${nameOf(thread).replace(" ", " (")})`.replace("thread thread", "thread");
}

export function chip(thread) {
  const { hue, mark } = look(thread.id);
  const number = thread.parent === null ? "m" : String(thread.id);
  return element("span", { class: `chip ${hue} mark-${mark}`, "aria-hidden": "true" }, number);
}

const MEANINGS = {
  "theoretical speedup": "steps of the same text by one thread / critical path",
  tokens: "content tokens of all threads",
  parallelism: "content tokens of all threads / critical path",
  "critical path": "tokens that had to be decoded one after another",
  "tokens/s": "content tokens per second of wall clock",
};

export function figure(value, name) {
  return element("span", { class: "figure" }, element("strong", {}, String(value)), ` ${name}`);
}

// Figures with their names and what they mean, to be unfolded; those without a value are left out.
export function figures(all) {
  const items = all.filter(([value]) => value !== null).map(([value, name]) => element("li", {}, figure(value, name), `: ${MEANINGS[name]}`));
  return element("details", { class: "more-figures" }, element("summary", {}, "Figures"), element("ul", {}, ...items));
}

// What threads save over one thread, in a sentence.
export function gain(numThreads, speedup) {
  const threads = plural(numThreads, "thread");
  if (numThreads === 1 || !speedup) return threads;
  const ratio = (speedup >= 1 ? speedup : 1 / speedup).toFixed(1);
  const steps = ratio === "1.0" ? "as many steps as" : `${ratio} times ${speedup > 1 ? "fewer" : "more"} steps than`;
  return `${threads}, ${steps} one`;
}

export function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;
}
