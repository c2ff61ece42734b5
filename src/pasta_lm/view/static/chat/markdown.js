// Markdown as nodes: the parser's tokens become elements here, and nothing is parsed as HTML.
//
// HTML in the text is text. Links lead to http and https only; images are shown as links.

import { copier } from "../copying.js";
import { element, visible } from "../elements.js";
import { Pen, withoutMarks } from "../reading.js";
import MarkdownIt from "../vendor/markdown-it/markdown-it.esm.min.js";

const MAX_CHARACTERS = 100_000; // a longer text is shown as it was written
const HEADING_OFFSET = 2; // the page has h1 and h2 of its own
const LAST_HEADING = 6;

const parser = new MarkdownIt({ html: false, linkify: false, typographer: false });
parser.validateLink = (address) => /^https?:\/\//i.test(address);
const { normalizeLink } = parser;
parser.normalizeLink = (address) => normalizeLink(withoutMarks(address));

// The nodes of a text with marks (see reading.js); the last ones of threads that write are marked.
export function markdown(text, writing = new Set()) {
  const [root, pen] = [document.createDocumentFragment(), new Pen()];
  if (text.length > MAX_CHARACTERS) root.append(element("p", { class: "as-written" }, ...pen.write(text)));
  else build(parser.parse(text, {}), root, pen);
  for (const table of root.querySelectorAll("table")) {
    const box = element("div", { class: "scrolls", tabindex: "0", role: "group", "aria-label": "Table" });
    table.replaceWith(box);
    box.append(table);
  }
  for (const thread of writing) pen.last.get(thread)?.classList.add("writing");
  return root;
}

function build(tokens, root, pen) {
  const open = [root];
  for (const token of tokens) {
    if (token.hidden) continue; // the paragraphs of a tight list
    if (token.type === "inline") {
      build(token.children, open.at(-1), pen);
    } else if (token.nesting < 0) {
      open.pop();
    } else {
      const nodes = nodesOf(token, pen);
      open.at(-1).append(...nodes);
      if (token.nesting > 0) open.push(nodes[0]);
    }
  }
}

function nodesOf(token, pen) {
  switch (token.type) {
    case "softbreak":
      return ["\n"];
    case "hardbreak":
    case "hr":
      return [element(token.tag)];
    case "code_inline":
      return [element("code", {}, ...pen.write(token.content, { isCode: true }))];
    case "code_block":
    case "fence":
      return [code(token, pen)];
    case "image":
      return [link(token.attrGet("src"), ...pen.write(token.content || "image"))];
    case "link_open":
      return [link(token.attrGet("href"))];
    case "heading_open":
      return [element(`h${Math.min(LAST_HEADING, Number(token.tag.slice(1)) + HEADING_OFFSET)}`)];
    case "ordered_list_open":
      return [element("ol", { start: token.attrGet("start") })];
    case "th_open":
    case "td_open":
      return [cell(token)];
    default:
      return token.nesting > 0 ? [element(token.tag)] : pen.write(token.content);
  }
}

function link(address, ...children) {
  const to = { href: address, title: visible(address), target: "_blank", rel: "noopener noreferrer" };
  return element("a", to, ...children);
}

function code(token, pen) {
  pen.write(token.info.match(/[\u{f0000}-\u{ffffd}]/u)?.[0] ?? ""); // the thread that began the block
  const language = visible(withoutMarks(token.info).trim().split(/\s+/)[0]);
  const content = token.content.replace(/\n$/, "");
  const text = element("code", {}, ...pen.write(content, { isCode: true }));
  const label = language ? `Code in ${language}` : "Code";
  return element("div", { class: "code" },
    element("div", { class: "code-head" }, element("span", {}, language), copier(() => withoutMarks(content), { "aria-label": "Copy code" })),
    element("pre", { tabindex: "0", role: "group", "aria-label": label }, text));
}

function cell(token) {
  const side = /text-align:(left|center|right)/.exec(token.attrGet("style") ?? "")?.[1];
  return element(token.tag, { class: side ? `to-${side}` : null });
}
