// The list of earlier conversations on the empty page: search, open, delete.

import { button, element, visible } from "../elements.js";
import { discard, shelved } from "./library.js";

const MAX_SHOWN = 8; // the search finds the others

export class Shelf {
  // ``open`` takes the stored text of a conversation.
  constructor(root, open) {
    Object.assign(this, { root, open });
    this.search = element("input", { type: "search", "aria-label": "Search the conversations", placeholder: "Search" });
    this.search.addEventListener("input", () => this.draw());
    this.list = element("ul", {});
    this.all = button("Delete all", () => this.remove(null));
    this.heading = element("h2", {}, "Earlier conversations");
    this.note = element("p", { class: "note" }, "Kept in this browser only.");
    root.append(this.heading, this.search, this.list, element("p", {}, this.all), this.note);
  }

  async show() {
    this.kept = await shelved();
    this.draw();
  }

  draw() {
    const words = this.search.value.toLowerCase().trim();
    const found = this.kept.filter(({ title, text }) => `${title} ${text}`.toLowerCase().includes(words));
    const isEmpty = this.kept.length === 0;
    for (const node of [this.heading, this.search, this.list, this.all, this.note]) node.hidden = isEmpty;
    this.list.replaceChildren(...found.slice(0, MAX_SHOWN).map((one) => this.line(one)));
    if (!found.length) this.list.append(element("li", {}, "None has these words."));
  }

  line({ id, title, changed_ms, text }) {
    const day = new Date(changed_ms).toLocaleDateString(undefined, { day: "numeric", month: "short" });
    return element("li", {},
      button(visible(title), () => this.open(text), { class: "title" }), element("span", {}, day),
      button("Delete", () => this.remove(id), { "aria-label": `Delete ${visible(title)}` }));
  }

  async remove(id) {
    await discard(id);
    await this.show();
  }
}
