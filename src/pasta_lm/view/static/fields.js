// The fields of a schema as a list of keys and values, while they are decoded: of a thread each, or of JSON by one thread.

import { chip, element, look, topicOf, visible } from "./elements.js";
import { isText, stretches } from "./reading.js";

const PARTS = "parts"; // the strategy of a run whose threads are fields
const FIELD_KINDS = {
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
  return { required: Object.keys(parts), additionalProperties: false, ...schema, properties: parts };
}

// The schema that a box holds: JSON, or names of fields, each with a kind or none: "guest, nights int, paid bool".
export function schemaOf(text) {
  if (/^\s*[{[]/.test(text)) return withAllKeys(JSON.parse(text));
  const properties = {};
  for (const field of text.split(",")) {
    const [name, kind = "str", ...more] = field.trim().split(/\s+/);
    if (!/^[\w-]+$/.test(name) || more.length) throw new Error(`"${field.trim()}" is not a name, or a name and a kind; separate fields by commas.`);
    if (name in properties) throw new Error(`The field ${name} stands twice.`);
    if (!Object.hasOwn(FIELD_KINDS, kind)) throw new Error(`${name}: there is no kind ${kind}; one of ${Object.keys(FIELD_KINDS).join(", ")}.`);
    properties[name] = FIELD_KINDS[kind];
  }
  return withAllKeys({ type: "object", properties });
}

// The value of JSON whose end may be missing; undefined, if there is none yet.
function valueOf(text) {
  for (let end = text.length; end > 0; end--) {
    const start = text.slice(0, end);
    if (!/^\s*[[{]/.test(text) && !ENDS.test(text.slice(end))) return undefined;
    try {
      return JSON.parse(start + closing(start));
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
    this.root = element("table", { class: "field-list", "aria-label": `Fields, ${run.name}` });
  }

  // The object as text, for the clipboard.
  get text() {
    return this.run.text || this.rows.map(({ name, value }) => `${name}: ${JSON.stringify(value)}`).join("\n");
  }

  show(passes = Infinity) {
    const { run, filled } = this;
    const threads = filled.threads.slice(1);
    const values = run === filled ? threads.map(({ id }) => written(run, id, passes)) : this.ofOneThread(threads, passes);
    this.rows = threads.map((thread, index) => ({ thread, name: thread.topic, value: values[index] }));
    this.root.replaceChildren(element("tbody", {}, ...this.rows.map((row) => this.line(row))));
  }

  ofOneThread(threads, passes) {
    const names = threads.map(({ topic }) => topic);
    const text = stretches(this.run, passes).map((one) => one.text).join("");
    const values = new Map(valuesIn(valueOf(text), names));
    return names.map((name) => values.get(name));
  }

  line({ thread, value }) {
    const shown = typeof value === "string" ? visible(value) : element("code", {}, value === undefined ? "" : visible(JSON.stringify(value)));
    const name = topicOf(thread);
    if (this.run !== this.filled) return element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, shown));
    const part = { class: `part ${look(thread.id).hue}`, "data-thread": thread.id };
    return element("tr", {}, element("th", { scope: "row", class: "numbered" }, chip(thread), ` ${name}`), element("td", part, shown));
  }
}

// What a thread has written of its field: a value, or the text as it stands.
function written(run, id, passes) {
  const tokens = run.threads[id].tokens.filter(({ role, decoded }) => isText(role) && decoded + 1 <= passes);
  const text = tokens.map((token) => token.text).join("").trim();
  return text ? valueOf(text) ?? text : undefined;
}
