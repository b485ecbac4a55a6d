// The loss curve by Plotly, which is loaded after the page: until then the server's own drawing stands in its place.

import { share } from "./format.js";

const SMOOTHING_STEPS = 20;
let library;

function loadPlotly() {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/plotly.min.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("the charts' library did not load"));
    document.head.append(script);
  });
  return library;
}

// The mean over the last steps, weighted by samples; steps without a loss are passed over.
export function smoothed(curve, width) {
  return curve.loss.map((_, index) => {
    let sum = 0;
    let samples = 0;
    for (let at = Math.max(0, index - width + 1); at <= index; at++) {
      if (curve.loss[at] === null) continue;
      sum += curve.loss[at] * curve.samples[at];
      samples += curve.samples[at];
    }
    return samples ? sum / samples : null;
  });
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function layout(phases, steps, legend) {
  // A thin line where a phase begins, between the last step of the one before and its own first.
  const begun = phases.filter((phase) => steps[0] <= phase.from_step && phase.from_step < steps.at(-1));
  const axis = { gridcolor: color("--line"), zeroline: false, linecolor: color("--line") };
  return {
    margin: { l: 52, r: 12, t: legend ? 32 : 8, b: 44 },
    height: 340,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", color: color("--muted"), size: 13 },
    hovermode: "x unified",
    hoverlabel: { bgcolor: color("--card"), bordercolor: color("--line"), font: { color: color("--text") } },
    showlegend: legend,
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", itemclick: false, itemdoubleclick: false },
    shapes: begun.map(({ from_step: step }) => ({
      type: "line",
      x0: step + 0.5,
      x1: step + 0.5,
      yref: "paper",
      y0: 0,
      y1: 1,
      line: { color: color("--muted"), width: 1, dash: "dot" },
    })),
    annotations: begun.map(({ number, from_step: step, text: hovertext }) => ({
      x: step + 0.5,
      yref: "paper",
      y: 1,
      xanchor: "left",
      yanchor: "top",
      showarrow: false,
      text: `phase ${number}`,
      hovertext,
    })),
    xaxis: { ...axis, title: { text: "global step" }, rangemode: "nonnegative", tickformat: "d" },
    yaxis: { ...axis, title: { text: "loss" } },
  };
}

// The loss on held-out text at each checkpoint; the line breaks where the samples are others.
function heldOut(validations) {
  const rows = validations.flatMap((row, index) => {
    const others = index > 0 && validations[index - 1].set_sha256 !== row.set_sha256;
    return others ? [{ step: row.step, loss: null, accuracy: 0 }, row] : [row];
  });
  return {
    x: rows.map((row) => row.step),
    y: rows.map((row) => row.loss),
    customdata: rows.map((row) => share(row.accuracy)),
    hovertemplate: "held-out text: %{y:.3f}, %{customdata} of tokens right<extra></extra>",
    name: "held-out text",
    mode: "lines+markers",
    marker: { size: 7, symbol: "diamond" },
    line: { color: color("--second"), width: 2 },
  };
}

export async function drawCurve(element, curve, validations, smooth, phases) {
  if (!curve.step.length) return;
  const plotly = await loadPlotly();
  const few = curve.step.length < 200;
  const hover = "training: %{y:.3f}, %{customdata} samples<extra></extra>";
  const traces = [
    {
      x: curve.step,
      y: curve.loss,
      customdata: curve.samples,
      name: "training",
      hovertemplate: hover,
      mode: few ? "lines+markers" : "lines",
      marker: { size: 5 },
      line: { color: color("--accent"), width: smooth ? 1 : 2 },
      opacity: smooth ? 0.35 : 1,
    },
  ];
  if (smooth) {
    const line = { color: color("--accent"), width: 2.5 };
    const y = smoothed(curve, SMOOTHING_STEPS);
    traces.push({ x: curve.step, y, mode: "lines", line, hoverinfo: "skip", showlegend: false });
  }
  if (validations.length) traces.push(heldOut(validations));
  element.querySelector("#curve")?.remove();
  const options = { responsive: true, displaylogo: false, displayModeBar: false };
  await plotly.react(element, traces, layout(phases, curve.step, validations.length > 0), options);
  element.dataset.steps = String(curve.step.length);
  element.dataset.validations = String(validations.length);
}
