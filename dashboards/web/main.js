// The page: one stream of overviews fills the numbers; the curve is fetched in pieces as steps complete.

import { drawCurve } from "./chart.js";
import * as format from "./format.js";

const $ = (id) => document.getElementById(id);
const curve = { era: 0, step: [], loss: [], samples: [] };
let validations = []; // of checkpoints, in order
let validationsKey = "";
let phases = []; // the run's, in order
const RECHECKED_STEPS = 20; // late reports still change the newest steps
let fetching = false;
let drawnKey = "";

// What peers could have written reaches the page as text only.
function text(id, value) {
  const node = $(id);
  if (node.textContent !== value) node.textContent = value;
}

function showState(state, label, banner = "") {
  $("state").dataset.state = state;
  text("state", label);
  text("banner", banner);
  $("banner").hidden = !banner;
}

function showBatch(progress) {
  const { samples_accumulated: samples, target_batch_size: target } = progress;
  text("next-step", format.count(progress.step + 1));
  text("batch-samples", `${format.count(samples)} samples`);
  text("batch-target", `of ${format.count(target)}`);
  const waiting = progress.peers === 0 ? "waiting for peers" : "";
  text("eta", progress.eta_s === null ? waiting : `about ${format.duration(progress.eta_s)} left`);
  $("fill").style.transform = `translateX(${100 * (Math.min(1, samples / target) - 1)}%)`;
  $("bar").setAttribute("aria-valuemax", String(target));
  $("bar").setAttribute("aria-valuenow", String(Math.min(samples, target)));
}

function showPhase(number) {
  const { text: contents } = phases[number - 1];
  text("phase", phases.length > 1 ? `phase ${number} of ${phases.length}: ${contents}` : "");
}

// Samples of those who train; what those gave who only average.
function contributionText(row) {
  if (row.samples === 0 && row.averaged_bytes > 0) {
    return `${format.size(row.averaged_bytes)} averaged, ${row.online ? "assists now" : "offline"}`;
  }
  const now = row.online ? `${format.perSecond(row.samples_per_second)}/s now` : "offline";
  return `${format.large(row.samples)} samples, ${format.share(row.share)}, ${now}`;
}

function contributionItem(row) {
  const item = document.createElement("li");
  item.dataset.online = String(row.online > 0);
  const line = document.createElement("p");
  line.className = "row";
  const who = document.createElement("span");
  who.className = "who";
  who.textContent = row.member;
  const what = document.createElement("span");
  what.className = "muted";
  what.textContent = contributionText(row);
  line.append(who, what);
  const bar = document.createElement("div");
  bar.className = "share";
  const fill = document.createElement("div");
  fill.style.width = `${100 * row.share}%`;
  bar.append(fill);
  item.append(line, bar);
  return item;
}

function showContributions(rows) {
  const given = rows.filter((row) => row.samples > 0 || row.averaged_bytes > 0 || row.online > 0);
  $("no-contributions").hidden = given.length > 0;
  $("contributions").replaceChildren(...given.map(contributionItem));
}

function showCheckpoint(checkpoint) {
  $("no-checkpoint").hidden = checkpoint !== null;
  $("checkpoint").hidden = checkpoint === null;
  if (checkpoint === null) return;
  text("checkpoint-step", format.count(checkpoint.step));
  text("checkpoint-time", format.moment(checkpoint.created_at));
  text("checkpoint-size", format.size(checkpoint.size_bytes));
  text("checkpoint-digest", checkpoint.manifest_sha256);
}

function showValidation(newest) {
  $("no-validation").hidden = newest !== null;
  $("validation").hidden = newest === null;
  if (newest === null) return;
  text("validation-step", format.count(newest.step));
  text("validation-loss", format.loss(newest.loss));
  text("validation-perplexity", format.perplexity(newest.perplexity));
  text("validation-accuracy", format.share(newest.accuracy));
  text("validation-order", newest.sop_accuracy === null ? "-" : format.share(newest.sop_accuracy));
  text("validation-samples", `${format.count(newest.samples)} of ${format.count(newest.sequence_length)} tokens`);
}

function show(overview) {
  const { run, progress, online, totals } = overview;
  document.title = totals.steps ? `${run.name}, step ${totals.steps} - manyhands` : `${run.name} - manyhands`;
  text("run-name", run.name);
  text("run-description", run.description);
  text("join", `manyhands join '${run.join_link}'`);
  phases = overview.phases;
  showPhase(progress.phase);
  showBatch(progress);
  text("loss", format.loss(overview.loss.last));
  text("peers", format.count(progress.peers));
  text("rate", format.perSecond(progress.samples_per_second));
  text("samples", format.large(totals.samples));
  text("data-wait", overview.data_wait.share === null ? "-" : format.share(overview.data_wait.share));
  text("members", format.count(online.members));
  showContributions(overview.contributions);
  showCheckpoint(overview.checkpoint);
  showValidation(overview.validation.newest);
  if (overview.stale) {
    const silent = "The keeper has not been heard of for a while: the numbers may be old. Training may well go on.";
    showState("stale", "keeper silent", progress.updated_at === null ? "" : silent);
  } else {
    showState("live", totals.steps ? "live" : "waiting for the first global step");
  }
}

function merge(page) {
  if (page.era !== curve.era) Object.assign(curve, { era: page.era, step: [], loss: [], samples: [] });
  const first = page.step[0];
  const kept = first === undefined ? curve.step.length : curve.step.filter((step) => step < first).length;
  for (const column of ["step", "loss", "samples"]) {
    curve[column].length = kept;
    curve[column].push(...page[column]);
  }
}

async function updateCurve(overview) {
  if (fetching) return;
  fetching = true;
  try {
    const last = curve.step.at(-1) ?? 0;
    const after = overview.era === curve.era ? Math.max(0, last - RECHECKED_STEPS) : 0;
    const answer = await fetch(`/api/v1/steps?after=${after}`);
    if (answer.ok) merge(await answer.json());
    await updateValidations(overview);
    await redraw();
  } finally {
    fetching = false;
  }
}

async function updateValidations({ era, validation: { count, newest } }) {
  const key = JSON.stringify([era, count, newest?.evaluated_at]);
  if (key === validationsKey) return;
  const answer = await fetch("/api/v1/validations");
  if (!answer.ok) return;
  validations = (await answer.json()).validations;
  validationsKey = key;
}

async function redraw(force = false) {
  const smooth = $("smooth").checked;
  const newest = curve.loss.slice(-RECHECKED_STEPS);
  const key = JSON.stringify([curve.era, curve.step.length, newest, validationsKey, smooth]);
  if (key === drawnKey && !force) return;
  await drawCurve($("chart"), curve, validations, smooth, phases);
  drawnKey = key;
}

function listen() {
  const source = new EventSource("/api/v1/events");
  source.addEventListener("overview", (event) => {
    const overview = JSON.parse(event.data);
    show(overview);
    updateCurve(overview).catch((error) => console.warn("the curve could not be drawn:", error));
  });
  source.addEventListener("error", () => {
    showState("disconnected", "reconnecting", "The connection to the coordinator is lost; reconnecting.");
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  });
}

$("smooth").addEventListener("change", () => redraw());
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(true));
listen();
