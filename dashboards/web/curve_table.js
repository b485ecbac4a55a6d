// The visible part of the loss curve as a sentence and as a table, for screen readers.

import { element } from "./dom.js";
import * as format from "./format.js";
import { t } from "./i18n.js";

const MOST_ROWS = 30;

// Chooses at most `most` items, evenly spread, including the first and the last.
export function thinned(places, most = MOST_ROWS) {
  if (places.length <= most) return places;
  return Array.from({ length: most }, (_, index) => places[Math.round((index * (places.length - 1)) / (most - 1))]);
}

// Describes the change of the loss (smoothed, if available) over these points.
export function sentence(curve, places) {
  if (!places.length) return "";
  const losses = curve.smoothed ?? curve.loss;
  const [first, last] = [places[0], places.at(-1)];
  const values = {
    first: format.loss(losses[first]),
    from: format.count(curve.step[first]),
    last: format.loss(losses[last]),
    to: format.count(curve.step[last]),
  };
  if (values.first === values.last) return t("overview.loss_stayed", values);
  return t(losses[last] < losses[first] ? "overview.loss_fell" : "overview.loss_rose", values);
}

// Fills the table's body; only a smoothed curve has a column of smoothed losses.
export function showRows(table, curve, places) {
  table.querySelector("[data-column=smoothed]").hidden = !curve.smoothed;
  const cell = (text) => element("td", { className: "numeric" }, text);
  const rows = thinned(places).map((place) =>
    element(
      "tr",
      {},
      element("th", { scope: "row", className: "numeric" }, format.count(curve.step[place])),
      cell(format.loss(curve.loss[place])),
      curve.smoothed && cell(format.loss(curve.smoothed[place])),
      cell(format.count(curve.samples[place])),
    ),
  );
  table.tBodies[0].replaceChildren(...rows);
}
