// Numbers, sizes and times as the reader's language writes them.

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const decimals = new Intl.NumberFormat(undefined, { minimumFractionDigits: 3, maximumFractionDigits: 3 });
const rate = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 });
const percent = new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: 1 });
const time = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

export const count = (value) => whole.format(value);
export const large = (value) => (value < 100_000 ? whole : compact).format(value);
export const loss = (value) => (value === null ? "-" : decimals.format(value));
export const perSecond = (value) => rate.format(value);
export const perplexity = (value) => (value === null ? "-" : rate.format(value));
export const share = (value) => percent.format(value);
export const moment = (unixSeconds) => time.format(new Date(unixSeconds * 1000));

export function size(bytes) {
  const units = ["byte", "kilobyte", "megabyte", "gigabyte"];
  const index = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(1, bytes)) / 3)));
  const format = { style: "unit", unit: units[index], maximumFractionDigits: 1 };
  return new Intl.NumberFormat(undefined, format).format(bytes / 1000 ** index);
}

export function duration(seconds) {
  if (seconds < 90) return `${count(Math.ceil(seconds))} s`;
  if (seconds < 5400) return `${count(Math.round(seconds / 60))} min`;
  return `${count(Math.round(seconds / 3600))} h`;
}
