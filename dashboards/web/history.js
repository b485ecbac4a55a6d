// The time machine: selects a step by slider, keys, number or milestone. The URL contains the selected step.

import { get } from "./api.js";
import { Course } from "./course.js";
import { byId, element } from "./dom.js";
import * as format from "./format.js";
import { t } from "./i18n.js";
import { onOverview } from "./live.js";
import { milestoneText } from "./milestone_marks.js";
import { Moments } from "./moments.js";
import { showMoment } from "./moment_view.js";

const PLAY_MS = 400; // interval between steps during playback
const PLAY_STEPS = 150; // number of steps to play the whole run
const LATE_STEPS = 20; // number of newest steps whose reports may still arrive
const REDRAW_MS = 30_000; // interval between drawings of the curve while the run continues

const slider = byId("step");
const course = new Course(byId("strip"));
const moments = new Moments();
let last = Number(slider.max);
let milestones = [];
let era = null;
let drawnAt = -Infinity;
let drawnLast = 0;
let playing = null;
let following = !location.hash; // true until the reader selects a step: the newest step is shown

function showProblem(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = !text;
}

// Shows the selected step; responses for steps that are no longer selected are discarded.
async function show() {
  const step = Number(slider.value);
  course.show(step);
  slider.setAttribute("aria-valuetext", t("curve.step", { step: format.count(step) }));
  byId("step-number").value = step;
  try {
    const moment = await moments.at(step, last);
    if (step !== Number(slider.value)) return;
    showMoment(step, moment);
    showProblem("");
  } catch (error) {
    showProblem(t("frame.failed", { reason: error.message }));
  }
}

function go(step) {
  const wanted = Math.max(1, Math.min(last, Math.round(step)));
  slider.value = wanted;
  following = wanted === last;
  history.replaceState(null, "", `${location.pathname}${location.search}#${wanted}`);
  return show();
}

function stop() {
  clearInterval(playing);
  playing = null;
  byId("play").textContent = byId("play").dataset.play;
}

function play() {
  if (playing) return stop();
  const stride = Math.max(1, Math.round(last / PLAY_STEPS));
  if (Number(slider.value) >= last) go(1);
  byId("play").textContent = byId("play").dataset.pause;
  playing = setInterval(() => {
    if (document.hidden) return;
    const next = Number(slider.value) + stride;
    go(next);
    if (next >= last) stop();
  }, PLAY_MS);
  return undefined;
}

function milestoneItem(milestone) {
  const button = element("button", { type: "button" }, milestoneText(milestone));
  button.addEventListener("click", () => {
    stop();
    go(milestone.step);
    slider.focus();
  });
  const facts = `${t("curve.step", { step: format.count(milestone.step) })} · ${format.moment(milestone.at)}`;
  return element("li", {}, button, element("span", { className: "muted" }, facts));
}

function showMilestones() {
  byId("milestones").replaceChildren(...milestones.map(milestoneItem));
  byId("no-milestones").hidden = milestones.length > 0;
}

function toMilestone(direction) {
  const here = Number(slider.value);
  const steps = milestones.map(({ step }) => step).sort((one, other) => one - other);
  const found = direction > 0 ? steps.find((step) => step > here) : steps.findLast((step) => step < here);
  if (found !== undefined) go(found);
}

// Updates the page when the run has advanced.
async function update(overview) {
  const { steps } = overview.totals;
  if (!steps) return;
  const returned = era !== null && era !== overview.era;
  era = overview.era;
  if (returned) moments.forget();
  last = steps;
  slider.max = last;
  byId("step-number").max = last;
  for (const id of ["controls", "go"]) byId(id).hidden = false;
  const old = performance.now() - drawnAt > REDRAW_MS && drawnLast !== last;
  if (returned || old) {
    drawnAt = performance.now();
    drawnLast = last;
    milestones = (await get("milestones")).milestones;
    showMilestones();
    await course.draw(last, milestones);
  }
  if (following && Number(slider.value) !== last) slider.value = last;
  const here = Number(slider.value);
  if (here !== Number(byId("moment").dataset.step) || here > last - LATE_STEPS) await show();
  else course.show(here);
}

function fromAddress() {
  const wanted = Number(location.hash.slice(1));
  if (Number.isInteger(wanted) && wanted > 0) go(wanted);
}

slider.addEventListener("input", () => go(Number(slider.value)));
slider.addEventListener("pointerdown", stop);
byId("go").addEventListener("submit", (event) => {
  event.preventDefault();
  stop();
  go(Number(byId("step-number").value));
});
for (const [id, act] of [
  ["earlier", () => go(Number(slider.value) - 1)],
  ["later", () => go(Number(slider.value) + 1)],
  ["newest", () => go(last)],
  ["milestone-before", () => toMilestone(-1)],
  ["milestone-after", () => toMilestone(1)],
]) {
  byId(id).addEventListener("click", () => {
    stop();
    act();
  });
}
byId("play").addEventListener("click", play);
window.addEventListener("hashchange", fromAddress);
fromAddress();
onOverview((overview) => {
  update(overview).catch((error) => showProblem(t("frame.failed", { reason: error.message })));
});
