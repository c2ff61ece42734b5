// What is picked, in words: a thread, or a token and exactly what its thread could see.

import { called, chip, element, nameOf, plural, visible } from "./elements.js";

const MAX_NAMED = 8; // threads that a sentence names
const HINT = "Pick a word, a tag or a bar: the page shows what its thread could see when it wrote it.";

export class InspectorView {
  constructor(stage, root) {
    this.stage = stage;
    this.root = root;
    stage.on("pick run", () => this.show());
    this.show();
  }

  show() {
    const { picked, run } = this.stage;
    if (!picked) return this.root.replaceChildren(element("p", { class: "hint" }, HINT));
    const thread = run.threads[picked.thread];
    const lines = picked.token ? this.ofToken(run, thread, picked.token) : this.ofThread(run, thread);
    const close = element("button", { type: "button", class: "close", "aria-label": "Let go" }, "×");
    close.addEventListener("click", () => this.stage.pick(null));
    return this.root.replaceChildren(chip(thread), element("div", {}, ...lines), close);
  }

  ofThread(run, thread) {
    const promised = thread.promised === null ? "" : `, about ${thread.promised} promised`;
    const parent = thread.parent === null ? "" : `, forked by ${called(run.threads[thread.parent])}`;
    const [first, last] = [thread.spans[0]?.[1], thread.spans.at(-1)?.[2]];
    const when = first === undefined ? "It was fed in no pass." : `It was fed in passes ${first} to ${last - 1}.`;
    return [
      element("p", {}, element("strong", {}, nameOf(thread)), parent, `: ${plural(thread.tokens.length, "token")}${promised}. ${when}`),
    ];
  }

  ofToken(run, thread, token) {
    const kind = { content: "token", thought: "token of the thought", given: "token of the request", topic: "topic token", tag: "tag" }[token.role];
    const pass = token.decoded < 0 ? "the prefill" : `pass ${token.decoded}`;
    const critical = token.critical ? ", on the critical path" : "";
    const description = `${kind} ${token.index + 1} of ${thread.tokens.length} of ${called(thread)}, written in ${pass}${critical}.`;
    const text = element("q", { class: "quoted" }, visible(token.text).slice(0, 80));
    return [element("p", {}, text, ` is ${description}`), element("p", { class: "sight" }, ...this.sight(run, thread, token))];
  }

  sight(run, thread, token) {
    const row = run.seenBy(token);
    if (!row) return ["The trace does not tell what it could see."];
    const first = [plural(row.prompt, "token") + " of the prompt"];
    const [seen, hidden] = [[], []];
    for (const other of run.threads) {
      const count = run.numSeen(token, other.id);
      const name = called(other);
      const written = other.tokens.filter(({ decoded }) => decoded < token.decoded).length;
      if (count && other.id === thread.id) first.push(`the ${count} before it of its own`);
      else if (count) seen.push([count, name]);
      if (other.id !== thread.id && written > count) hidden.push([written - count, name]);
    }
    const sentence = [element("strong", {}, "Its thread could see "), `${[...first, ...listed(seen)].join(", ")}.`];
    if (hidden.length) sentence.push(element("strong", {}, " Written by then, but hidden from it: "), `${listed(hidden).join(", ")}.`);
    return sentence;
  }
}

// Counts of threads as words; of many threads the last ones in one sum.
function listed(counts) {
  const [named, rest] = counts.length > MAX_NAMED ? [counts.slice(0, MAX_NAMED - 1), counts.slice(MAX_NAMED - 1)] : [counts, []];
  const words = named.map(([count, name]) => `${count} of ${name}`);
  if (rest.length) words.push(`${rest.reduce((sum, [count]) => sum + count, 0)} of ${rest.length} more threads`);
  return words;
}
