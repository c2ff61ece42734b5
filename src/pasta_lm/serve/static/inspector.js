// What is picked, in words: a thread, or a token and exactly what its thread could see.

import { called, chip, element, nameOf, plural, visible } from "./elements.js";

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
    const [first, last] = [run.stretches(thread.id)[0]?.[0], run.stretches(thread.id).at(-1)?.[1]];
    const when = first === undefined ? "It was fed in no pass." : `It was fed in passes ${first} to ${last - 1}.`;
    return [
      element("p", {}, element("strong", {}, nameOf(thread)), parent, `: ${plural(thread.tokens.length, "token")}${promised}. ${when}`),
    ];
  }

  ofToken(run, thread, token) {
    const kind = { content: "token", topic: "topic token", tag: "tag" }[token.role];
    const pass = token.decoded < 0 ? "the prefill" : `pass ${token.decoded}`;
    const critical = token.critical ? ", on the critical path" : "";
    const place = `${kind} ${token.index + 1} of ${thread.tokens.length} of ${called(thread)}, written in ${pass}${critical}.`;
    const text = element("q", { class: "quoted" }, visible(token.text).slice(0, 80));
    return [element("p", {}, text, ` is ${place}`), element("p", { class: "sight" }, ...this.sight(run, thread, token))];
  }

  sight(run, thread, token) {
    const row = run.seenBy(token);
    if (!row) return ["The trace does not tell what it could see."];
    const seen = [plural(row.prompt, "token") + " of the prompt"];
    const hidden = [];
    for (const other of run.threads) {
      const count = run.numSeen(token, other.id);
      const name = other.id === thread.id ? "its own" : called(other);
      const written = other.tokens.filter((one) => one.decoded < token.decoded).length;
      if (count) seen.push(other.id === thread.id ? `the ${count} before it of its own` : `${count} of ${name}`);
      if (other.id !== thread.id && written > count) hidden.push(`${written - count} of ${name}`);
    }
    const sentence = [element("strong", {}, "Its thread could see "), `${seen.join(", ")}.`];
    if (hidden.length) sentence.push(element("strong", {}, " Written by then, but hidden from it: "), `${hidden.join(", ")}.`);
    return sentence;
  }
}
