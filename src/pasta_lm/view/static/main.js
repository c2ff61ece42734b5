// The page: reads the runs that stand in it, or asks the server, and puts the views together.

import { AnswerView } from "./answer.js";
import { AnswersView } from "./answers.js";
import { byId, element } from "./elements.js";
import { filledRun } from "./fields.js";
import { InspectorView } from "./inspector.js";
import { AskForm } from "./live.js";
import { TimelineView } from "./timeline.js";
import { Player } from "./player.js";
import { Run } from "./run.js";
import { Stage } from "./stage.js";
import { FactsView, TableView } from "./table.js";
import { offerColours, offerTheme } from "./theme.js";

let current = null;
let prose = null; // what draws Markdown; there is none without a server

// A root without what earlier views put and heard there.
function emptied(id) {
  const root = byId(id);
  const fresh = root.cloneNode(false);
  root.replaceWith(fresh);
  return fresh;
}

// Put the views of runs on the page; more runs may be added to the stage that is returned.
function showRuns(runs) {
  if (current) current.isClosed = true;
  const stage = new Stage(runs);
  current = stage;
  byId("main").hidden = byId("keys").hidden = byId("player").hidden = false;
  if (stored) new FactsView(stage, byId("title"), byId("facts"));
  new Player(stage, emptied("player"));
  emptied("timeline");
  const timelines = runs.map((run) => new TimelineView(stage, run, byId("timeline")));
  stage.on("runs", () => {
    runs.slice(timelines.length).forEach((run) => timelines.push(new TimelineView(stage, run, byId("timeline"))));
  });
  const showTexts = () => {
    const hasTags = stage.run.tokens.some(({ role }) => role === "topic");
    byId("written").parentElement.hidden = filledRun([stage.run]) !== null || (stage.run.isOver && !hasTags);
    byId("main").classList.toggle("of-fields", filledRun(runs) !== null);
    byId("beside").hidden = stored && runs.length < 2 && !filledRun(runs); // a file shows its one answer below
  };
  stage.on("run grow", showTexts);
  showTexts();
  new AnswersView(stage, emptied("answers"), prose);
  new InspectorView(stage, emptied("inspector"));
  new AnswerView(stage, emptied("answer"), { withTags: false, label: "Answer" });
  new AnswerView(stage, emptied("written"), { withTags: true, label: "Written form" });
  new TableView(stage, byId("table"));
  return stage;
}

offerTheme(byId("theme"));
offerColours(byId("colours"));
const stored = byId("runs");
if (stored) {
  showRuns(JSON.parse(stored.textContent).map((data) => Run.stored(data)));
} else {
  byId("main").hidden = byId("keys").hidden = true;
  byId("facts").before(element("nav", { "aria-label": "Pages" },
    element("a", { href: "index.html", "aria-current": "page" }, "Compare"), element("a", { href: "chat.html" }, "Chat")));
  const form = new AskForm(byId("ask"), byId("facts"), showRuns, () => { byId("main").hidden = byId("keys").hidden = byId("player").hidden = true; });
  form.ready = import("./chat/prose.js").then((module) => { prose = module.Prose; }, () => {});
}
