// The keys that move and zoom a chart along its axis. Pure: no element, no request.

const STRIDE = 0.2; // of what is seen
const ZOOM = 2;
const LEAST = 0.01; // of the whole: no closer

const FACTORS = { "+": 1 / ZOOM, "=": 1 / ZOOM, "-": ZOOM, _: ZOOM }; // also on the same keys without, and with, Shift
const DIRECTIONS = { ArrowLeft: -1, ArrowRight: 1 };

// What is seen after a key, of what was seen before and of the whole, each [from, to]; null: the whole; undefined: no such key.
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
