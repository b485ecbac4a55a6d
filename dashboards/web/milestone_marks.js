// Milestones in words and as marks on a chart. Pure: no element, no request.

import * as format from "./format.js";
import { t } from "./i18n.js";

const MOST_LINES = 8; // of one mark's words; the time machine tells all
const LEAST_SAMPLES = 1000; // coordinator/statistics/milestones.py has no fewer

export function milestoneText({ kind, value }) {
  return kind === "first-step" ? t("history.first-step") : t(`history.milestone_${kind}`, { n: format.decimal(value) });
}

// Milestones that stand at { at } in groups: those at most `least` after the first of a group would touch it.
export function grouped(placed, least) {
  const groups = [];
  for (const each of placed) {
    if (groups.length && each.at - groups.at(-1)[0].at <= least) groups.at(-1).push(each);
    else groups.push([each]);
  }
  return groups;
}

// What a mark says: all of its group, in lines of HTML that holds numbers and our own texts alone.
export function groupText(group) {
  const lines = group.slice(0, MOST_LINES).map((each) => `${milestoneText(each)} · ${t("curve.step", { step: format.count(each.step) })}`);
  return [...lines, ...(group.length > MOST_LINES ? ["…"] : [])].join("<br>");
}

// The milestone of samples that a run with so many has come to, and the one that these milestones end with.
export const reached = (samples) => (samples < LEAST_SAMPLES ? 1 : 10 ** (String(samples).length - 1));
export const marked = (milestones) =>
  Math.max(0, ...milestones.filter(({ kind }) => kind === "samples" || kind === "first-step").map(({ value }) => value));
