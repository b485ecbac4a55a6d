// Milestones as text and as marks on a chart. Pure functions without elements or requests.

import * as format from "./format.js";
import { t } from "./i18n.js";

const MOST_LINES = 8; // maximum number of lines in a tooltip; the history page lists all milestones
const LEAST_SAMPLES = 1000; // as in coordinator/statistics/milestones.py

export function milestoneText({ kind, value }) {
  return kind === "first-step" ? t("history.first-step") : t(`history.milestone_${kind}`, { n: format.decimal(value) });
}

// Groups milestones by position `at`; groups span at most `least`, so that marks do not touch.
export function grouped(placed, least) {
  const groups = [];
  for (const each of placed) {
    if (groups.length && each.at - groups.at(-1)[0].at <= least) groups.at(-1).push(each);
    else groups.push([each]);
  }
  return groups;
}

// Returns a mark's tooltip: the group in lines of HTML, with numbers and the page's own texts only.
export function groupText(group) {
  const lines = group.slice(0, MOST_LINES).map((each) => `${milestoneText(each)} · ${t("curve.step", { step: format.count(each.step) })}`);
  return [...lines, ...(group.length > MOST_LINES ? ["…"] : [])].join("<br>");
}

// The last sample milestone: `reached` by a number of samples, `marked` among milestones.
export const reached = (samples) => (samples < LEAST_SAMPLES ? 1 : 10 ** (String(samples).length - 1));
export const marked = (milestones) =>
  Math.max(0, ...milestones.filter(({ kind }) => kind === "samples" || kind === "first-step").map(({ value }) => value));
