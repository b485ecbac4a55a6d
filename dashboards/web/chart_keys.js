// Keys that move and zoom a chart along its axis. Pure functions without elements or requests.

const STRIDE = 0.2; // length of a move, as a fraction of the visible range
const ZOOM = 2;
const LEAST = 0.01; // narrowest visible range, as a fraction of the whole

const FACTORS = { "+": 1 / ZOOM, "=": 1 / ZOOM, "-": ZOOM, _: ZOOM }; // with and without Shift
const DIRECTIONS = { ArrowLeft: -1, ArrowRight: 1 };

// Returns the visible range after a key press, from the visible range and the whole range.
// null: the whole range; undefined: the key has no effect.
export function afterKey(key, [from, to], [first, last]) {
  if (key === "Home") return null;
  const whole = last - first;
  const seen = Math.min(to - from, whole);
  if (!(key in FACTORS || key in DIRECTIONS)) return undefined;
  const width = Math.max(LEAST * whole, seen * (FACTORS[key] ?? 1));
  if (width >= whole) return null;
  const middle = (from + to) / 2 + STRIDE * seen * (DIRECTIONS[key] ?? 0);
  const start = Math.min(last - width, Math.max(first, middle - width / 2));
  return [start, start + width];
}
