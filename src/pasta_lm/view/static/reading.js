// The text of a run in the order of reading, and the same text with a mark where another thread goes on.
//
// A mark is a character for private use, one for each thread. It stands behind the signs of Markdown
// with which a stretch begins, so that a parser of Markdown reads the text as if there were no marks.

import { element, look, visible } from "./elements.js";

const FIRST_MARK = 0xf0000;
const MARKS = /[\u{f0000}-\u{ffffd}]/gu;
const SIGNS = /^(?:\d+[.)][ \t]|[\s>#*+\-`~|_[(:=.)])*/;
const PAIRS = ["**", "`"]; // what a thread may have opened and not closed yet

// Whether tokens of a role are text of the answer: written, or given with a request for a part of it.
export function isText(role) {
  return role === "content" || role === "given";
}

// Stretches {thread, text} of what was written within so many passes, each block behind its promise.
export function stretches(run, passes = Infinity, thread = run.threads[0], found = []) {
  if (!thread) return found;
  const forked = new Set(thread.tokens.map((token) => token.forks));
  const others = thread.children.filter((child) => !forked.has(child));
  const isSkeleton = run.name.startsWith("sot") && thread.parent === null && others.length > 0; // no part of the answer
  for (const { role, text, forks, decoded } of thread.tokens) {
    if (decoded + 1 > passes) break;
    if (forks !== null && run.threads[forks]) stretches(run, passes, run.threads[forks], found);
    else if (!isSkeleton && isText(role)) {
      if (found.at(-1)?.thread === thread.id) found.at(-1).text += text;
      else found.push({ thread: thread.id, text });
    }
  }
  for (const child of others) stretches(run, passes, run.threads[child], found);
  return found;
}

// The thought of main before the answer, as far as it is decoded.
export function thoughtOf(run) {
  const tokens = run.threads[0]?.tokens ?? [];
  return tokens.map(({ role, text }) => (role === "thought" ? text : "")).join("").trim();
}

export function textOf(run) {
  return stretches(run).map(({ text }) => text).join("");
}

export function withoutMarks(text) {
  return text.replace(MARKS, "");
}

// The text with its marks. What the threads in ``writing`` have opened is closed at their ends.
export function marked(run, passes, writing) {
  const all = stretches(run, passes);
  let [text, at] = ["", null];
  for (const [index, { thread, text: written }] of all.entries()) {
    const isTip = writing.has(thread) && !all.slice(index + 1).some((later) => later.thread === thread);
    const clean = (isTip ? closed(written) : written).replace(MARKS, "\ufffd");
    const num = at === thread ? 0 : SIGNS.exec(clean)[0].length;
    const isMarked = at !== thread && num < clean.length;
    text += isMarked ? clean.slice(0, num) + String.fromCodePoint(FIRST_MARK + thread) + clean.slice(num) : clean;
    if (isMarked) at = thread;
  }
  return text;
}

function closed(text) {
  const isFenced = (text.match(/^\s*```/gm) ?? []).length % 2 === 1;
  if (isFenced) return `${text}\n\`\`\`\n`;
  const start = text.lastIndexOf("\n") + 1;
  let line = text.slice(start);
  for (const sign of PAIRS) {
    if (line.split(sign).length % 2 === 0) line = line.endsWith(sign) ? line.slice(0, -sign.length) : line.trimEnd() + sign;
  }
  return text.slice(0, start) + line;
}

// Writes marked text as nodes: each stretch in the colour of its thread, whose number it begins with.
export class Pen {
  constructor() {
    this.thread = 0;
    this.numbered = new Set([0]);
    this.last = new Map(); // by thread: the node in which it wrote last
  }

  write(text, { isCode = false } = {}) {
    const nodes = [];
    for (const stretch of text.split(/(?=[\u{f0000}-\u{ffffd}])/u)) {
      const mark = stretch.codePointAt(0) ?? 0;
      if (mark >= FIRST_MARK) this.thread = mark - FIRST_MARK;
      const words = withoutMarks(stretch);
      if (words) nodes.push(this.part(words, isCode));
    }
    return nodes;
  }

  part(words, isCode) {
    const { thread } = this;
    const { hue, mark } = look(thread);
    const number = element("span", { class: `chip ${hue} mark-${mark}`, "data-number": thread, "aria-hidden": "true" });
    const isNew = !isCode && !this.numbered.has(thread);
    const part = element("bdi", { class: `part ${hue} line-${mark}`, "data-thread": thread }, isNew ? number : null, visible(words));
    if (isNew) this.numbered.add(thread);
    this.last.set(thread, part);
    return part;
  }
}
