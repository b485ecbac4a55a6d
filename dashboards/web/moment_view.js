// The view of a global step. Names are inserted as text, never as markup.

import { byId, element, setFigure, setText } from "./dom.js";
import * as format from "./format.js";
import { language, t } from "./i18n.js";
import { names, people } from "./moments.js";

const list = new Intl.ListFormat(language, { type: "unit", style: "long" });
const devices = (n) => t("history.devices", { n: format.count(n) }, n);
const members = (n) => t("history.members", { n: format.count(n) }, n);
const samples = (n) => t("history.samples", { n: format.count(n) }, n);
const seconds = (value) => format.number({ style: "unit", unit: "second", maximumFractionDigits: 1 }).format(value);

function fill(id, items, emptyId) {
  byId(id).replaceChildren(...items);
  byId(id).hidden = items.length === 0;
  byId(emptyId).hidden = items.length > 0;
}

function note(id, text) {
  setText(id, text);
  byId(id).hidden = !text;
}

function person({ member, samples: given, devices: squares }) {
  const marks = squares.map((device) => {
    const label = device.samples ? samples(device.samples) : t("history.online_only");
    const text = [device.hardware, label].filter(Boolean).join(": ");
    return element("span", { className: device.samples ? "device gave" : "device", role: "img", "aria-label": text, title: text });
  });
  return element(
    "li",
    {},
    element("span", { className: "who", dir: "auto" }, member),
    element("span", { className: "devices" }, ...marks),
    element("span", { className: "muted" }, given ? samples(given) : t("history.online_only")),
  );
}

function group(moment, { size, samples: total, averaging_s: took, devices: indexes }) {
  const facts = [t("history.group", { n: format.count(size) }), total === null ? null : samples(total), seconds(took)];
  return element(
    "li",
    {},
    element("p", {}, facts.filter((fact) => fact !== null).join(" · ")),
    element("p", { className: "members", dir: "auto" }, list.format(names(moment, indexes))),
  );
}

function failures(moment) {
  const lost = moment.lost.map(({ device, samples: n, reason }) => {
    const key = `history.reasons.${reason}`;
    const cause = t(key) === key ? t("history.reasons.unknown") : t(key);
    const who = t("history.lost", { member: moment.devices[device].member, samples: samples(n) });
    return element("li", {}, element("span", { dir: "auto" }, who), " – ", cause);
  });
  const refused = Object.entries(moment.refused).map(([kind, n]) => {
    const values = { n: format.count(n), kind: t(`history.kinds.${kind}`) };
    return element("li", {}, t("history.refused", values, n));
  });
  return [...lost, ...refused];
}

function showNumbers(moment) {
  const averaging = Math.max(0, ...moment.groups.map((each) => each.averaging_s));
  const contributors = moment.shares.filter(([, given]) => given > 0).map(([device]) => device);
  const values = { samples: format.count(moment.samples), target: format.count(moment.target_batch_size) };
  setFigure("loss", moment.loss, format.loss, t("overview.no_loss"));
  setText("present", format.count(moment.online.length));
  setText("present-members", members(names(moment, moment.online).length));
  setText("contributed", format.count(contributors.length));
  setText("contributed-members", members(names(moment, contributors).length));
  setText("batch-share", format.share(moment.samples / moment.target_batch_size));
  setText("batch", t("history.batch_value", values));
  setText("averaging", moment.groups.length ? seconds(averaging) : t("history.none_averaged"));
}

// Shows a moment; null: nobody reported the step.
export function showMoment(step, moment) {
  const place = byId("moment");
  place.hidden = moment === null;
  place.dataset.step = String(step);
  if (moment === null) {
    setText("where", t("history.unknown", { step: format.count(step) }));
    return;
  }
  setText("where", t("history.at", { step: format.count(step), time: format.moment(moment.completed_at) }));
  showNumbers(moment);
  note("returned", moment.returned ? t("history.returned") : "");
  note("undone", moment.undone ? t("history.undone", { n: format.count(moment.undone) }, moment.undone) : "");
  fill("people", people(moment).map(person), "nobody");
  fill("groups", moment.groups.map((each) => group(moment, each)), "no-groups");
  byId("group-note").hidden = moment.groups.length === 0;
  fill("failed", failures(moment), "nothing-failed");
}
