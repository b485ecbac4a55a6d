// The timeline: a row for each member or device, a bar for each session. CSS mirrors the chart for RTL.

import { element } from "./dom.js";
import * as format from "./format.js";
import { language, t } from "./i18n.js";

const TICKS = 5;

// Returns the position of a time between two others, in percent.
export function percent(at, since, until) {
  return (100 * (Math.min(until, Math.max(since, at)) - since)) / Math.max(1, until - since);
}

// Draws rows of { name, href, stays: [{ began_at, ended_at, online, text }] } into `container`.
export function drawTimeline(container, rows, since, until) {
  const list = element("ul", { className: "timeline" }, axisRow(since, until), ...rows.map((row) => rowOf(row, since, until)));
  container.replaceChildren(...(rows.length ? [list] : [])); // without rows, no axis
}

// Returns the coarsest time format in which neighbouring ticks differ.
function tickOptions(seconds) {
  if (seconds > 2 * 86_400) return { month: "short", day: "numeric" };
  const minutes = { hour: "2-digit", minute: "2-digit" };
  return seconds < TICKS * 60 ? { ...minutes, second: "2-digit" } : minutes;
}

function axisRow(since, until) {
  const clock = new Intl.DateTimeFormat(language, tickOptions(until - since));
  const ticks = Array.from({ length: TICKS }, (_, index) => since + (index * (until - since)) / TICKS);
  const spans = ticks.map((at) => {
    const tick = element("span", {}, clock.format(new Date(at * 1000)));
    tick.style.insetInlineStart = `${percent(at, since, until)}%`;
    return tick;
  });
  return element("li", { className: "axis", "aria-hidden": "true" }, element("span"), element("div", { className: "ticks" }, ...spans));
}

function rowOf({ name, href, stays }, since, until) {
  const text = element("bdi", {}, name);
  const label = href ? element("a", { className: "name", href, title: name }, text) : element("span", { className: "name", title: name }, text);
  const total = stays.reduce((sum, stay) => sum + Math.min(until, stay.ended_at) - Math.max(since, stay.began_at), 0);
  const summary = t("timeline.summary", { n: format.count(stays.length), hours: format.hours(total) }, stays.length);
  const track = element("div", { className: "track" }, element("span", { className: "visually-hidden" }, summary));
  track.append(...stays.map((stay) => bar(stay, since, until)));
  return element("li", {}, label, track);
}

function bar(stay, since, until) {
  const begin = percent(stay.began_at, since, until);
  const end = percent(stay.online ? until : stay.ended_at, since, until);
  const times = { from: format.moment(stay.began_at), to: stay.online ? t("timeline.now") : format.moment(stay.ended_at) };
  const title = [t("timeline.from_to", times), stay.text].filter(Boolean).join(" · ");
  const block = element("span", { className: stay.online ? "stay online" : "stay", title, "aria-hidden": "true" });
  block.style.insetInlineStart = `min(${begin}%, 100% - 3px)`;  // keeps a short newest stay visible
  block.style.width = `${Math.max(0.1, end - begin)}%`;
  return block;
}
