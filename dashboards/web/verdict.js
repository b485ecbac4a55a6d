// The top of the overview: the verdict on the run in one sentence, and the whole run's progress.

import { archived } from "./api.js";
import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";
import { language, t } from "./i18n.js";

const list = new Intl.ListFormat(language, { type: "unit", style: "long" });

function lossText({ share, over_s: overS, best_step: best }) {
  const values = { share: format.share(Math.abs(share)), duration: format.duration(overS) };
  if (best !== null) return t("verdict.loss_up_from_best", { share: values.share, step: format.count(best) });
  return t(share > 0 ? "verdict.loss_up" : "verdict.loss_down", values);
}

function healthText({ verdict, progress }) {
  const { step_interval_s: interval, loss_change: change } = verdict;
  const parts = [t("verdict.peers", { n: format.count(progress.peers) }, progress.peers)];
  if (interval !== null) parts.push(t("verdict.pace", { duration: format.duration(interval) }));
  if (change !== null) parts.push(lossText(change));
  return list.format(parts);
}

function reasonText({ verdict, taken_at: now, whole }) {
  return t(`verdict.reasons.${verdict.reason}`, {
    steps: format.count(whole.total_steps),
    duration: format.duration(verdict.since === null ? null : Math.max(0, now - verdict.since)),
    interval: format.duration(verdict.step_interval_s),
    left: format.count(verdict.left?.devices ?? 0),
    of: format.count(verdict.left?.of ?? 0),
    within: format.duration(verdict.left?.within_s ?? null),
  });
}

// Names the checkpoint to return to and the command; only operators know the run's directory.
function returnText({ step, is_before: isBefore }) {
  if (step === null) return t("verdict.alarm.no_checkpoint");
  const values = { step: format.count(step), command: `manyhands coordinator rewind DIR ${step}` };
  return t(isBefore ? "verdict.alarm.return_to" : "verdict.alarm.return_to_oldest", values);
}

// Shows all active alarms, including those not named by the verdict.
function showAlarms(alarms) {
  const texts = alarms.map(({ kind, step, return_to: point }) => {
    const values = { reason: t(`verdict.reasons.${kind}`), step: format.count(step) };
    const since = t("verdict.alarm.since", values);
    return point === null ? since : `${since} ${returnText(point)}`;
  });
  const list = byId("alarms");
  if (list.textContent === texts.join("")) return; // otherwise screen readers would repeat the list
  list.replaceChildren(...texts.map((text) => element("li", {}, text)));
  list.hidden = texts.length === 0;
}

function showWhole({ step, total_steps: total, began_at: began, ends_at: ends }) {
  const values = { step: format.count(step), total: format.count(total), share: format.share(Math.min(1, step / total)) };
  setText("whole-step", t("verdict.step_of", values));
  setText("whole-began", began === null ? "" : t("verdict.began", { date: format.date(began) }));
  setText("whole-ends", ends === null || step >= total ? "" : t("verdict.ends", { date: format.date(ends) }));
  byId("whole").max = total;
  byId("whole").value = Math.min(step, total);
}

export function showVerdict(overview) {
  showWhole(overview.whole);
  if (archived) return; // an archive's page states that nothing changes
  const { state } = overview.verdict;
  byId("verdict").dataset.state = state;
  setText("verdict-state", t(`verdict.${state}`));
  showAlarms(overview.alarms);
  setText("verdict-text", state === "healthy" ? healthText(overview) : reasonText(overview));
}
