// The conversation over a reload: in the storage of this tab, bounded, and never the key.

import { Conversation } from "./conversation.js";

const PLACE = "pasta-lm.chat";
const MAX_CHARACTERS = 2_000_000;

// Store a conversation; return whether it could be stored. The runs of the newest answers go with it.
export function keep(conversation, settings) {
  if (!conversation.first) return forget();
  const bare = written(conversation, settings, new Set());
  let room = MAX_CHARACTERS - bare.length;
  if (room < 0) {
    forget();
    return false;
  }
  const runs = new Set();
  for (const { answer } of newest(conversation)) {
    room -= sizeOf(answer.run);
    if (room < 0) break;
    runs.add(answer.run);
  }
  return stored(written(conversation, settings, runs)) || stored(bare);
}

// What was stored, or null.
export function kept() {
  try {
    const data = JSON.parse(sessionStorage.getItem(PLACE));
    if (!data) return null;
    const conversation = new Conversation(data.first);
    for (const variant of conversation.variants()) {
      if (variant.answer?.state === "writing") variant.answer.state = "stopped";
    }
    return { conversation, settings: data.settings };
  } catch {
    return null; // of another version, or without storage
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

function written({ first }, settings, runs) {
  const drop = (key, value) => (key === "run" && !runs.has(value) ? undefined : value);
  return JSON.stringify({ settings, first }, drop);
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
