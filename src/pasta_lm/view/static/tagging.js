// Operations on the tags of a text in the annotator form; the text between the tags stays the same.
//
// Each takes the text and the selection, and returns what to put where, and what to select then; or
// {refused} with the reason. Whether the outcome is valid, the server tells.

const TAG = /<async(?:\s+[A-Za-z_][\w.:-]*\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'=<>/]+))*\s*>|<\/async\s*>|<sync\s*\/>/g;
const TOPIC_WORDS = 3;
const TOPIC_CHARACTERS = 64;
const WHERE = { inside: "Blocks hold no other blocks: remove the one around the selection first.", none: "Select the words of the block first." };

function tagsOf(text) {
  return [...text.matchAll(TAG)].map((found) => {
    const kind = found[0].startsWith("<sync") ? "sync" : found[0].startsWith("</") ? "close" : "open";
    return { kind, start: found.index, end: found.index + found[0].length };
  });
}

// The opening and the closing tag of the block around a place, or null.
function blockAround(tags, place) {
  const open = tags.findLast((tag) => tag.kind !== "sync" && tag.start < place);
  const closing = tags.find((tag) => tag.kind === "close" && tag.end > place);
  const between = tags.filter((tag) => tag.kind === "open" && tag.start >= place && tag.start < (closing?.start ?? 0));
  if (open?.kind === "close" && place < open.end) return blockAround(tags, open.start);
  return open?.kind === "open" && closing && between.length === 0 ? { open, closing } : null;
}

// Make the selected text a block. Spaces in front of it come in, as a word has them with it.
export function makeBlock(text, from, to) {
  const tags = tagsOf(text);
  let [start, end] = [from, to];
  while (end > start && text[end - 1] === " ") end -= 1;
  if (text.slice(start, end).trim() === "") return { refused: WHERE.none };
  while (text[start - 1] === " ") start -= 1;
  const isCut = tags.some((tag) => [start, end].some((place) => tag.start < place && place < tag.end));
  const within = tags.filter((tag) => tag.start >= start && tag.end <= end);
  const count = (kind) => within.filter((tag) => tag.kind === kind).length;
  if (isCut || count("open") !== count("close") || (within.length && within[0].kind === "close")) {
    return { refused: "The selection begins or ends inside another block." };
  }
  if (blockAround(tags, start) || blockAround(tags, end)) return { refused: WHERE.inside };
  const inner = text.slice(start, end).replace(TAG, "");
  const topic = topicOf(inner);
  const head = '<async topic="';
  const first = start + head.length;
  return { start, end, text: `${head}${topic}">${inner}</async>`, select: [first, first + topic.length] };
}

function topicOf(text) {
  const found = text.match(/[\p{L}\p{N}][\p{L}\p{N}'’-]*/gu) ?? [];
  const topic = [...found.slice(0, TOPIC_WORDS).join(" ")].slice(0, TOPIC_CHARACTERS).join("").trim();
  return topic || "a part";
}

// Remove the tags of the block in which the caret stands.
export function removeBlock(text, from) {
  const block = blockAround(tagsOf(text), from);
  if (!block) return { refused: "The caret stands in no block." };
  const { open, closing } = block;
  const inner = text.slice(open.end, closing.start);
  return { start: open.start, end: closing.end, text: inner, select: [open.start, open.start + inner.length] };
}

// Insert a sync at the caret, in front of spaces that end there.
export function insertSync(text, from) {
  const tags = tagsOf(text);
  let place = tags.find((tag) => tag.start < from && from < tag.end)?.end ?? from;
  if (blockAround(tags, place)) return { refused: "A sync stands between blocks, never inside one." };
  while (text[place - 1] === " ") place -= 1;
  const tag = "<sync/>";
  return { start: place, end: place, text: tag, select: [place + tag.length, place + tag.length] };
}

// The index of a line and a column, which count from 1, in characters.
export function indexOf(text, line, column) {
  const lines = text.split("\n");
  const before = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
  return before + [...(lines[line - 1] ?? "")].slice(0, column - 1).join("").length;
}
