// The page of a member: contribution, lost samples, devices, days, sessions, and the certificate.

import { address, get } from "./api.js";
import { drawDays, lostOf } from "./day_bars.js";
import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";
import { t } from "./i18n.js";
import { onOverview } from "./live.js";
import { ownCurve } from "./own_curve.js";
import { drawTimeline } from "./timeline.js";

const REFRESH_MS = 10_000;
const CURVE_POINTS = 800;
const SPAN_S = 60 * 86_400;
const number = new URLSearchParams(window.location.search).get("number") ?? "";
let refreshedAt = -Infinity;
let busy = false;
let joinLink = "";

// The causes that have texts; causes of later versions are shown as "other".
const KNOWN = new Set(
  "late averaging_failed out_of_sync non_finite left died undone returned unconfirmed refused quarantine".split(" "),
);

function causeKey(cause) {
  const key = cause.replaceAll(/[^a-z]/g, "_");
  return `causes.${KNOWN.has(key) ? key : "other_cause"}`;
}

const numeric = (text) => element("td", { className: "numeric" }, text);
const cell = (text) => element("td", {}, text);

function showNumbers(member) {
  setText("member-name", member.member);
  document.title = `${member.member} · ${document.title.split(" · ").at(-1)}`;
  const seen = member.devices.some((device) => device.online) ? t("member.here_now") : t("participants.last_seen", { ago: format.ago(member.last_seen_at) });
  setText("member-note", member.last_seen_at === null ? t("participants.never_seen") : seen);
  setText("member-samples", format.large(member.samples));
  setText("member-rank", member.rank === null ? t("member.no_rank") : t("member.rank_of", { rank: format.count(member.rank), members: format.count(member.members) }));
  setText("member-hours", format.hours(member.training_s));
  const { current, longest } = member.streaks;
  const values = { n: format.count(current), longest: format.count(longest) };
  setText("member-streak", t("member.streak_days", values, current));
  byId("member-streak").title = t("member.streak_longest", values, longest);
  setText("member-steps", format.count(member.steps.count));
  setText("member-averaged", format.size(member.averaged_bytes));
}

function showLosses(member) {
  const lost = member.lost_samples;
  const all = member.samples + member.pending_samples + lost;
  const values = { n: format.count(lost), all: format.count(all), share: format.share(all ? lost / all : 0) };
  const pending = member.pending_samples;
  const waits = pending ? ` ${t("member.why_pending", { n: format.count(pending) }, pending)}` : "";
  setText("why-note", (lost ? t("member.why_some", values, lost) : t("member.why_none")) + waits);
  byId("why-table").hidden = !lost;
  byId("why").replaceChildren(...member.losses.map(lossRow));
}

function lossRow(loss) {
  const heading = element("th", { scope: "row" }, t(causeKey(loss.cause)));
  heading.append(element("span", { className: "why-text" }, t(`${causeKey(loss.cause)}_text`)));
  const row = element("tr", {}, heading, numeric(format.count(loss.samples)), numeric(format.count(loss.times)), cell(format.date(loss.last_day)));
  row.dataset.cause = loss.cause;
  return row;
}

function showDays(member) {
  byId("no-days").hidden = member.days.length > 0;
  byId("days").hidden = byId("days-details").hidden = member.days.length === 0;
  const counted = member.streaks.active_days;
  drawDays(byId("days"), member.days, t("member.days_summary", { n: format.count(counted) }, counted));
  byId("days-rows").replaceChildren(...[...member.days].reverse().map(dayRow));
}

function dayRow(day) {
  const causes = Object.entries(day.lost)
    .sort(([, one], [, other]) => other - one)
    .map(([cause, samples]) => `${t(causeKey(cause))}: ${format.count(samples)}`);
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, format.date(day.began_at)),
    numeric(format.count(day.samples)),
    numeric(format.count(day.pending_samples)),
    numeric(format.count(lostOf(day))),
    cell(causes.join(", ")),
    numeric(format.hours(day.training_s)),
  );
}

function showDevices(member) {
  byId("devices").replaceChildren(...member.devices.map(deviceRow));
  const rest = member.devices_total - member.devices.length;
  byId("devices-more").hidden = rest === 0;
  setText("devices-more", t("member.devices_more", { n: format.count(rest) }, rest));
}

function deviceRow(device) {
  const speed = t("member.per_second", { n: format.perSecond(device.samples_per_second) });
  const now = device.online ? `${t(`states.${device.state}`)}, ${speed}` : t("participants.last_seen", { ago: format.ago(device.last_seen_at) });
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, `#${device.number}`),
    cell(t(`hardware_class.${device.kind}`)),
    cell(now),
    numeric(format.count(device.samples)),
    numeric(format.hours(device.training_s)),
    cell(format.date(device.joined_at)),
  );
}

function showStays(member) {
  const until = Math.ceil(member.taken_at);
  const first = member.stays.length ? member.stays[0].began_at : until - 86_400;
  const since = Math.max(first, until - SPAN_S);
  const devices = [...new Set(member.stays.filter((stay) => stay.ended_at >= since).map((stay) => stay.device))];
  const rows = devices.map((device) => ({
    name: `#${device}`,
    stays: member.stays.filter((stay) => stay.device === device && stay.ended_at >= since),
  }));
  byId("no-stays").hidden = rows.length > 0;
  drawTimeline(byId("stays"), rows, since, until);
}

function showCurve(member, curve) {
  const { count, first, last, ranges } = member.steps;
  const values = { n: format.count(count), first: format.count(first), last: format.count(last) };
  const text = count ? t("member.own_curve_text", values, count) : t("member.own_curve_none");
  setText("own-curve-note", text);
  if (curve.step.length) byId("own-curve").replaceChildren(ownCurve(curve, ranges, text));
}

// Archives offer no certificate, because nothing can sign it.
function showCertificate(member) {
  if (!byId("certificate")) return;
  byId("certificate-offer").hidden = member.streaks.active_days === 0;
  byId("certificate").href = address(`participants/${member.number}/certificate`);
  const page = new URL("./", document.baseURI).href;
  setText("certificate-command", `manyhands verify certificate-${member.number}.json --authority ${page}`);
  setText("name-command", `manyhands name '${joinLink}' --as '…'`);
}

// Adds the member's number to the links to other languages.
function keepInLanguageLinks() {
  for (const link of document.querySelectorAll("footer a[hreflang]")) {
    const url = new URL(link.href);
    url.searchParams.set("number", number);
    link.href = url.href;
  }
}

async function refresh() {
  if (busy || performance.now() - refreshedAt < REFRESH_MS) return;
  busy = true;
  try {
    const about = `participants/${encodeURIComponent(number || "0")}`;
    const [member, curve] = await Promise.all([get(about), get("curve", { points: CURVE_POINTS })]);
    byId("member-loading").hidden = true; // replaced by the content
    byId("member").hidden = false;
    for (const show of [showNumbers, showLosses, showDays, showDevices, showStays, showCertificate]) show(member);
    showCurve(member, curve);
  } catch (error) {
    byId("member-loading").hidden = true;
    const isNobody = error.status === 404; // only in an archive, which has one page for all members
    setText("member-note", isNobody ? t("member.nobody") : t("frame.failed", { reason: error.message }));
  }
  refreshedAt = performance.now();
  busy = false;
}

onOverview((overview) => {
  joinLink = overview.run.join_link;
  refresh();
});
if (number) keepInLanguageLinks();
refresh();
