// Markdown as nodes: the parser's tokens become elements here, and nothing is parsed as HTML.
//
// HTML in the text is text. Links lead to http and https only; images are shown as links.

import { element, visible } from "../elements.js";
import MarkdownIt from "../vendor/markdown-it/markdown-it.esm.min.js";

const MAX_CHARACTERS = 100_000; // a longer text is shown as it was written
const HEADING_OFFSET = 2; // the page has h1 and h2 of its own
const LAST_HEADING = 6;

const parser = new MarkdownIt({ html: false, linkify: false, typographer: false });
parser.validateLink = (address) => /^https?:\/\//i.test(address);

export function markdown(text) {
  const root = document.createDocumentFragment();
  if (text.length > MAX_CHARACTERS) {
    root.append(element("p", { class: "as-written" }, visible(text)));
    return root;
  }
  build(parser.parse(text, {}), root);
  for (const table of root.querySelectorAll("table")) {
    const box = element("div", { class: "scrolls", tabindex: "0", role: "group", "aria-label": "Table" });
    table.replaceWith(box);
    box.append(table);
  }
  return root;
}

function build(tokens, root) {
  const open = [root];
  for (const token of tokens) {
    if (token.hidden) continue; // the paragraphs of a tight list
    if (token.type === "inline") {
      build(token.children, open.at(-1));
    } else if (token.nesting < 0) {
      open.pop();
    } else {
      const node = nodeOf(token);
      open.at(-1).append(node);
      if (token.nesting > 0) open.push(node);
    }
  }
}

function nodeOf(token) {
  switch (token.type) {
    case "softbreak":
      return "\n";
    case "hardbreak":
    case "hr":
      return element(token.tag);
    case "code_inline":
      return element("code", {}, visible(token.content));
    case "code_block":
    case "fence":
      return code(token);
    case "image":
      return link(token.attrGet("src"), visible(token.content) || "image");
    case "link_open":
      return link(token.attrGet("href"));
    case "heading_open":
      return element(`h${Math.min(LAST_HEADING, Number(token.tag.slice(1)) + HEADING_OFFSET)}`);
    case "ordered_list_open":
      return element("ol", { start: token.attrGet("start") });
    case "th_open":
    case "td_open":
      return cell(token);
    default:
      return token.nesting > 0 ? element(token.tag) : visible(token.content);
  }
}

function link(address, ...children) {
  const to = { href: address, title: visible(address), target: "_blank", rel: "noopener noreferrer" };
  return element("a", to, ...children);
}

function code(token) {
  const [language] = token.info.trim().split(/\s+/);
  const label = language ? `Code in ${visible(language)}` : "Code";
  const text = element("code", {}, visible(token.content.replace(/\n$/, "")));
  return element("pre", { tabindex: "0", role: "group", "aria-label": label }, text);
}

function cell(token) {
  const side = /text-align:(left|center|right)/.exec(token.attrGet("style") ?? "")?.[1];
  return element(token.tag, { class: side ? `to-${side}` : null });
}
