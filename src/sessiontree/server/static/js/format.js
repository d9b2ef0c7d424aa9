// Formats numbers and times. Pure functions: the current time is an argument.

export const formatCount = (value) => Math.round(value ?? 0).toLocaleString("en");

export const pluralize = (value, word, plural = `${word}s`) => `${formatCount(value)} ${value === 1 ? word : plural}`;

/** 12,300 as `12k`. */
export const formatShort = (value) => {
  if (!value) return "0";
  if (value < 1000) return String(Math.round(value));
  if (value < 1_000_000) return `${value < 10_000 ? (value / 1000).toFixed(1).replace(/\.0$/, "") : Math.round(value / 1000)}k`;
  return `${(value / 1_000_000).toFixed(1).replace(/\.0$/, "")}M`;
};

/** Used tokens. A dash if they were not measured. */
export const formatTokens = (value) => (value ? formatShort(value) : "–");

/** 0.05 as `$0.05`, with as many digits as needed. A dash if it was not measured. */
export const formatCost = (value) => {
  if (!value) return "–";
  if (value < 0) return `-${formatCost(-value)}`;
  if (value >= 1) return `$${value.toFixed(2)}`;
  const digits = Math.max(2, Math.min(12, 2 - Math.floor(Math.log10(value))));
  return `$${value.toFixed(digits).replace(/(\.\d\d.*?)0+$/, "$1")}`;
};

/** 95 seconds as `1 min 35 s`. */
export const formatDuration = (seconds) => {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1).replace(/\.0$/, "") : Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return whole % 60 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${whole / 60} min`;
  const minutes = Math.round(whole / 60);
  return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h`;
};

/** The approximate age of a time, such as `5 min ago`. */
export const formatAge = (iso, now) => {
  const then = Date.parse(iso);
  if (Number.isNaN(then)) return "";
  const minutes = (now - then) / 60_000;
  if (minutes < 1) return "just now";
  if (minutes < 60) return `${Math.floor(minutes)} min ago`;
  if (minutes < 60 * 24) return `${Math.floor(minutes / 60)} h ago`;
  if (minutes < 60 * 24 * 30) return pluralize(Math.floor(minutes / 60 / 24), "day") + " ago";
  return formatDay(iso);
};

const padTwo = (value) => String(value).padStart(2, "0");

export const formatDay = (iso) => {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? "" : `${date.getFullYear()}-${padTwo(date.getMonth() + 1)}-${padTwo(date.getDate())}`;
};

export const formatClock = (iso) => {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? "" : `${padTwo(date.getHours())}:${padTwo(date.getMinutes())}:${padTwo(date.getSeconds())}`;
};

/** Return a value, or null if no entry records it: it may or may not have been 0. */
export const getMeasured = (stats, name, value) => (stats.measured.includes(name) ? value : null);

/** A value in the format of its metric: `cost` 0.05 as `$0.05`. */
export const formatMetric = (metric, value) => {
  if (value === null || value === undefined) return "–";
  if (metric === "cost") return formatCost(value);
  if (metric === "tokens" || metric === "entries") return formatCount(value);
  if (metric === "time" || metric === "seconds") return formatDuration(value);
  return String(Math.round(value * 1000) / 1000);
};
