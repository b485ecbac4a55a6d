// Formats numbers, sizes and times in the page's language.

import { language } from "./i18n.js";

export const number = (options) => new Intl.NumberFormat(language, options);
const whole = number({ maximumFractionDigits: 0 });
const compactDisplay = language === "bn" ? "long" : "short"; // the short form of lakh is little known
const compact = number({ notation: "compact", compactDisplay, maximumFractionDigits: 1 });
const decimals = number({ minimumFractionDigits: 3, maximumFractionDigits: 3 });
const significant = number({ maximumSignificantDigits: 3 });
const percent = number({ style: "percent", maximumFractionDigits: 1 });
const time = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" });
const day = new Intl.DateTimeFormat(language, { dateStyle: "medium" });
const relative = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "short" });
const NOTHING = "–";
const orNothing = (format) => (value, ...more) => (value === null || value === undefined ? NOTHING : format(value, ...more));

export const count = orNothing((value) => whole.format(value));
export const large = orNothing((value) => (value < 100_000 ? whole : compact).format(value));
export const decimal = orNothing((value) => number({ maximumFractionDigits: 1 }).format(value));
export const loss = orNothing((value) => decimals.format(value));
export const score = loss; // the format of a task's metric
export const perSecond = orNothing((value) => significant.format(value));
export const perplexity = orNothing((value) => significant.format(value));
export const share = orNothing((value) => percent.format(value));
export const moment = orNothing((unixSeconds) => time.format(new Date(unixSeconds * 1000)));
export const date = orNothing((unixSeconds) => day.format(new Date(unixSeconds * 1000)));

const SIZES = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte"];
export const size = orNothing((bytes) => {
  const index = Math.min(SIZES.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(1, bytes)) / 3)));
  return number({ style: "unit", unit: SIZES[index], maximumFractionDigits: 1 }).format(bytes / 1000 ** index);
});

// Chooses the unit for a duration, with the unit's length in seconds.
function unitOf(seconds) {
  if (seconds < 90) return ["second", 1];
  if (seconds < 5400) return ["minute", 60];
  if (seconds < 129_600) return ["hour", 3600];
  return ["day", 86_400];
}

export const duration = orNothing((seconds) => {
  const [unit, length] = unitOf(Math.abs(seconds));
  return number({ style: "unit", unit, unitDisplay: "long", maximumFractionDigits: 0 }).format(Math.ceil(seconds / length));
});
export const seconds = orNothing((value) =>
  number({ style: "unit", unit: "second", maximumFractionDigits: 1 }).format(value),
);
export const hours = orNothing((seconds) =>
  number({ style: "unit", unit: "hour", unitDisplay: "long", maximumFractionDigits: seconds < 36_000 ? 1 : 0 }).format(
    seconds / 3600,
  ),
);

// Formats the age of a time; a time ahead of this machine's clock counts as now.
export const ago = orNothing((unixSeconds, now = Date.now() / 1000) => {
  const seconds = Math.min(0, unixSeconds - now);
  const [unit, length] = unitOf(Math.abs(seconds));
  return relative.format(Math.round(seconds / length), unit);
});
