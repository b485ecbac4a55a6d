// A bar for each day: samples that count, are pending, or were lost.

import { drawing, element } from "./dom.js";
import * as format from "./format.js";
import { t } from "./i18n.js";

const HEIGHT = 160;
const MOST_DAYS = 90;
const DAY_S = 86_400;
const KINDS = ["counted", "waiting", "lost"];

// Returns the days up to the newest one without gaps: inactive days are empty bars.
export function withoutHoles(days, most = MOST_DAYS) {
  if (!days.length) return [];
  const known = new Map(days.map((day) => [day.began_at, day]));
  const last = days.at(-1).began_at;
  const first = Math.max(days[0].began_at, last - (most - 1) * DAY_S);
  const found = [];
  for (let at = first; at <= last; at += DAY_S) {
    found.push(known.get(at) ?? { began_at: at, samples: 0, pending_samples: 0, lost: {} });
  }
  return found;
}

export const lostOf = (day) => Object.values(day.lost).reduce((sum, samples) => sum + samples, 0);

// Draws an SVG with `role=img` and its legend into `container`; `label` is its text alternative.
export function drawDays(container, days, label) {
  const bars = withoutHoles(days);
  const parts = bars.map((day) => [day.samples, day.pending_samples, lostOf(day)]);
  const most = Math.max(1, ...parts.map((part) => part[0] + part[1] + part[2]));
  const svg = drawing("svg", {
    class: "day-bars",
    viewBox: `0 0 ${Math.max(14, bars.length) * 10} ${HEIGHT}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": label,
  });
  bars.forEach((day, index) => svg.append(...barsOf(day, parts[index], index, most)));
  const legend = element("ul", { className: "legend" }, ...KINDS.map((kind) => element("li", { className: kind }, t(`member.${kind}`))));
  container.replaceChildren(svg, legend);
}

function barsOf(day, part, index, most) {
  let top = HEIGHT;
  return KINDS.flatMap((kind, place) => {
    const height = (HEIGHT * part[place]) / most;
    if (!height) return [];
    top -= height;
    const bar = drawing("rect", { class: kind, x: index * 10 + 1, y: top, width: 8, height });
    const title = drawing("title");
    title.textContent = `${format.date(day.began_at)}: ${format.count(part[place])} (${t(`member.${kind}`)})`;
    bar.append(title);
    return [bar];
  });
}
