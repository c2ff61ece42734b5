// What went wrong, in the reader's words, with what helps: the same on both pages.

import { button, element, visible } from "./elements.js";

const TOO_LONG = "context_length_exceeded";
const KINDS = [ // the first that holds, and the act that helps
  [({ status }) => status === 401, null, "key"],
  [({ code }) => code === TOO_LONG, "This is longer than the model can read.", "shorten"],
  [({ status }) => status === 429 || status === 503, "The server is busy or pauses.", "retry"],
  [({ status }) => status >= 400 && status < 500, "The server cannot answer this.", "change"],
  [({ status }) => status >= 500, "The server failed.", "retry"],
  [() => true, null, "retry"],
];
const NAMES = { key: "Enter the key", shorten: "Retry without the oldest turn", change: "Change the question", retry: "Retry" };

// ``acts`` has what can be done: some of key, shorten, change and retry.
export function problem({ message, status = null, code = null, wait = null, hasKey = false }, acts) {
  if (status === 401) message = hasKey ? "The API key is wrong." : "This server wants an API key.";
  const [, sentence, helps] = KINDS.find(([holds]) => holds({ status, code }));
  const offered = acts[helps] ? [helps] : helps === "shorten" ? ["change"] : [];
  if (status === null || status >= 500 || status === 401 || status === 429) offered.push("retry");
  if (status === 400 && acts.shorten) offered.push("shorten");
  const buttons = [...new Set(offered)].filter((name) => acts[name]).map((name) => button(NAMES[name], acts[name], { "data-changes": "", "data-act": name }));
  const root = element("div", { class: "failed" },
    element("p", {}, sentence ? element("strong", {}, `${sentence} `) : null, visible(message)), ...buttons);
  const retry = buttons.find((node) => node.dataset.act === "retry");
  if (wait && retry) countDown(retry, Number(wait), acts.retry);
  return root;
}

// Try again by itself when the server said, unless the message is gone by then.
function countDown(node, seconds, act) {
  node.textContent = seconds > 0 ? `Retry in ${seconds} s` : "Retry";
  setTimeout(() => {
    if (!node.isConnected) return;
    if (seconds > 1) countDown(node, seconds - 1, act);
    else act();
  }, 1000);
}
