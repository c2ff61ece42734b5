// One run: its threads, tokens and clock. A stored run comes whole; a live one token by token.
//
// Pass s occupies [s, s + 1] on the clock of passes; what it wrote is there from s + 1 on. The
// prefill is pass -1. What a token could see and what is critical is stored, never computed here.

const DEFAULT_PASS_S = 0.02;

export class Run {
  constructor(name, facts = {}) {
    this.name = name;
    this.facts = facts;
    this.prefill_s = 0;
    this.step_s = [];
    this.threads = [];
    this.tokens = [];
    this.syncs = [];
    this.asked = null; // of a live run: {messages}, what the server was asked
    this.annotated = null; // its answer in the annotator form, if the server told it
  }

  static stored(data) {
    const run = new Run(data.name, data.facts);
    run.prefill_s = data.prefill_s;
    run.step_s = data.step_s;
    data.threads.forEach((thread) => run.addThread(thread));
    data.tokens.forEach((token) => run.addToken(token));
    run.syncs = data.syncs;
    run.annotated = data.annotated;
    return run;
  }

  addThread({ id, parent = null, topic = null, promised = null, finish_reason = null, seen = null }) {
    this.threads[id] = { id, parent, topic, promised, finish_reason, seen, tokens: [], children: [] };
    if (parent !== null) this.threads[parent].children.push(id);
  }

  addToken({ thread, text, role, decoded, fed = null, critical = false, forks = null }) {
    const { tokens } = this.threads[thread];
    const place = { number: this.tokens.length, index: tokens.length };
    const token = { ...place, thread, text, role, decoded, fed, critical, forks };
    this.tokens.push(token);
    tokens.push(token);
  }

  get passes() {
    return Math.max(1, this.facts.forward_passes ?? 0, this.step_s.length);
  }

  secondsAt(pass) {
    if (this.step_s.length === 0) return this.prefill_s + pass * DEFAULT_PASS_S;
    const whole = Math.min(Math.floor(pass), this.step_s.length);
    const before = whole > 0 ? this.step_s[whole - 1] : this.prefill_s;
    const after = this.step_s[whole] ?? before;
    return before + (pass - whole) * (after - before);
  }

  passAt(seconds) {
    let [low, high] = [0, this.passes];
    if (seconds >= this.secondsAt(high)) return high;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.secondsAt(middle) <= seconds) low = middle;
      else high = middle;
    }
    const [start, end] = [this.secondsAt(low), this.secondsAt(low + 1)];
    return low + (end > start ? Math.min(1, Math.max(0, (seconds - start) / (end - start))) : 0);
  }

  // The token of a thread that was written last when so many passes were over, or null.
  written(thread, passes) {
    const { tokens } = this.threads[thread];
    let [low, high] = [0, tokens.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tokens[middle].decoded < passes) low = middle + 1;
      else high = middle;
    }
    return tokens[low - 1] ?? null;
  }

  // What stands in a token's stored row: {prompt, threads}; its own thread is not in it.
  seenBy(token) {
    const rows = this.threads[token.thread].seen;
    return rows?.findLast((row) => row.index <= token.index) ?? null;
  }

  numSeen(token, thread) {
    if (thread === token.thread) return token.index;
    return this.seenBy(token)?.threads[thread] ?? 0;
  }

  // The passes in which a thread was fed, as [first, last + 1], neighbours joined.
  stretches(thread) {
    const found = [];
    for (const { fed } of this.threads[thread].tokens) {
      if (fed === null) continue;
      const last = found.at(-1);
      if (last && fed <= last[1]) last[1] = Math.max(last[1], fed + 1);
      else found.push([fed, fed + 1]);
    }
    return found;
  }

  // The tokens as they are read, in parts of one thread: a block stands behind its promise.
  parts() {
    const parts = [];
    const add = (thread) => {
      let part = { thread, tokens: [], isStart: true };
      parts.push(part);
      for (const token of this.threads[thread].tokens) {
        part.tokens.push(token);
        if (token.forks === null) continue;
        add(token.forks);
        part = { thread, tokens: [], isStart: false };
        parts.push(part);
      }
      const forked = new Set(this.threads[thread].tokens.map((token) => token.forks));
      this.threads[thread].children.filter((child) => !forked.has(child)).forEach(add);
    };
    if (this.threads.length) add(0);
    return parts;
  }
}
