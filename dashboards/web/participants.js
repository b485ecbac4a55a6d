// The page of all members: bubbles, leaderboard, and a timeline of sessions.

import { get, now, pages } from "./api.js";
import { drawBubbles, drawLegend } from "./bubbles.js";
import { byId, element, setText } from "./dom.js";
import * as format from "./format.js";
import { t } from "./i18n.js";
import { onOverview } from "./live.js";
import { memberLink } from "./member_link.js";
import { found, isOnline } from "./people_search.js";
import { drawTimeline } from "./timeline.js";

const REFRESH_MS = 10_000;
const MOST_ROWS = 80; // maximum number of rows in the timeline
const FIRST_PLACES = 25; // number of leaderboard rows until the reader shows all
const board = byId("board-choices").elements;
const timeline = byId("timeline-choices").elements;
let everybody = [];
let ranked = []; // all members, with contributions in the chosen days and on the chosen hardware
let refreshedAt = -Infinity;
let busy = false;
let showsAll = false;

async function all(parameters) {
  const found = [];
  for await (const page of pages("participants", parameters)) found.push(...page.participants);
  return found;
}

// Create a numeric cell, a numeric cell that phones hide, an online mark, and a leaderboard row.
const numeric = (text) => element("td", { className: "numeric" }, text);
const wide = (text) => element("td", { className: "numeric wide" }, text);
const here = () => element("span", { className: "here", role: "img", "aria-label": t("participants.online"), title: t("participants.online") });

function row(each) {
  const link = element("a", { href: memberLink(each.number) }, element("bdi", {}, each.member));
  const samples = numeric(format.count(each.samples));
  if (each.pending_samples) samples.title = t("participants.pending", { n: format.count(each.pending_samples) }, each.pending_samples);
  return element(
    "tr",
    {},
    numeric(format.count(each.rank)),
    element("th", { scope: "row" }, link, isOnline(each) ? here() : null),
    samples,
    numeric(format.hours(each.training_s)),
    wide(format.count(each.active_days)),
    wide(each.averaged_bytes ? format.size(each.averaged_bytes) : "–"),
    wide(format.count(each.devices)),
  );
}

// Members without a rank are shown only in a search, or if the list is limited to online members.
function chosen() {
  const isAsked = board.online.checked || board.find.value.trim() !== "";
  const rows = board.online.checked ? ranked.filter(isOnline) : ranked;
  return found(rows, board.find.value).filter((each) => isAsked || each.rank !== null);
}

function showRows() {
  const rows = chosen();
  const isSought = board.find.value.trim() !== "";
  const shown = showsAll || isSought ? rows : rows.slice(0, FIRST_PLACES);
  byId("board").replaceChildren(...shown.map(row));
  byId("board-all").hidden = shown.length === rows.length;
  setText("board-all", t("participants.show_all", { n: format.count(rows.length) }, rows.length));
  setText("board-found", isSought ? t("participants.found", { n: format.count(rows.length) }, rows.length) : "");
  byId("board-empty").hidden = rows.length > 0 || isSought;
}

async function showBoard() {
  const choice = { window: board.window.value, kind: board.kind.value || null };
  ranked = await all(choice);
  showRows();
  byId("board").dataset.window = choice.window;
  byId("board").dataset.kind = choice.kind ?? "";
}

async function showBubbles() {
  everybody = await all({});
  const given = everybody.filter((each) => each.samples || each.active.length);
  if (given.length) drawBubbles(byId("bubbles"), given);
  else byId("bubbles").replaceChildren(element("p", { className: "muted" }, t("participants.nobody_yet")));
  drawLegend(byId("hardware"), given);
  const online = { online: format.count(everybody.filter(isOnline).length), total: format.count(everybody.length) };
  setText("online", t("participants.online_of", online));
}

// Returns a row for each member, the most recently seen first.
function rowsOf(stays) {
  const byMember = new Map();
  stays.member.forEach((number, index) => {
    const stay = {
      began_at: stays.began_at[index],
      ended_at: stays.ended_at[index],
      online: stays.online[index],
      text: t(`hardware_class.${stays.kind[index]}`),
    };
    byMember.set(number, [...(byMember.get(number) ?? []), stay]);
  });
  const newest = (list) => Math.max(...list.map((stay) => (stay.online ? Infinity : stay.ended_at)));
  return [...byMember]
    .sort(([one, ones], [other, others]) => newest(others) - newest(ones) || one - other)
    .map(([number, list]) => ({ name: stays.members[number] ?? String(number), href: memberLink(number), stays: list }));
}

async function showTimeline() {
  const days = Number(timeline.days.value);
  const until = Math.ceil(now() / 60) * 60;
  const stays = await get("stays", { since: Math.max(0, until - days * 86_400), until });
  const rows = rowsOf(stays);
  const since = days > 60 && stays.began_at.length ? Math.min(...stays.began_at) : stays.since;
  drawTimeline(byId("timeline"), rows.slice(0, MOST_ROWS), since, until);
  const left = rows.length - MOST_ROWS;
  const notes = [
    rows.length ? "" : t("participants.nobody_then"),
    stays.complete ? "" : t("participants.incomplete"),
    left > 0 ? t("participants.rows_left_out", { n: format.count(left) }, left) : "",
  ];
  setText("timeline-note", notes.filter(Boolean).join(" "));
}

async function guarded(show, place) {
  try {
    await show();
  } catch (error) {
    setText(place, t("frame.failed", { reason: error.message }));
  }
}

async function refresh() {
  if (busy || performance.now() - refreshedAt < REFRESH_MS) return;
  busy = true;
  await guarded(showBubbles, "bubbles");
  await guarded(showBoard, "board-note");
  await guarded(showTimeline, "timeline-note");
  refreshedAt = performance.now();
  busy = false;
}

byId("board-choices").addEventListener("input", ({ target }) => {
  if (target === board.find || target === board.online) showRows();
  else guarded(showBoard, "board-note");
});
byId("board-choices").addEventListener("submit", (event) => {
  event.preventDefault();
  const rows = chosen();
  if (board.find.value.trim() && rows.length === 1) window.location.assign(memberLink(rows[0].number));
});
byId("board-all").addEventListener("click", () => {
  showsAll = true;
  showRows();
});
byId("timeline-choices").addEventListener("change", () => guarded(showTimeline, "timeline-note"));
new ResizeObserver(() => {
  const given = everybody.filter((each) => each.samples || each.active.length);
  if (given.length) drawBubbles(byId("bubbles"), given);
}).observe(byId("bubbles").parentElement);
onOverview(refresh);
refresh();
