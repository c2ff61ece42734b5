// One run: its threads, tokens and clock. A stored run comes whole; a live one pass by pass.
//
// Pass s occupies [s, s + 1] on the clock of passes; what it wrote is there from s + 1 on. The
// prefill is pass -1. Places, sight, the critical path and what compares with what are stored, never
// computed here.

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
    this.forks = []; // lines between lanes: [source, start, target, end]
    this.joins = [];
    this.critical = []; // of a whole run: [thread, first pass, pass after the last]
    this.text = ""; // of a live run
    this.isComplete = false;
    this.isOver = false; // complete, or given up
    this.data = null; // the stored form
    this.fields = null; // of a filled run: {confidence, spans, unfinished} by field, and the document
    this.asked = null; // of a live run: {messages, max_threads}, what the server was asked
  }

  static stored(data) {
    const run = new Run(data.name);
    run.complete(data);
    return run;
  }

  // Take a piece of the server's stream.
  takePiece({ choices, pasta }) {
    this.text += choices[0]?.delta?.content ?? "";
    const { kind, thread, finish_reason, news, run: data, trace, theoretical_speedup, confidence, spans, unfinished } = pasta ?? {};
    if (kind === "traced") this.take(news);
    if (kind === "ended" && this.threads[thread]) this.threads[thread].finish_reason = finish_reason;
    if (kind === "finished") {
      const fields = confidence && { confidence, spans, unfinished: unfinished ?? [], document: this.asked.messages.at(-1).content };
      this.complete(fields ? { ...data, fields } : data);
      Object.assign(this, { trace, theoretical_speedup });
    }
  }

  // Take what one pass of a live run has added.
  take({ kind, prefill_s, step_s, threads, tokens, fed, lanes, syncs, forks, joins, seen }) {
    this.facts.kind = kind;
    this.prefill_s = prefill_s;
    this.step_s.push(...step_s);
    threads.forEach((thread) => this.addThread(thread));
    tokens.forEach((token) => this.addToken(token));
    for (const [number, pass] of fed) this.tokens[number].fed = pass;
    for (const [number, pass] of lanes) extend(this.threads[number].spans, number, pass);
    this.syncs.push(...syncs);
    this.forks.push(...forks);
    this.joins.push(...joins);
    for (const { thread, ...row } of seen) (this.threads[thread].seen ??= []).push(row);
  }

  // Take the stored form. What is there already stays, so that what is picked stays picked.
  complete(data) {
    const isSame = ({ thread, text }, index) => data.tokens[index]?.thread === thread && data.tokens[index].text === text;
    if (!this.tokens.every(isSame)) [this.threads, this.tokens] = [[], []];
    const { facts, prefill_s, step_s, syncs, forks, joins, critical, fields = null } = data;
    Object.assign(this, { facts, prefill_s, step_s, syncs, forks, joins, critical, fields });
    Object.assign(this, { data: { ...data, name: this.name }, isComplete: true, isOver: true });
    data.threads.slice(this.threads.length).forEach((thread) => this.addThread(thread));
    data.tokens.slice(this.tokens.length).forEach((token) => this.addToken(token));
    data.threads.forEach(({ finish_reason, spans, seen }, id) => Object.assign(this.threads[id], { finish_reason, spans, seen }));
    data.tokens.forEach(({ decoded, fed, critical }, number) => Object.assign(this.tokens[number], { decoded, fed, critical }));
  }

  addThread(thread) {
    const { id, parent } = thread;
    this.threads[id] = { ...thread, spans: [...thread.spans], tokens: [], children: [] };
    if (parent !== null) this.threads[parent].children.push(id);
  }

  addToken({ thread, text, role, decoded, fed = null, critical = false, forks = null }) {
    const { tokens } = this.threads[thread];
    const numbers = { number: this.tokens.length, index: tokens.length };
    const token = { ...numbers, thread, text, role, decoded, fed, critical, forks };
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
}

// Add a pass to the spans of a thread, neighbours joined.
function extend(spans, thread, pass) {
  const last = spans.at(-1);
  if (last && pass <= last[2]) last[2] = Math.max(last[2], pass + 1);
  else spans.push([thread, pass, pass + 1]);
}

// Seconds behind the prompt, which the first of several runs computes and the others may copy.
export function decodingTime({ facts, prefill_s }) {
  return facts.wall_s - (prefill_s ?? 0);
}
