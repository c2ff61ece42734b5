// A conversation: its turns, the variants of each, and what is sent and exported of them.
//
// A turn has variants, {question, answer, next}: asking again or editing a question adds one. What
// was said after a variant hangs on it (next), so that every earlier variant stays reachable.
// Knows nothing of the page or the server.

const MAX_TITLE = 120; // characters

export class Conversation {
  constructor(first = null, id = null) {
    this.first = first;
    this.id = id ?? `${Date.now()}-${Math.random()}`;
  }

  get title() {
    return this.first ? shown(this.first).question.slice(0, MAX_TITLE) : "";
  }

  // A conversation of an exported file.
  static imported(text) {
    const { turns } = JSON.parse(text);
    const conversation = new Conversation(turns);
    const isWhole = ({ question, answer }) => typeof question === "string" && typeof answer?.text === "string";
    if (!turns || ![...conversation.variants()].every(isWhole)) throw new TypeError("no turns");
    return conversation;
  }

  // The turns that are shown, from the first to the last.
  get turns() {
    const turns = [];
    for (let turn = this.first; turn; turn = shown(turn).next) turns.push(turn);
    return turns;
  }

  // Every variant, shown or not.
  *variants(turn = this.first) {
    for (const variant of turn?.variants ?? []) {
      yield variant;
      yield* this.variants(variant.next);
    }
  }

  ask(question) {
    const turn = { variants: [], shown: 0 };
    const last = this.turns.at(-1);
    this.vary(turn, question);
    if (last) shown(last).next = turn;
    else this.first = turn;
    return turn;
  }

  // Add a variant, which is shown from now on. Its number is its seed.
  vary(turn, question = shown(turn).question) {
    const seed = turn.variants.length;
    turn.variants.push({ question, seed, answer: null, next: null });
    turn.shown = seed;
  }

  // The earlier turns that have an answer; those without are not sent.
  answeredBefore(asked) {
    const turns = this.turns.slice(0, this.turns.indexOf(asked));
    return turns.map(shown).filter(({ answer }) => answer?.text);
  }

  // How many of them are not sent either, the oldest ones: the conversation grew too long for the model.
  numForgotten(asked) {
    const turns = this.turns.slice(0, this.turns.indexOf(asked) + 1);
    return Math.max(...turns.map((turn) => shown(turn).forgets ?? 0));
  }

  forgetOneMore(asked) {
    shown(asked).forgets = this.numForgotten(asked) + 1;
  }

  // The messages that ask for the answer of a turn.
  messagesFor(asked, system = "") {
    const first = system.trim() ? [message("system", system)] : [];
    const sent = this.answeredBefore(asked).slice(this.numForgotten(asked));
    const earlier = sent.flatMap(({ question, answer }) => [message("user", question), message("assistant", answer.text)]);
    return [...first, ...earlier, message("user", shown(asked).question)];
  }

  toMarkdown() {
    const parts = this.turns.flatMap((turn, index) => {
      const { question, answer } = shown(turn);
      const mark = answer?.state === "finished" ? "" : "\n\n(stopped)";
      return [`## Question ${index + 1}`, question, `## Answer ${index + 1}`, `${answer?.text ?? ""}${mark}`];
    });
    return `${parts.join("\n\n")}\n`;
  }

  // The whole conversation without its runs: the messages as they stand, and every variant.
  toJSON() {
    const messages = this.turns.flatMap((turn) => {
      const { question, answer } = shown(turn);
      return [message("user", question), message("assistant", answer?.text ?? "")];
    });
    return { messages, turns: plain(this.first) };
  }
}

export function shown(turn) {
  return turn.variants[turn.shown];
}

function message(role, content) {
  return { role, content };
}

// A tree of turns without runs and errors.
function plain(turn) {
  if (!turn) return null;
  const variants = turn.variants.map(({ question, seed, answer, next }) => {
    const { text = "", state = "stopped", model, asked, figures } = answer ?? {};
    return { question, seed, answer: { text, state, model, asked, figures }, next: plain(next) };
  });
  return { shown: turn.shown, variants };
}
