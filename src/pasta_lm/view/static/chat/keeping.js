// The conversation over a reload, in the storage of this tab, and beyond it on the shelf: bounded, and never the key.

import { Conversation } from "./conversation.js";
import { shelve } from "./library.js";

const PLACE = "pasta-lm.chat";
const MAX_CHARACTERS = 2_000_000;

// Store a conversation for this tab, and on the shelf for others; return whether it could be stored.
export function keep(conversation, settings) {
  if (!conversation.first) return forget();
  const { id, title } = conversation;
  const text = bounded(conversation, settings);
  if (text === null) forget();
  else shelve({ id, title, changed_ms: Date.now(), text });
  return text !== null && (stored(text) || stored(written(conversation, settings, new Set())));
}

// A conversation as text, with the runs of its newest answers; null if it is too long without any.
function bounded(conversation, settings) {
  const bare = written(conversation, settings, new Set());
  let room = MAX_CHARACTERS - bare.length;
  if (room < 0) return null;
  const runs = new Set();
  for (const { answer } of newest(conversation)) {
    room -= sizeOf(answer.run);
    if (room < 0) break;
    runs.add(answer.run);
  }
  return written(conversation, settings, runs);
}

// What was stored for this tab, or null.
export function kept() {
  try {
    return readBack(sessionStorage.getItem(PLACE));
  } catch {
    return null; // without storage
  }
}

// A stored text as {conversation, settings}, or null.
export function readBack(text) {
  try {
    const data = JSON.parse(text);
    if (!data) return null;
    const conversation = new Conversation(data.first, data.id);
    for (const variant of conversation.variants()) {
      if (variant.answer?.state === "writing") variant.answer.state = "stopped";
    }
    return { conversation, settings: data.settings };
  } catch {
    return null; // of another version
  }
}

function forget() {
  try {
    sessionStorage.removeItem(PLACE);
  } catch {
    return false;
  }
  return true;
}

function stored(text) {
  try {
    sessionStorage.setItem(PLACE, text);
    return true;
  } catch {
    return false; // full, or switched off
  }
}

function written({ id, first }, settings, runs) {
  const drop = (key, value) => (key === "run" && !runs.has(value) ? undefined : value);
  return JSON.stringify({ settings, id, first }, drop);
}

function newest(conversation) {
  const answered = [...conversation.variants()].filter((variant) => variant.answer?.run);
  return answered.sort((one, other) => other.answer.ended_ms - one.answer.ended_ms);
}

const sizes = new WeakMap();

function sizeOf(run) {
  if (!sizes.has(run)) sizes.set(run, JSON.stringify(run).length);
  return sizes.get(run);
}
