// The run's loss curve with the parts that one member contributed to.

import { drawing } from "./dom.js";

const WIDTH = 1000;
const HEIGHT = 200;

// Returns the points in a range of steps, and the point after it so that single steps are visible.
export function within(curve, [first, last]) {
  const inside = [];
  for (let index = 0; index < curve.step.length; index += 1) {
    if (curve.step[index] >= first && curve.step[index] <= last) inside.push(index);
  }
  if (inside.length && inside.at(-1) + 1 < curve.step.length) inside.push(inside.at(-1) + 1);
  return inside;
}

// Draws the curve (columns `step` and `loss`) as SVG; `ranges`: pairs of steps; `label`: its text.
export function ownCurve(curve, ranges, label) {
  const last = Math.max(1, curve.step.at(-1));
  const losses = [...curve.loss].sort((one, other) => one - other);
  const low = losses[0];
  const high = Math.max(low + 1e-6, losses[Math.min(losses.length - 1, Math.floor(0.995 * losses.length))]);
  const x = (step) => ((WIDTH * step) / last).toFixed(1);
  const y = (loss) => (HEIGHT - 6 - ((HEIGHT - 12) * (Math.min(loss, high) - low)) / (high - low)).toFixed(1);
  const line = (indexes) => indexes.map((index) => `${x(curve.step[index])},${y(curve.loss[index])}`).join(" ");
  const svg = drawing("svg", {
    class: "own-curve",
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": label,
  });
  for (const [first, end] of ranges) {
    const width = Math.max(1, x(end) - x(first - 1));
    svg.append(drawing("rect", { class: "own-range", x: x(first - 1), y: 0, width, height: HEIGHT }));
  }
  svg.append(drawing("polyline", { class: "run", points: line(curve.step.map((_, index) => index)) }));
  for (const range of ranges) svg.append(drawing("polyline", { class: "own", points: line(within(curve, range)) }));
  return svg;
}
