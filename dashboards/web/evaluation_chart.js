// The checkpoints' results on held-out text: a chart of loss and accuracy, and a table.

import { byId, element } from "./dom.js";
import * as format from "./format.js";
import { t } from "./i18n.js";
import { OPTIONS, axis, color, layout, loadPlotly, onColorsChange } from "./plotly.js";

function row(validation) {
  const cells = [
    format.loss(validation.loss),
    format.perplexity(validation.perplexity),
    format.share(validation.accuracy),
    format.share(validation.sop_accuracy),
    format.count(validation.samples),
  ];
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, format.count(validation.step)),
    ...cells.map((cell) => element("td", {}, cell)),
  );
}

// A line breaks where the set of samples changes, because losses on different sets are not comparable.
function broken(rows, value) {
  return rows.flatMap((each, index) => {
    const other = index > 0 && rows[index - 1].set_sha256 !== each.set_sha256;
    return other ? [null, value(each)] : [value(each)];
  });
}

function trace(rows, name, value, more) {
  return {
    x: broken(rows, (each) => each.step),
    y: broken(rows, value),
    name,
    mode: "lines+markers",
    marker: { size: 7 },
    line: { width: 2 },
    ...more,
  };
}

export class EvaluationChart {
  #rows = [];

  constructor() {
    onColorsChange(() => this.#draw());
  }

  async show(rows) {
    this.#rows = rows;
    byId("no-evaluations").hidden = rows.length > 0;
    byId("evaluation-details").hidden = rows.length === 0;
    byId("evaluations").replaceChildren(...rows.map(row));
    await this.#draw();
  }

  async #draw() {
    const rows = this.#rows;
    const place = byId("evaluation-chart");
    place.hidden = rows.length < 2;
    if (place.hidden) return;
    const plotly = await loadPlotly();
    const [first, second] = [color("--accent"), color("--second")];
    const traces = [
      trace(rows, t("model.loss"), (each) => each.loss, { line: { color: first, width: 2 } }),
      trace(rows, t("model.accuracy"), (each) => each.accuracy, {
        line: { color: second, width: 2, dash: "dot" },
        marker: { size: 7, symbol: "diamond" },
        yaxis: "y2",
      }),
    ];
    const right = { overlaying: "y", side: "right", tickformat: ".0%", rangemode: "tozero", showgrid: false, tickmode: "auto" };
    const shape = layout({
      xaxis: axis(t("overview.global_steps"), { tickformat: "~s" }),
      yaxis: axis(t("model.loss")),
      yaxis2: axis(t("model.accuracy"), right),
      showlegend: true,
      margin: { l: 56, r: 64, t: 32, b: 44 },
    });
    await plotly.react(place, traces, shape, OPTIONS);
    this.#describe(place);
  }

  #describe(place) {
    const known = this.#rows.filter((each) => each.loss !== null);
    const values = {
      count: format.count(this.#rows.length),
      first: format.loss(known[0]?.loss),
      last: format.loss(known.at(-1)?.loss),
    };
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", t("model.evaluation_description", values));
    place.dataset.points = String(this.#rows.length);
  }
}
