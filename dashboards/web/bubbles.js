// Members as bubbles: area for samples, color for hardware, a square for each active device.

import { drawing, element } from "./dom.js";
import * as format from "./format.js";
import { t } from "./i18n.js";
import { memberLink } from "./member_link.js";
import { isOnline, onlineFirst } from "./people_search.js";

const MOST = 120; // maximum number of bubbles; the leaderboard has all members
const LEAST_SHARE = 0.09; // minimum radius, as a fraction of the largest, so that small contributions are visible
const GAP = 4;
const LARGEST = 90;
const LARGEST_SCALE = 1.6; // maximum pixels per unit, so that a few bubbles do not fill the page
const NAME_FROM = 26; // minimum radius for a name inside
const STEP = 0.35;
const FEW = 4; // fewer bubbles need less space (participants.html reserves the same space)
const HARDWARE = ["tpu", "large-gpu", "gpu", "apple", "cpu", "unknown"];

// Packs circles around a center: adds x and y to [{ radius, ... }]. `ratio` is width over height.
export function pack(items, ratio) {
  const placed = [];
  for (const item of [...items].sort((one, other) => other.radius - one.radius)) {
    placed.push({ ...item, ...freePlace(item.radius, placed, ratio) });
  }
  return placed;
}

function freePlace(radius, placed, ratio) {
  const stretch = Math.sqrt(ratio);
  for (let turn = 0; ; turn += STEP / (1 + turn * 0.04)) {
    const away = 3 * turn;
    const x = Math.cos(turn) * away * stretch;
    const y = (Math.sin(turn) * away) / stretch;
    const free = placed.every((other) => Math.hypot(other.x - x, other.y - y) >= other.radius + radius + GAP);
    if (free) return { x, y };
  }
}

// Returns radii with areas in proportion to the samples, and a minimum radius.
export function radii(samples) {
  const most = Math.max(1, ...samples);
  return samples.map((each) => LARGEST * Math.max(LEAST_SHARE, Math.sqrt(each / most)));
}

// Fills a list with each kind of hardware, its color, and the number of members with it.
export function drawLegend(list, participants) {
  const counts = HARDWARE.map((kind) => [kind, participants.filter((each) => each.hardware === kind).length]);
  const items = counts.filter(([, count]) => count).map(([kind, count]) => {
    return element("li", { "data-hardware": kind }, `${t(`hardware_class.${kind}`)}: ${format.count(count)}`);
  });
  list.replaceChildren(...items);
}

// Draws the bubbles, those online first if there are too many; fast devices have opaque squares.
export function drawBubbles(container, participants) {
  const shown = onlineFirst(participants).slice(0, MOST);
  const sizes = radii(shown.map((each) => each.samples));
  const ratio = Math.min(3, Math.max(0.7, container.clientWidth / 420));
  const circles = pack(shown.map((each, index) => ({ who: each, radius: sizes[index] })), ratio);
  const fastest = Math.max(1e-9, ...shown.flatMap((each) => each.active.map((device) => device.samples_per_second)));
  const box = viewBox(circles);
  const svg = drawing("svg", { viewBox: box.join(" "), role: "group", "aria-label": t("participants.everybody") });
  svg.style.maxWidth = `${LARGEST_SCALE * box[2]}px`;
  svg.append(...circles.map((circle) => bubble(circle, fastest)));
  const rest = participants.length - shown.length;
  const more = rest ? element("p", { className: "muted more" }, t("participants.more", { n: format.count(rest) }, rest)) : null;
  container.dataset.crowd = participants.length < FEW ? "few" : "many";
  container.replaceChildren(svg, ...(more ? [more] : []));
}

function viewBox(circles) {
  const edge = (axis, sign) => Math.max(...circles.map((circle) => sign * circle[axis] + circle.radius)) + GAP;
  const [left, right, top, bottom] = [edge("x", -1), edge("x", 1), edge("y", -1), edge("y", 1)];
  return [-left, -top, left + right, top + bottom];
}

// Describes a bubble for screen readers and its tooltip.
export function describe(who) {
  const parts = [who.member, t("participants.n_samples", { n: format.count(who.samples) }, who.samples), t(`hardware_class.${who.hardware}`)];
  const here = who.active.length;
  if (here) parts.push(t("participants.n_active", { n: format.count(here) }, here));
  else parts.push(who.last_seen_at === null ? t("participants.never_seen") : t("participants.last_seen", { ago: format.ago(who.last_seen_at) }));
  return parts.join(", ");
}

function bubble({ who, x, y, radius }, fastest) {
  const name = describe(who);
  const link = drawing("a", { href: memberLink(who.number), "aria-label": name, transform: `translate(${x} ${y})` });
  link.setAttribute("class", isOnline(who) ? "bubble" : "bubble away");
  link.dataset.hardware = who.hardware;
  const title = drawing("title");
  title.textContent = name;
  link.append(title, drawing("circle", { r: radius }), ...squares(who.active, radius, fastest));
  if (radius >= NAME_FROM) link.append(label(who, radius));
  return link;
}

function label(who, radius) {
  const room = Math.floor(radius / 4.4);
  const letters = [...new Intl.Segmenter().segment(who.member)].map((part) => part.segment);
  const text = drawing("text", { y: who.active.length ? -radius * 0.38 : 4, direction: "auto" });
  text.textContent = letters.length > room ? `${letters.slice(0, room - 1).join("")}…` : who.member;
  return text;
}

// Draws a grid of squares in the lower part of a bubble, for the fastest devices that fit.
function squares(devices, radius, fastest) {
  if (!devices.length) return [];
  const side = Math.max(4, Math.min(18, radius / 2.6));
  const width = Math.max(1, Math.floor((1.5 * radius) / (side + 2)));
  const rows = Math.max(1, Math.floor((0.9 * radius) / (side + 2)));
  const shown = [...devices].sort((one, other) => other.samples_per_second - one.samples_per_second).slice(0, width * rows);
  const columns = Math.min(width, shown.length);
  return shown.map((device, index) => {
    const column = index % columns;
    const row = Math.floor(index / columns);
    const square = drawing("rect", {
      x: (column - columns / 2) * (side + 2) + 1,
      y: (radius >= NAME_FROM ? -0.1 * radius : -side / 2) + row * (side + 2),
      width: side,
      height: side,
      rx: 2,
      class: "square",
      "data-hardware": device.kind,
    });
    square.style.fillOpacity = String(0.3 + 0.7 * Math.sqrt(device.samples_per_second / fastest));
    return square;
  });
}
