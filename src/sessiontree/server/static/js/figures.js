// Formats numbers and times. Pure functions: the current time is an argument.

export const count = (value) => Math.round(value ?? 0).toLocaleString("en");

export const plural = (value, word, many = `${word}s`) => `${count(value)} ${value === 1 ? word : many}`;

/** 12,300 as `12k`. */
export const short = (value) => {
  if (!value) return "0";
  if (value < 1000) return String(Math.round(value));
  if (value < 1_000_000) return `${value < 10_000 ? (value / 1000).toFixed(1).replace(/\.0$/, "") : Math.round(value / 1000)}k`;
  return `${(value / 1_000_000).toFixed(1).replace(/\.0$/, "")}M`;
};

/** Tokens that were taken. Nothing is what nobody has measured. */
export const taken = (value) => (value ? short(value) : "–");

/** 0.05 as `$0.05`, with as many digits as it takes. Nothing is what nobody has measured. */
export const money = (value) => {
  if (!value) return "–";
  if (value < 0) return `-${money(-value)}`;
  if (value >= 1) return `$${value.toFixed(2)}`;
  const digits = Math.max(2, Math.min(12, 2 - Math.floor(Math.log10(value))));
  return `$${value.toFixed(digits).replace(/(\.\d\d.*?)0+$/, "$1")}`;
};

/** 95 seconds as `1 min 35 s`. */
export const duration = (seconds) => {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1).replace(/\.0$/, "") : Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return whole % 60 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${whole / 60} min`;
  const minutes = Math.round(whole / 60);
  return minutes % 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes / 60} h`;
};

/** How long ago a time was, roughly. */
export const ago = (iso, now) => {
  const then = Date.parse(iso);
  if (Number.isNaN(then)) return "";
  const minutes = (now - then) / 60_000;
  if (minutes < 1) return "just now";
  if (minutes < 60) return `${Math.floor(minutes)} min ago`;
  if (minutes < 60 * 24) return `${Math.floor(minutes / 60)} h ago`;
  if (minutes < 60 * 24 * 30) return plural(Math.floor(minutes / 60 / 24), "day") + " ago";
  return day(iso);
};

const two = (value) => String(value).padStart(2, "0");

export const day = (iso) => {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? "" : `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
};

export const clock = (iso) => {
  const date = new Date(iso);
  return Number.isNaN(date.getTime()) ? "" : `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
};

/** A value that was measured; null where no entry records it, since nobody knows whether it was 0. */
export const measured = (of, name, value) => (of.measured.includes(name) ? value : null);

/** What a metric's value is called: `cost` 0.05 is `$0.05`. */
export const figure = (metric, value) => {
  if (value === null || value === undefined) return "–";
  if (metric === "cost") return money(value);
  if (metric === "tokens" || metric === "entries") return count(value);
  if (metric === "time" || metric === "seconds") return duration(value);
  return String(Math.round(value * 1000) / 1000);
};
