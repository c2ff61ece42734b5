// The page: reads the runs that stand in it and puts the views together.

import { AnswerView } from "./answer.js";
import { InspectorView } from "./inspector.js";
import { TimelineView } from "./timeline.js";
import { Player } from "./player.js";
import { Run } from "./run.js";
import { Stage } from "./stage.js";
import { FactsView, TableView } from "./table.js";

function byId(id) {
  return document.getElementById(id);
}

function showRuns(runs) {
  const stage = new Stage(runs);
  new FactsView(stage, byId("title"), byId("facts"));
  new Player(stage, byId("player"));
  byId("timeline").replaceChildren();
  runs.forEach((run) => new TimelineView(stage, run, byId("timeline")));
  new InspectorView(stage, byId("inspector"));
  new AnswerView(stage, byId("answer"), { withTags: false, label: "Answer" });
  new AnswerView(stage, byId("written"), { withTags: true, label: "Written form" });
  new TableView(stage, byId("table"));
  return stage;
}

function switchTheme() {
  const { classList } = document.documentElement;
  const wasDark = classList.contains("dark")
    || (!classList.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
  classList.toggle("dark", !wasDark);
  classList.toggle("light", wasDark);
}

byId("theme").addEventListener("click", switchTheme);
const stored = byId("runs");
if (stored) showRuns(JSON.parse(stored.textContent).map((data) => Run.stored(data)));
