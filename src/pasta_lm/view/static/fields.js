// The fields of a schema as a list of keys and values, while they are decoded: of a thread each, or of JSON by one thread.

import { chip, element, look, plural, visible } from "./elements.js";
import { isText, stretches } from "./reading.js";
import { decodingTime } from "./run.js";

export const JSON_MODE = "JSON mode";
const PARTS = "parts"; // the strategy of a run whose threads are fields
const LIKELY = 0.8; // a value that is less likely should be read again
const ALIKE = 1.05; // times that are nearer to each other count as the same
export const FIELD_KINDS = {
  str: { type: "string" }, int: { type: "integer" }, float: { type: "number" }, bool: { type: "boolean" },
  list: { type: "array", items: { type: "string" } },
};
const ENDS = /^[\s,}\]]*$/; // what stands behind a value

// The run whose threads are the fields that all runs have, or null.
export function filledRun(runs) {
  return runs.find(({ facts }) => facts.strategy === PARTS) ?? null;
}

// A schema that one thread holds to the same keys: those that it does not require are required all the same.
function withAllKeys(schema) {
  const { properties } = schema ?? {};
  if (typeof properties !== "object" || properties === null) return schema;
  const parts = Object.fromEntries(Object.entries(properties).map(([key, part]) => [key, withAllKeys(part)]));
  return { additionalProperties: false, ...schema, required: Object.keys(parts), properties: parts };
}

