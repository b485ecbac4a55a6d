// The keys that move and zoom a chart along its axis. Pure: no element, no request.

const STRIDE = 0.2; // of the visible range
const ZOOM = 2;
const LEAST = 0.01; // of the whole: the narrowest visible range

const FACTORS = { "+": 1 / ZOOM, "=": 1 / ZOOM, "-": ZOOM, _: ZOOM }; // with and without Shift
const DIRECTIONS = { ArrowLeft: -1, ArrowRight: 1 };

// Returns the visible range after a key, from the present one and the whole, each [from, to].
// null: the whole; undefined: the key has no effect.
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
