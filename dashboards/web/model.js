// The model page: questions to the model, and its evaluations and checkpoints as they arrive.

import { get } from "./api.js";
import { fewSamples } from "./checkpoint_choice.js";
import { CheckpointList } from "./checkpoint_list.js";
import { makeCopyButtons } from "./copy_button.js";
import { byId, element, setText } from "./dom.js";
import { EvaluationChart } from "./evaluation_chart.js";
import * as format from "./format.js";
import { t } from "./i18n.js";
import { onOverview } from "./live.js";
import { TaskCharts } from "./task_charts.js";
import { answerContent, ask } from "./try_it.js";

const chart = new EvaluationChart();
const taskCharts = new TaskCharts();
const form = byId("try");
const checkpoints = new CheckpointList(byId("checkpoints"), form.dataset.auto);
let steps = (form.dataset.steps.match(/\d+/g) ?? []).map(Number); // steps of the checkpoints to ask, in order
let asked = ""; // the sentence whose answers are shown
let known = "";

function showProblem(text) {
  byId("try-problem").textContent = text;
  byId("try-problem").hidden = !text;
}

// Adds a placeholder for a step's answer, filled when the answer arrives; the newest step is first.
async function showAnswer(text, step) {
  const name = t(step === steps.at(-1) ? "model.newest" : "model.at_step", { step: format.count(step) });
  const place = element("article", { className: "answer", "data-step": String(step) }, element("h3", {}, name));
  const state = element("p", { className: "muted" }, t("model.waiting"));
  place.append(state);
  byId("answers").append(place);
  try {
    const answer = await ask(text, step, (ahead) => {
      state.textContent = ahead ? t("model.ahead", { n: format.count(ahead) }, ahead) : t("model.waiting");
    });
    state.replaceWith(...answerContent(answer));
    return true;
  } catch (error) {
    if (byId("answers").childElementCount === 1) place.remove();
    else state.textContent = error.message;
    showProblem(error.message);
    return false;
  }
}

async function whileBusy(button, work) {
  if (button.getAttribute("aria-disabled") === "true") return;
  button.setAttribute("aria-disabled", "true"); // a disabled button would lose the focus
  showProblem("");
  try {
    await work();
  } finally {
    button.removeAttribute("aria-disabled");
  }
}

async function askNewest() {
  byId("answers").replaceChildren();
  byId("ask-earlier").hidden = true;
  asked = byId("sentence").value;
  if (await showAnswer(asked, steps.at(-1))) byId("ask-earlier").hidden = steps.length < 2;
}

async function askEarlier() {
  const shown = new Set([...byId("answers").children].map((place) => Number(place.dataset.step)));
  const earlier = steps.filter((step) => !shown.has(step)).reverse();
  for (const step of earlier) if (!(await showAnswer(asked, step))) return;
  byId("ask-earlier").hidden = true;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  whileBusy(form.querySelector("button"), askNewest);
});
byId("ask-earlier").addEventListener("click", (event) => whileBusy(event.currentTarget, askEarlier));

// Warns that scores on few samples are rough.
function showCaveat(validations) {
  const samples = fewSamples(validations);
  byId("few-samples").hidden = samples === null;
  setText("few-samples", samples === null ? "" : t("model.few_samples", { n: format.count(samples) }, samples));
}

async function update({ era, run, checkpoint, validation, tasks }) {
  const key = JSON.stringify([era, checkpoint, validation.count, validation.newest?.evaluated_at, tasks]);
  if (key === known) return;
  const [trial, listed, evaluated, published, judged] = await Promise.all([
    get("trials"),
    get("checkpoints"),
    get("validations"),
    get("publications"),
    get("evaluations"),
  ]);
  steps = trial.steps;
  form.hidden = !trial.on;
  byId("try-off").hidden = trial.on;
  checkpoints.show(listed.checkpoints, evaluated.validations, published.publications, run.name);
  showCaveat(evaluated.validations);
  await chart.show(evaluated.validations);
  await taskCharts.show(judged.tasks);
  known = key;
}

makeCopyButtons();
onOverview((overview) => {
  update(overview).catch((error) => console.warn("the model's facts did not load:", error.message));
});