// The schema that a box holds: JSON, or names of fields, each with a kind or none: "guest, nights int, paid bool".
export function schemaOf(text) {
  if (/^\s*[{[]/.test(text)) return withAllKeys(JSON.parse(text));
  const properties = new Map();
  for (const field of text.trim().split(/\s*[,\n]\s*/)) {
    const [name, kind = "str", ...more] = field.trim().split(/\s+/);
    if (!/^[\w-]+$/.test(name) || more.length) throw new Error(`"${field.trim()}" is not a name, or a name and a kind; separate fields by commas or lines.`);
    if (properties.has(name)) throw new Error(`The field ${name} stands twice.`);
    if (!Object.hasOwn(FIELD_KINDS, kind)) throw new Error(`${name}: there is no kind ${kind}; one of ${Object.keys(FIELD_KINDS).join(", ")}.`);
    properties.set(name, FIELD_KINDS[kind]);
  }
  return withAllKeys({ type: "object", properties: Object.fromEntries(properties) });
}

// A whole number that a double does not hold, digit by digit; where the browser cannot, as it is.
function exactly(_, value, { source } = {}) {
  const isLarge = typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(source);
  return isLarge && JSON.rawJSON ? JSON.rawJSON(source) : value;
}

// The value of JSON whose end may be missing; undefined, if there is none yet.
function valueOf(text) {
  for (let end = text.length; end > 0; end--) {
    const start = text.slice(0, end);
    if (!/^\s*[[{]/.test(text) && !ENDS.test(text.slice(end))) return undefined;
    try {
      return JSON.parse(start + closing(start), exactly);
    } catch {
      // it ends within a key or a word
    }
  }
  return undefined;
}

// What closes the strings, lists and objects that a text has opened.
function closing(text) {
  const [bare, ...open] = text.replace(/"(?:[^"\\]|\\.)*"/gs, "").split('"');
  const ends = [];
  for (const sign of bare) {
    if (sign === "{" || sign === "[") ends.unshift(sign === "{" ? "}" : "]");
    if (sign === "}" || sign === "]") ends.shift();
  }
  return (open.length ? '"' : "") + ends.join("");
}

// A token of a field, without the comma or brace that ends the field.
export function withoutEnd(before, text) {
  const bare = (before + text).replace(/[\s,}]+$/, "");
  return valueOf(bare) !== undefined && closing(bare) === "" ? bare.slice(before.length) : text;
}

// The values in an object by their names, in the order of the text; ``names`` are those of the fields.
function valuesIn(value, names, path = []) {
  return Object.entries(value ?? {}).flatMap(([key, part]) => {
    const name = [...path, key].join(".");
    const isOpened = typeof part === "object" && part && !Array.isArray(part) && !names.includes(name);
    return isOpened ? valuesIn(part, names, [...path, key]) : [[name, part]];
  });
}

export class FieldList {
  constructor(run, filled) {
    Object.assign(this, { run, filled, rows: [] });
    this.table = element("table", { class: "field-list", "aria-label": `Fields, ${run.name}` });
    this.places = element("div", { class: "places", hidden: "" });
    this.root = element("div", {}, this.table, this.places);
  }

  // The object as text, for the clipboard.
  get text() {
    return this.run.text || this.rows.map(({ name, value }) => `${name}: ${JSON.stringify(value)}`).join("\n");
  }

  show(passes = Infinity) {
    const { run, filled } = this;
    const threads = filled.threads.slice(1);
    const names = this.namesOf(threads);
    const values = run === filled ? threads.map(({ id }) => written(run, id, passes)) : this.ofOneThread(names, passes);
    this.rows = threads.map((thread, index) => ({ thread, name: names[index], value: values[index] }));
    const isEnd = run.isComplete && passes >= run.passes;
    const known = isEnd ? run.fields : null;
    this.isEnd = isEnd;
    const told = isEnd && filled.isComplete ? threads.map(({ id }) => JSON.stringify(written(filled, id, Infinity))) : null;
    this.numOther = told ? values.filter((value, index) => JSON.stringify(value) !== told[index]).length : null;
    const heads = ["Field", "Value"].map((name) => element("th", { scope: "col" }, name));
    if (run === filled) heads.push(element("th", { scope: "col", title: "under the model, among all values that the kind of the field allows" }, "Probability"));
    this.table.replaceChildren(element("thead", {}, element("tr", {}, ...heads)),
      element("tbody", {}, ...this.rows.map((row, index) => this.line(row, known, told !== null && JSON.stringify(row.value) !== told[index]))));
    this.showPlaces(known);
  }

  // Topics are cut to three words; whole names come with the end of the answer. Numbers would change the order of keys.
  namesOf(threads) {
    const names = Object.keys(this.filled.fields?.confidence ?? {});
    const isWhole = names.length === threads.length && !names.some((name) => /^\d+$/.test(name));
    return isWhole ? names : threads.map(({ topic }) => topic);
  }

  ofOneThread(names, passes) {
    const text = stretches(this.run, passes).map((one) => one.text).join("");
    const values = new Map(valuesIn(valueOf(text), names));
    return names.map((name) => values.get(name));
  }

  line({ thread, name: key, value }, known, isOther) {
    const shown = typeof value === "string" && (value || !this.isEnd) ? visible(value) : element("code", {}, value === undefined ? "" : visible(JSON.stringify(value)));
    const name = visible(key).split(/(?<=_)/).flatMap((word) => [word, element("wbr")]); // long names break there
    if (this.run !== this.filled) {
      const told = isOther ? element("mark", { class: "other", title: "not the value of the fields at once" }, shown) : shown;
      return element("tr", {}, element("th", { scope: "row" }, ...name), element("td", {}, told));
    }
    const part = element("span", { class: `part ${look(thread.id).hue}`, "data-thread": thread.id }, shown);
    const head = element("th", { scope: "row", class: "numbered" }, chip(thread), " ", ...name);
    return element("tr", {}, head, element("td", {}, part), element("td", { class: "likely" }, known && likely(key, known)));
  }

  // The document, with the place of each text that a field has from it.
  showPlaces(known) {
    const placed = this.rows.map(({ thread: { id }, name }) => ({ id, place: known?.spans?.[name] })).filter(({ place }) => place);
    this.places.hidden = this.run !== this.filled || !placed.length;
    if (this.places.hidden) return;
    const [letters, nodes] = [Array.from(known.document), []]; // places count characters
    let at = 0;
    for (const { id, place: [start, stop] } of placed.toSorted((one, other) => one.place[0] - other.place[0])) {
      if (start < at) continue; // within another one
      const part = { class: `part ${look(id).hue} place`, "data-thread": id };
      nodes.push(visible(letters.slice(at, start).join("")), element("mark", part, visible(letters.slice(start, stop).join(""))));
      at = stop;
    }
    nodes.push(visible(letters.slice(at).join("")));
    this.places.replaceChildren(element("h4", {}, "Where they stand"), element("p", {}, ...nodes));
  }
}

// How likely the model holds a value; "look again" where that is little; "unfinished" where a limit cut the value, or it cannot be read.
function likely(name, { confidence, unfinished }) {
  if (unfinished.includes(name)) return element("span", { class: "doubted" }, "unfinished");
  const share = confidence[name] ?? null;
  if (share === null) return "not known";
  if (share >= LIKELY) return percent(share);
  return element("span", { class: "doubted" }, `${percent(share)} `, element("span", { class: "again" }, "look again"));
}

function percent(share) {
  return share > 0 && share < 0.01 ? "below 1 %" : `${Math.floor(100 * share)} %`;
}

// The fields at once against JSON mode, which has done the same job: a sentence, once both are over; or "".
// The times are those behind the prompt, which only the first of the runs computes.
export function verdict(filled, other, numOther) {
  if (!filled?.isComplete || !other?.isComplete || [filled, other].some(({ facts }) => facts.kind !== "generated")) return "";
  const [ours, theirs] = [filled, other].map(decodingTime);
  const times = `Behind the prompt, fields at once: ${ours.toFixed(2)} s. ${JSON_MODE}: ${theirs.toFixed(2)} s`;
  if (other.facts.cut_at !== null) return `${times}, cut by a limit at ${plural(other.facts.cut_at, "token")}: the times do not compare.`;
  const cut = filled.fields?.unfinished ?? [];
  if (cut.length || filled.facts.cut_at !== null) return `${times}. Unfinished: ${cut.map(visible).join(", ") || "the answer"}. The times do not compare.`;
  const [ratio, count] = [theirs / ours, filled.threads.length - 1];
  const speed = ratio > ALIKE ? `${ratio.toFixed(1)} times as long` : ratio < 1 / ALIKE ? `${(1 / ratio).toFixed(1)} times as fast` : "no slower and no faster";
  return `${times}, ${speed}. ${numOther ? `${numOther} of ${plural(count, "value")} differ.` : "All values are the same."}`;
}

// What a thread has written of its field: a value, or the text as it stands.
function written(run, id, passes) {
  const tokens = run.threads[id].tokens.filter(({ role, decoded }) => isText(role) && decoded + 1 <= passes);
  const text = tokens.map((token) => token.text).join("").trim();
  const value = valueOf(text); // null is one
  return value === undefined && text ? text : value;
}
