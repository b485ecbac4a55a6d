// The overview page: each live overview updates the numbers and extends the curve.

import { makeCopyButtons } from "./copy_button.js";
import { byId, setFigure, setText } from "./dom.js";
import * as format from "./format.js";
import { t } from "./i18n.js";
import { onOverview, onState } from "./live.js";
import { LossChart } from "./loss_chart.js";
import { showShares } from "./shares.js";
import { showVerdict } from "./verdict.js";

const AGES_MS = 10_000; // interval between updates of the figures' age
const chartParts = ["chart", "chart-choices", "chart-note", "chart-details", "chart-told"];
const chart = new LossChart(...chartParts.map(byId));

function showBatch(progress, isStale) {
  const { samples_accumulated: samples, target_batch_size: target } = progress;
  setText("next-step", format.count(progress.step + 1));
  setText("batch-samples", t("overview.samples", { n: format.count(samples) }, samples));
  setText("batch-target", t("overview.of_target", { n: format.count(target) }));
  const waiting = progress.peers === 0 ? t("overview.waiting_for_peers") : "";
  const eta = isStale ? null : progress.eta_s; // no estimate from old figures
  setText("eta", eta === null ? waiting : t("overview.left", { duration: format.duration(eta) }));
  byId("batch").max = target;
  byId("batch").value = Math.min(samples, target);
}

function showPhase(phases, number) {
  const phase = phases[number - 1];
  const sizes = { tokens: format.count(phase.sequence_length), samples: format.count(phase.final_batch_size ?? phase.target_batch_size) };
  const text = t("overview.phase_text", sizes) + (phase.fresh_optimizer ? t("overview.fresh_optimizer") : "");
  const values = { number: format.count(number), count: format.count(phases.length), text };
  setText("phase", phases.length > 1 ? t("overview.phase", values) : "");
}

// Returns the reason why the run's end is unknown.
function noEndText({ progress, totals, stale: isStale }) {
  if (!totals.steps) return t("overview.no_step");
  if (isStale) return t("overview.no_news");
  return progress.peers ? t("frame.unknown") : t("overview.nobody_trains");
}

function showTiles(overview) {
  const { progress, online, totals, loss, stale: isStale } = overview;
  setFigure("loss", loss.last, format.loss, t(totals.steps ? "overview.no_loss" : "overview.no_step"));
  setText("peers", format.count(progress.peers));
  setText("members", format.count(online.members));
  setText("devices", format.count(online.devices));
  setText("rate", format.perSecond(progress.samples_per_second));
  setFigure("time-left", isStale ? null : progress.time_left_s, format.duration, noEndText(overview));
  setText("samples", format.large(totals.samples));
}

// Greys out old figures and shows their age: the keeper's if it is silent, all if disconnected.
function showAges(state, overview) {
  const keeperAt = state === "stale" ? overview?.progress.updated_at : null;
  const takenAt = state === "disconnected" ? overview?.taken_at : null;
  for (const element of document.querySelectorAll("[data-from]")) {
    const oldAt = takenAt ?? (element.dataset.from === "keeper" ? keeperAt : null);
    if (oldAt) element.dataset.age = format.ago(oldAt);
    else delete element.dataset.age;
  }
}

// Shows a list of facts, or a text if there are none.
function toggle(name, isThere) {
  byId(`no-${name}`).hidden = isThere;
  byId(name).hidden = !isThere;
  return isThere;
}

function lostText(lost) {
  const parts = Object.entries(lost).map(([reason, samples]) => {
    const known = t(`lost.${reason}`);
    return `${format.count(samples)} (${known.startsWith("lost.") ? reason : known})`;
  });
  return parts.join(", ") || t("overview.none_lost");
}

