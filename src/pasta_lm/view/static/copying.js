// Buttons that copy a text.

import { button, element } from "./elements.js";

const SHOWN_MS = 2000;

export function copier(text, attributes = {}) {
  const node = button("Copy", async () => {
    node.textContent = (await isCopied(text())) ? "Copied" : "Not copied";
    setTimeout(() => { node.textContent = "Copy"; }, SHOWN_MS);
  }, { class: "copy", ...attributes });
  return node;
}

// Browsers give the clipboard to pages of this machine or of https; others copy what is marked.
async function isCopied(text) {
  if (navigator.clipboard) {
    const isDone = await navigator.clipboard.writeText(text).then(() => true, () => false);
    if (isDone) return true;
  }
  const field = element("textarea", { class: "for-readers", "aria-hidden": "true" });
  const before = document.activeElement;
  field.value = text;
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  before?.focus();
  return isDone;
}
