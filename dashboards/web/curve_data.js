// The points of a page's loss curve, downsampled by the server and extended by the newest steps in
// each overview. Pure functions without elements or requests.

export const COLUMNS = ["step", "loss", "samples", "samples_total", "completed_at"];
const LEAST_LOSS = 1e-3; // a logarithmic axis has no zero
const MARGIN = 0.05;

// Returns whether `recent` continues the curve without a gap.
export function follows(curve, era, recent) {
  const last = curve.step.at(-1);
  return curve.era === era && last !== undefined && recent.step.length > 0 && recent.step[0] <= last + 1;
}

// Returns the curve with its newest steps replaced by `recent`. The smoothed loss continues from the
// last point before them, and the usual range is extended to include them.
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

// Returns the indices of the points whose `column` lies within a range.
export function within(curve, column, [low, high]) {
  return [...curve[column].keys()].filter((place) => curve[column][place] >= low && curve[column][place] <= high);
}

// Returns the range of the losses at these indices, with a margin; null without indices.
function rangeAt(curve, places) {
  if (!places.length) return null;
  const losses = places.map((place) => curve.loss[place]);
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  const margin = Math.max(MARGIN * (high - low), LEAST_LOSS);
  return [low - margin, high + margin];
}

// Returns the range of the loss axis for Plotly: after the initial drop, or of the points at
// `places`; undefined: the whole curve.
export function lossRange(curve, isWhole, isLogarithmic, places = null) {
  const range = places ? rangeAt(curve, places) : !isWhole && curve.usual;
  if (!range) return undefined;
  return isLogarithmic ? range.map((loss) => Math.log10(Math.max(loss, LEAST_LOSS))) : range;
}

// Returns the value of `column` at a step, interpolated between points; null outside the curve.
export function place(curve, column, step) {
  const steps = curve.step;
  const after = steps.findIndex((each) => each >= step);
  if (after < 0) return null;
  if (after === 0) return steps[0] === step ? curve[column][0] : null;
  const part = (step - steps[after - 1]) / (steps[after] - steps[after - 1]);
  return curve[column][after - 1] + part * (curve[column][after] - curve[column][after - 1]);
}
