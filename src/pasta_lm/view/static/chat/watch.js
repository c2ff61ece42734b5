// The run of one answer in a dialog: the timeline, the answer, the written form and the replay.

import { AnswerView } from "../answer.js";
import { element, visible } from "../elements.js";
import { InspectorView } from "../inspector.js";
import { Player } from "../player.js";
import { Run } from "../run.js";
import { Stage } from "../stage.js";
import { TableView } from "../table.js";
import { TimelineView } from "../timeline.js";

export function watch(data, question) {
  const run = Run.stored(data);
  const stage = new Stage([run]);
  const close = element("button", { type: "button", class: "leave" }, "Close");
  const player = element("div", { id: "player", role: "group", "aria-label": "Replay" });
  const timeline = element("section", { id: "timeline", "aria-label": "Timeline: when each thread wrote" });
  const inspector = element("div", { id: "inspector", role: "status" });
  const [answer, answerText] = text("answer", "Answer");
  const [written, writtenText] = text("written", "Written form");
  const table = element("details", { id: "table" }, element("summary", {}, "The run as a table"));
  const heading = element("h2", { id: "watched" }, visible(question));
  const dialog = element("dialog", { class: "watch", "aria-labelledby": "watched" },
    element("div", { class: "watched" }, heading, close),
    player, timeline, inspector, element("div", { class: "texts" }, answer, written), table);
  document.body.append(dialog);
  dialog.showModal();
  // The views measure what they stand in, so they come when it is shown.
  new Player(stage, player);
  new TimelineView(stage, run, timeline);
  new InspectorView(stage, inspector);
  new AnswerView(stage, answerText, { withTags: false, label: "Answer" });
  new AnswerView(stage, writtenText, { withTags: true, label: "Written form" });
  new TableView(stage, table);
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("cancel", (event) => {
    if (!stage.picked) return;
    event.preventDefault(); // Escape lets go of what is picked first
    stage.pick(null);
  });
  dialog.addEventListener("close", () => {
    stage.isClosed = true;
    dialog.remove();
  });
}

function text(id, name) {
  const root = element("div", { id });
  const heading = element("h3", { id: `${id}-heading` }, name);
  return [element("section", { "aria-labelledby": `${id}-heading` }, heading, root), root];
}
