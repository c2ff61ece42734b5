// What is shown, as files: one page that needs nothing else, and the trace of the run.

import { element } from "./elements.js";

const PLACE = 'id="runs">'; // of the runs, in the page that the server gives; there are none in it
const NONE = "[]";

// The page that `pasta view --html` writes; a browser reads no tag in ASCII without "<".
export function pageOf(empty, runs) {
  const at = empty.indexOf(PLACE + NONE) + PLACE.length;
  if (at < PLACE.length) throw new Error("The server's page has no place for runs.");
  const escaped = (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`;
  const data = JSON.stringify(runs).replace(/[<\u007f-\uffff]/g, escaped);
  return empty.slice(0, at) + data + empty.slice(at + NONE.length);
}

export function save(name, type, text) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
