// The points of the loss curve as a page holds them: thinned out by the server, and continued by each overview's
// newest steps without asking again. Pure: no element, no request.

export const COLUMNS = ["step", "loss", "samples", "samples_total", "completed_at"];
const LEAST_LOSS = 1e-3; // a logarithmic axis has no zero
const MARGIN = 0.05;

// Whether `recent` follows on what the curve has, so that nothing between them is missing.
export function follows(curve, era, recent) {
  const last = curve.step.at(-1);
  return curve.era === era && last !== undefined && recent.step.length > 0 && recent.step[0] <= last + 1;
}

// The curve with the newest steps in place of those it has of them. The smoothed loss goes on from the last point before,
// and the usual range takes them in.
export function continued(curve, recent) {
  const kept = curve.step.findLastIndex((step) => step < recent.step[0]) + 1;
  const next = { ...curve, smoothed: curve.smoothed && curve.smoothed.slice(0, kept) };
  for (const name of COLUMNS) next[name] = curve[name].slice(0, kept);
  recent.step.forEach((_, index) => {
    if (recent.loss[index] === null) return;
    for (const name of COLUMNS) next[name].push(recent[name][index]);
    if (next.usual) next.usual = [Math.min(next.usual[0], recent.loss[index]), Math.max(next.usual[1], recent.loss[index])];
    if (next.smoothed) {
      const before = next.smoothed.at(-1) ?? recent.loss[index];
      next.smoothed.push(before + (2 / (curve.smoothing + 1)) * (recent.loss[index] - before));
    }
  });
  return next;
}

// The places of the points whose `column` lies within a range.
export function within(curve, column, [low, high]) {
  return [...curve[column].keys()].filter((place) => curve[column][place] >= low && curve[column][place] <= high);
}

// All losses at these places, with a margin; null without any.
function rangeAt(curve, places) {
  if (!places.length) return null;
  const losses = places.map((place) => curve.loss[place]);
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  const margin = Math.max(MARGIN * (high - low), LEAST_LOSS);
  return [low - margin, high + margin];
}

// The range of an axis that begins after the first drop, or that fits the points at `places` alone, as Plotly wants it;
// undefined: all of the curve.
export function lossRange(curve, isWhole, isLogarithmic, places = null) {
  const range = places ? rangeAt(curve, places) : !isWhole && curve.usual;
  if (!range) return undefined;
  return isLogarithmic ? range.map((loss) => Math.log10(Math.max(loss, LEAST_LOSS))) : range;
}

// Where a step stands on an axis: the value of `column` there, between two points by proportion; null outside.
export function place(curve, column, step) {
  const steps = curve.step;
  const after = steps.findIndex((each) => each >= step);
  if (after < 0) return null;
  if (after === 0) return steps[0] === step ? curve[column][0] : null;
  const part = (step - steps[after - 1]) / (steps[after] - steps[after - 1]);
  return curve[column][after - 1] + part * (curve[column][after] - curve[column][after - 1]);
}
