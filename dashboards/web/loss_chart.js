// The loss curve with its options; until Plotly is loaded, the server's drawing is shown.

import { get } from "./api.js";
import { afterKey } from "./chart_keys.js";
import { continued, follows, lossRange, place, within } from "./curve_data.js";
import { sentence, showRows } from "./curve_table.js";
import * as format from "./format.js";
import { t } from "./i18n.js";
import { groupText, grouped, marked, reached } from "./milestone_marks.js";
import { OPTIONS, axis, color, layout, loadPlotly, onColorsChange } from "./plotly.js";

const POINTS = 1000;
const REDRAW_MS = 5_000; // minimum interval between two drawings for new steps
const GROWN = 2; // growth in points after which the curve is fetched again, downsampled and smoothed
const APART = 0.02; // fraction of the axis within which milestones share a mark
const LANE = 0.03; // the marks' vertical position: below curve, checkpoints and phase names
const AXES = { step: "overview.global_steps", samples_total: "overview.samples_seen", completed_at: "overview.time" };

export class LossChart {
  #element;
  #note;
  #choices;
  #details; // the element with the table
  #range = null; // range of the x axis chosen by keys, in the column's unit; null: all
  #moves = 0; // number of moves by keys; each replaces the range chosen by mouse
  #curve = null;
  #fetched = 0; // number of points in the last response
  #validations = [];
  #checkpoints = [];
  #milestones = [];
  #era = null; // era of the milestones
  #phases = [];
  #known = ""; // identifies these validations, checkpoints and milestones
  #drawn = "";
  #drawnAt = 0;
  #timer = null;
  #busy = false;
  #ahead; // the promise of the first curve and marks

  // `note` shows that drawing failed (then the server's drawing stays), `details` has the table,
  // `told` announces moves by keys.
  constructor(element, choices, note, details, told) {
    this.#element = element;
    this.#note = note;
    this.#choices = choices;
    this.#details = details;
    details.addEventListener("toggle", () => this.#drawn && this.#showTable(this.#seen()));
    element.addEventListener("keydown", (event) => this.#press(event, told));
    // Data are requested first: Plotly takes longest, and blocks everything else while it starts.
    this.#ahead = Promise.all([this.#fetch(), this.#fetchMarks()]).catch(() => {});
    loadPlotly().catch(() => {});
    choices.addEventListener("change", (event) => this.#choose(event.target.name));
    choices.addEventListener("submit", (event) => event.preventDefault());
    onColorsChange(() => this.#attempt(() => this.#draw(true)));
  }

  // Updates the chart from a new overview.
  async follow(overview) {
    if (this.#busy) return;
    this.#busy = true;
    await this.#attempt(async () => {
      await this.#update(overview);
      await this.#drawSoon();
    });
    this.#busy = false;
  }

  // Runs an action, and shows the error if the action fails.
  async #attempt(action) {
    try {
      await action();
    } catch (error) {
      this.#say(t("frame.failed", { reason: error.message }));
    }
  }

  async #update(overview) {
    this.#phases = overview.phases;
    if (!overview.recent.step.length) return;
    await this.#ahead;
    await Promise.all([this.#updateCurve(overview), this.#updateMarks(overview)]);
  }

  async #updateCurve({ recent, era }) {
    const long = this.#curve && this.#curve.step.length >= GROWN * this.#fetched;
    if (this.#curve && !long && follows(this.#curve, era, recent)) this.#curve = continued(this.#curve, recent);
    else if (!this.#curve || long || recent.step.at(-1) !== this.#curve.step.at(-1)) await this.#fetch();
  }

  async #updateMarks({ era, checkpoint, validation, recent }) {
    const newest = validation.newest?.evaluated_at;
    const known = JSON.stringify([era, checkpoint?.step, validation.count, newest, reached(recent.samples_total.at(-1))]);
    if (known === this.#known) return;
    const evaluated = [this.#validations.length, this.#validations.at(-1)?.evaluated_at];
    const has = [this.#era, this.#checkpoints.at(-1)?.step, ...evaluated, marked(this.#milestones)];
    if (JSON.stringify(has) !== known) await this.#fetchMarks();
    this.#known = known;
  }

  #say(text) {
    if (this.#note.textContent !== text) this.#note.textContent = text;
  }

  async #fetch() {
    const smoothing = this.#choice("smoothing");
    const curve = await get("curve", { points: POINTS, smoothing });
    if (smoothing !== this.#choice("smoothing")) return; // a later choice has its own request
    this.#curve = curve;
    this.#fetched = this.#curve.step.length;
  }

  async #fetchMarks() {
    const [evaluated, kept, told] = await Promise.all([get("validations"), get("checkpoints"), get("milestones")]);
    this.#validations = evaluated.validations;
    this.#checkpoints = kept.checkpoints;
    this.#milestones = told.milestones;
    this.#era = told.era;
  }

  #choice(name) {
    const field = this.#choices.elements[name];
    return field.type === "checkbox" ? field.checked : field.value;
  }

  async #choose(name) {
    await this.#attempt(async () => {
      if (name === "smoothing") await this.#fetch();
      if (name === "x") this.#range = null;
      await this.#draw(true);
    });
  }

  async #press(event, told) {
    if (!this.#drawn || event.ctrlKey || event.altKey || event.metaKey) return;
    const column = this.#curve[this.#choice("x")];
    const range = afterKey(event.key, this.#seenRange(), [column[0], column.at(-1)]);
    if (range === undefined) return;
    event.preventDefault();
    this.#range = range;
    this.#moves += 1;
    await this.#attempt(() => this.#draw(true));
    told.textContent = sentence(this.#curve, this.#seen());
  }

  // Returns the range visible on the x axis, in the unit of its column.
  #seenRange() {
    const { xaxis } = this.#element._fullLayout;
    const column = this.#curve[this.#choice("x")];
    if (xaxis.autorange) return [column[0], column.at(-1)];
    const unit = this.#choice("x") === "completed_at" ? 1000 : 1;
    return xaxis.range.map((value) => xaxis.r2l(value) / unit);
  }

  // Returns the indices of the visible points.
  #seen() {
    return within(this.#curve, this.#choice("x"), this.#seenRange());
  }

  #drawSoon() {
    this.#details.hidden = !this.#curve?.step.length;
    const wait = this.#drawnAt + REDRAW_MS - performance.now();
    if (wait <= 0 || !this.#drawnAt) return this.#draw();
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.#attempt(() => this.#draw());
    }, wait);
    return null;
  }

