// The server's stream of one answer: its pieces as they come, its errors as sentences.

const BROKEN = "The connection broke before the answer was complete.";

export class Refused extends Error {
  constructor(message, { status = null, wait = null } = {}) {
    super(wait ? `${message} (try again in ${wait} s)` : message);
    this.status = status;
  }
}

// Ask, and yield the pieces of the stream up to its end.
export async function* answerPieces({ messages, asked, key, signal }) {
  const { strategy, ...sampling } = asked;
  const pasta = { strategy, stream: "events", trace: true };
  const reply = await reached("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...authorised(key) },
    body: JSON.stringify({ messages, stream: true, ...sampling, pasta }),
    signal,
  });
  for await (const data of dataOf(reply.body)) {
    const piece = JSON.parse(data);
    if (piece.error) throw new Refused(piece.error.message);
    yield piece;
  }
}

// The served model: its name, and what its server tells of it.
export async function servedModel(key) {
  const reply = await reached("v1/models", { headers: authorised(key) });
  return (await reply.json()).data[0];
}

function authorised(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function reached(path, request) {
  let reply;
  try {
    reply = await fetch(path, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server cannot be reached.");
  }
  if (reply.ok) return reply;
  const told = await reply.json().catch(() => null);
  const message = told?.error?.message ?? `The server answered with status ${reply.status}.`;
  throw new Refused(message, { status: reply.status, wait: reply.headers.get("Retry-After") });
}

// The data of server-sent events, up to [DONE].
async function* dataOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = []; // of a line whose end has not come
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new Refused(BROKEN);
    });
    if (done) throw new Refused(BROKEN);
    const found = value.split("\n");
    while (found.length > 1) {
      const line = [...parts, found.shift()].join("");
      parts = [];
      if (line === "data: [DONE]") return;
      if (line.startsWith("data: ")) yield line.slice(6);
    }
    parts.push(found[0]);
  }
}