function showAveraging({ averaging, data_wait: wait }) {
  if (!toggle("averaging", averaging.steps > 0)) return;
  setText("batch-share", format.share(averaging.batch_share));
  byId("batch-share-bar").value = Math.min(1, averaging.batch_share);
  const rounds = averaging.rounds ?? { succeeded: 0, failed: 0 };
  const all = rounds.succeeded + rounds.failed;
  const values = { failed: format.count(rounds.failed), all: format.count(all) };
  const known = (value, text) => (value === null ? t("frame.unknown") : text(value));
  setText("rounds-failed", all ? t("overview.failed_of", values, rounds.failed) : t("frame.unknown"));
  setText("averaging-time", known(averaging.averaging_s, format.seconds));
  setText("missing-auxiliaries", known(averaging.missing_auxiliaries, format.count));
  setText("lost", lostText(averaging.lost_samples));
  setText("data-wait", known(wait.share, format.share));
  setText("averaging-of", t("overview.averaging_of", { n: format.count(averaging.steps) }, averaging.steps));
}

function showDonated(donated) {
  const total = donated.reduce((sum, row) => sum + row.device_s, 0);
  setText("donated-total", total ? t("overview.device_time", { time: format.hours(total) }) : "");
  byId("no-donated").hidden = donated.length > 0;
  const rows = donated.map((row) => ({
    name: t(`hardware.${row.kind}`),
    value: format.hours(row.device_s),
    share: total ? row.device_s / total : 0,
  }));
  showShares(byId("donated"), rows);
}

// Describes a contribution: samples, or the averaged bytes of members without samples.
function contributionText(row) {
  const now = row.online ? t("overview.now", { rate: format.perSecond(row.samples_per_second) }) : t("overview.offline");
  if (row.samples === 0 && row.averaged_bytes > 0) {
    const assists = row.online ? t("overview.assists") : t("overview.offline");
    return `${t("overview.averaged", { size: format.size(row.averaged_bytes) })} · ${assists}`;
  }
  const samples = t("overview.samples", { n: format.large(row.samples) }, row.samples);
  return `${samples} · ${format.share(row.share)} · ${now}`;
}

function showContributions(rows) {
  const given = rows.filter((row) => row.samples > 0 || row.averaged_bytes > 0 || row.online > 0);
  byId("no-contributions").hidden = given.length > 0;
  const shown = given.map((row) => ({ name: row.member, value: contributionText(row), share: row.share, isOn: row.online > 0 }));
  showShares(byId("contributions"), shown);
}

function showValidation(newest) {
  if (!toggle("validation", newest !== null)) return;
  setText("validation-step", format.count(newest.step));
  setFigure("validation-loss", newest.loss, format.loss, t("overview.not_finite"));
  setFigure("validation-perplexity", newest.perplexity, format.perplexity, t("overview.not_finite"));
  setText("validation-accuracy", format.share(newest.accuracy));
  setFigure("validation-order", newest.sop_accuracy, format.share, t("overview.not_measured"));
  const sizes = { samples: format.count(newest.samples), tokens: format.count(newest.sequence_length) };
  setText("validation-samples", t("overview.samples_of_tokens", sizes));
}

function showCheckpoint(checkpoint) {
  if (!toggle("checkpoint", checkpoint !== null)) return;
  setText("checkpoint-step", format.count(checkpoint.step));
  setText("checkpoint-time", `${format.moment(checkpoint.created_at)} (${format.ago(checkpoint.created_at)})`);
  setText("checkpoint-size", format.size(checkpoint.size_bytes));
  setText("checkpoint-digest", checkpoint.manifest_sha256);
}

function show(overview) {
  showVerdict(overview);
  showPhase(overview.phases, overview.progress.phase);
  showBatch(overview.progress, overview.stale);
  showTiles(overview);
  showAveraging(overview);
  showDonated(overview.donated);
  showContributions(overview.contributions);
  showValidation(overview.validation.newest);
  showCheckpoint(overview.checkpoint);
  chart.follow(overview);
}

makeCopyButtons();
onOverview(show);
let showAgesNow = () => {};
onState((state, overview) => {
  showAgesNow = () => showAges(state, overview);
  showAgesNow();
});
setInterval(() => showAgesNow(), AGES_MS);
