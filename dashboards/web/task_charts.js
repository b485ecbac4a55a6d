// The checkpoints' results on the run's tasks: for each task a curve, earlier models, and a table.

import { byId, element } from "./dom.js";
import * as format from "./format.js";
import { t } from "./i18n.js";
import { OPTIONS, axis, color, layout, loadPlotly, onColorsChange } from "./plotly.js";

function spread(point) {
  if (point.mean === null) return "–";
  const mean = format.score(point.mean);
  return point.std === null ? mean : t("model.spread", { mean, std: format.score(point.std) });
}

function row(point) {
  const seeds = point.failed_seeds
    ? t("model.some_seeds_failed", { seeds: format.count(point.seeds), failed: format.count(point.failed_seeds) })
    : format.count(point.seeds);
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, format.count(point.step)),
    element("td", {}, spread(point)),
    element("td", {}, seeds),
    element("td", {}, point.evaluator),
  );
}

function table(task) {
  const names = [t("model.step"), task.metric, t("model.seeds"), t("model.evaluator")];
  const head = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)));
  const whole = element("table", {}, element("thead", {}, head), element("tbody", {}, ...task.points.map(row)));
  const region = { className: "scroll", tabIndex: 0, role: "region", "aria-label": task.name };
  return element("details", {}, element("summary", {}, t("model.table")), element("div", region, whole));
}

function describe(task) {
  const known = task.points.filter((point) => point.mean !== null);
  return t("model.task_description", {
    task: task.name,
    metric: task.metric,
    count: format.count(task.points.length),
    first: format.score(known[0]?.mean),
    last: format.score(known.at(-1)?.mean),
  });
}

// Earlier models have no step: each is a horizontal line with its name.
function references(task) {
  const line = { color: color("--muted"), width: 1, dash: "dash" };
  return {
    shapes: task.references.map(({ value }) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: value, y1: value, line })),
    annotations: task.references.map(({ name, value }) => ({
      xref: "paper",
      x: 0,
      y: value,
      xanchor: "left",
      yanchor: "bottom",
      showarrow: false,
      text: plain(name),
    })),
  };
}

// Escapes a text for Plotly, which interprets some markup.
function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

async function draw(place, task) {
  const plotly = await loadPlotly();
  const points = task.points.filter((point) => point.mean !== null);
  const trace = {
    x: points.map((point) => point.step),
    y: points.map((point) => point.mean),
    error_y: { type: "data", array: points.map((point) => point.std ?? 0), thickness: 1.5, width: 4 },
    name: plain(task.metric),
    mode: "lines+markers",
    marker: { size: 7 },
    line: { color: color("--accent"), width: 2 },
  };
  const shape = layout({
    ...references(task),
    xaxis: axis(t("overview.global_steps"), { tickformat: "~s" }),
    yaxis: axis(plain(task.metric)),
    showlegend: false,
    height: 280,
    margin: { l: 56, r: 12, t: 12, b: 44 },
  });
  await plotly.react(place, [trace], shape, OPTIONS);
  place.dataset.points = String(points.length);
}

export class TaskCharts {
  #tasks = [];

  constructor() {
    onColorsChange(() => this.#drawAll());
  }

  async show(tasks) {
    this.#tasks = tasks;
    byId("tasks-card").hidden = tasks.length === 0;
    byId("tasks").replaceChildren(...tasks.map((task) => this.#article(task)));
    await this.#drawAll();
  }

  #article(task) {
    const newest = task.points.at(-1);
    const state = newest ? t("model.task_newest", { step: format.count(newest.step), value: spread(newest) }) : t("model.no_evaluations");
    const chart = element("div", { className: "chart", role: "img", "aria-label": describe(task) });
    chart.hidden = task.points.length < 2;
    const parts = [element("h3", {}, task.name), element("p", { className: "muted" }, state), chart];
    return element("article", { "data-task": task.name }, ...parts, task.points.length ? table(task) : null);
  }

  async #drawAll() {
    for (const task of this.#tasks) {
      const place = [...byId("tasks").children].find((each) => each.dataset.task === task.name)?.querySelector(".chart");
      if (place && !place.hidden) await draw(place, task);
    }
  }
}
