// Requests to the server and the data of its streams; every error is a sentence.

const UNREACHED = "The server does not answer.";
const BROKEN = "The connection broke before the answer was complete.";

let isPressed = false; // a pointer, from its going down until its click was taken
document.addEventListener("pointerdown", () => { isPressed = true; }, true);
const release = () => setTimeout(() => { isPressed = false; });
for (const kind of ["pointerup", "pointercancel"]) document.addEventListener(kind, release, true);

export class Refused extends Error {
  constructor(message, { status = null, code = null, param = null, wait = null, hasKey = false } = {}) {
    super(message);
    Object.assign(this, { status, code, param, wait, hasKey });
  }
}

// The reply to a GET or, with a body, to a POST.
export async function reach(path, { key = "", body = null, signal = null } = {}) {
  const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  const method = body ? "POST" : "GET";
  const reply = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) }).catch((error) => {
    throw error.name === "AbortError" ? error : new Refused(UNREACHED);
  });
  if (reply.ok) return reply;
  const error = (await reply.json().catch(() => null))?.error;
  const { message = `The server answered with status ${reply.status}.`, code, param } = error ?? {};
  throw new Refused(message, { status: reply.status, code, param, wait: reply.headers.get("Retry-After"), hasKey: key !== "" });
}

// The served model: its name, and what the server can do with it. The click that ended the typing of
// the key comes first: what the reply changes would move its target away.
export async function servedModel(key) {
  try {
    return (await (await reach("v1/models", { key })).json()).data[0];
  } finally {
    while (isPressed) await new Promise((resolve) => setTimeout(resolve));
  }
}

// The pieces of a streamed reply, up to [DONE].
export const piecesOf = async function* (reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = []; // of a line whose end has not come
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new Refused(BROKEN);
    });
    if (done) throw new Refused(BROKEN);
    const lines = value.split("\n");
    while (lines.length > 1) {
      const line = [...parts, lines.shift()].join("");
      parts = [];
      if (line === "data: [DONE]") return;
      if (!line.startsWith("data: ")) continue;
      const piece = JSON.parse(line.slice(6));
      if (piece.error) throw new Refused(piece.error.message, { code: piece.error.code });
      yield piece;
    }
    parts.push(lines[0]);
  }
};

export function save(name, type, text) {
  const link = document.createElement("a");
  Object.assign(link, { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