  async #draw(force = false) {
    if (!this.#curve?.step.length) return;
    const newest = [this.#curve.step.at(-1), ...this.#curve.loss.slice(-20)];
    const key = JSON.stringify([this.#curve.era, this.#curve.smoothing, newest, this.#known]);
    if (key === this.#drawn) this.#say("");
    if (key === this.#drawn && !force) return;
    this.#drawnAt = performance.now(); // before drawing: failures are not retried each second
    const plotly = await loadPlotly();
    this.#element.querySelector(".loss-curve")?.remove();
    await plotly.react(this.#element, this.#traces(), this.#layout(), OPTIONS);
    if (!this.#drawn) this.#element.on("plotly_relayout", () => this.#describe());
    this.#drawn = key;
    this.#say("");
    this.#describe();
  }

  #x(values) {
    return this.#choice("x") === "completed_at" ? values.map((seconds) => seconds && seconds * 1000) : values;
  }

  #placed(rows) {
    return this.#x(rows.map((row) => (row.step === null ? null : place(this.#curve, this.#choice("x"), row.step))));
  }

  #traces() {
    const curve = this.#curve;
    const x = this.#x(curve[this.#choice("x")]);
    const few = curve.step.length < 200;
    const traces = [
      {
        x,
        y: curve.loss,
        customdata: curve.step.map((step, index) => [format.count(step), format.count(curve.samples[index])]),
        name: t("curve.training"),
        hovertemplate: `${t("curve.training")}: %{y:.3f} · ${t("curve.step", { step: "%{customdata[0]}" })}<extra></extra>`,
        mode: few ? "lines+markers" : "lines",
        marker: { size: 5 },
        line: { color: color("--accent"), width: curve.smoothed ? 1 : 1.5 },
        opacity: curve.smoothed ? 0.3 : 1,
      },
    ];
    if (curve.smoothed) {
      const name = `${t("overview.smoothing")}: ${t("overview.smoothed_over", { n: format.count(curve.smoothing) })}`;
      const line = { color: color("--accent"), width: 2.5 };
      traces.push({ x, y: curve.smoothed, mode: "lines", line, name, hoverinfo: "skip" });
    }
    if (this.#checkpoints.length) traces.push(this.#checkpointTrace());
    if (this.#validations.length) traces.push(this.#heldOut());
    const groups = this.#milestoneGroups();
    this.#element.dataset.milestones = String(groups.length);
    if (groups.length) traces.push(this.#milestoneTrace(groups));
    return traces;
  }

  #checkpointTrace() {
    const rows = this.#checkpoints;
    const column = this.#curve.smoothed ? "smoothed" : "loss";
    return {
      x: this.#placed(rows),
      y: rows.map((row) => place(this.#curve, column, row.step)),
      customdata: rows.map((row) => [format.count(row.step), format.size(row.size_bytes)]),
      hovertemplate: `${t("curve.checkpoint")}: ${t("curve.step", { step: "%{customdata[0]}" })}, %{customdata[1]}<extra></extra>`,
      name: t("curve.checkpoint"),
      mode: "markers",
      marker: { size: 10, symbol: "circle-open", color: color("--text"), line: { width: 2 } },
    };
  }

  // The loss on held-out text at each checkpoint; the line breaks where the set of samples changes.
  #heldOut() {
    const rows = this.#validations.flatMap((row, index) => {
      const others = index > 0 && this.#validations[index - 1].set_sha256 !== row.set_sha256;
      return others ? [{ step: null, loss: null, accuracy: null }, row] : [row];
    });
    return {
      x: this.#placed(rows),
      y: rows.map((row) => row.loss),
      customdata: rows.map((row) => format.share(row.accuracy)),
      hovertemplate: `${t("curve.held_out")}: %{y:.3f} (%{customdata})<extra></extra>`,
      name: t("curve.held_out"),
      mode: "lines+markers",
      marker: { size: 7, symbol: "diamond" },
      line: { color: color("--second"), width: 2 },
    };
  }

  #milestoneGroups() {
    const column = this.#choice("x");
    const values = this.#curve[column];
    const placed = this.#milestones.map((each) => ({ ...each, at: place(this.#curve, column, each.step) }));
    return grouped(placed.filter(({ at }) => at !== null), APART * (values.at(-1) - values[0]));
  }

  // Milestones have a separate axis, so that they form a row independent of the loss.
  #milestoneTrace(groups) {
    return {
      x: this.#x(groups.map(([first]) => first.at)),
      y: groups.map(() => LANE),
      yaxis: "y2",
      customdata: groups.map(groupText),
      hovertemplate: "%{customdata}<extra></extra>",
      name: t("curve.milestone"),
      mode: "markers",
      marker: { size: 12, symbol: "star", color: color("--good"), line: { width: 1, color: color("--card") } },
      cliponaxis: false,
    };
  }

  #layout() {
    const x = this.#choice("x");
    const { shapes, annotations } = this.#phaseMarks(x);
    const type = x === "completed_at" ? "date" : "linear";
    const [isWhole, isLogarithmic] = [this.#choice("whole"), this.#choice("log")];
    const scale = isLogarithmic ? { type: "log", dtick: "D1" } : { type: "linear" };
    const places = this.#range && within(this.#curve, x, this.#range);
    const range = lossRange(this.#curve, isWhole, isLogarithmic, places);
    const along = this.#range ? { range: this.#x(this.#range) } : { autorange: true };
    return layout({
      hovermode: "closest",
      uirevision: [x, isWhole, isLogarithmic, this.#moves].join(), // new steps keep the zoom
      showlegend: true,
      shapes,
      annotations,
      xaxis: axis(t(AXES[x]), { type, ...along, ...(type === "linear" ? { tickformat: "~s", rangemode: "nonnegative" } : {}) }),
      yaxis: axis(t("overview.loss"), { ...scale, ...(range ? { range } : { autorange: true }) }),
      yaxis2: { overlaying: "y", range: [0, 1], fixedrange: true, visible: false },
    });
  }

  // A thin line where a phase begins, between the last step of a phase and the first of the next.
  #phaseMarks(axisName) {
    const marks = this.#phases.slice(1).flatMap((phase) => {
      const [x] = this.#x([place(this.#curve, axisName, phase.from_step + 0.5)]);
      return x === null ? [] : [{ x, text: t("curve.phase", { number: format.count(phase.number) }) }];
    });
    const line = { color: color("--muted"), width: 1, dash: "dot" };
    return {
      shapes: marks.map(({ x }) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line })),
      annotations: marks.map(({ x, text }) => ({
        x,
        text,
        yref: "paper",
        y: 1,
        xanchor: "left",
        yanchor: "top",
        showarrow: false,
      })),
    };
  }

  // Describes the chart for screen readers and for tests.
  #describe() {
    const { step } = this.#curve;
    const seen = this.#seen();
    this.#element.tabIndex = 0;
    this.#element.setAttribute("role", "application"); // screen readers pass on arrow keys
    this.#element.setAttribute("aria-label", sentence(this.#curve, seen));
    this.#element.firstElementChild.setAttribute("aria-hidden", "true");
    this.#element.dataset.steps = String(step.at(-1));
    this.#element.dataset.points = String(step.length);
    this.#element.dataset.validations = String(this.#validations.length);
    this.#showTable(seen);
  }

  #showTable(seen) {
    if (this.#details.open) showRows(this.#details.querySelector("table"), this.#curve, seen);
  }
}
