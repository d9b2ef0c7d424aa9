// Small SVG charts: bars for branches, intervals for arms. Sizes are in view box units, colours come from the style
// sheet, and every chart has a text alternative.
import { html } from "./html.js";

const NAME = 28, BAR = 22, ARM = 70, WIDTH = 320;

/** Bars of one metric. An unknown value has no bar. `items` are `[{name, value, text, best}]`. */
export const Bars = ({ title, items }) => {
  const max = Math.max(...items.map((item) => item.value ?? 0), 0) || 1;
  const label = `${title}: ${items.map((item) => `${item.name} ${item.text}`).join(", ")}`;
  return html`<figure class="chart">
    <figcaption>${title}</figcaption>
    <svg viewBox="0 0 ${WIDTH} ${items.length * (NAME + BAR) - 6}" role="img" aria-label=${label}>
      ${items.map((item, index) => {
        const top = index * (NAME + BAR);
        const width = Math.max(2, (item.value / max) * WIDTH);
        return html`<g class=${item.best ? "best" : ""}>
          <text x="0" y=${top + 16}>${clip(item.name, 30)}</text>
          <text x=${WIDTH} y=${top + 16} class="value">${item.text}</text>
          <rect x="0" y=${top + 24} width=${WIDTH} height="12" rx="6" class="groove" />
          ${isKnown(item.value) && html`<rect x="0" y=${top + 24} width=${width} height="12" rx="6" class="bar" />`}
        </g>`;
      })}
    </svg>
  </figure>`;
};

/** Columns over time, with the highest value. `items` are `[{name, value}]`. */
export const Columns = ({ title, items, format }) => {
  const height = 96, max = Math.max(...items.map(({ value }) => value), 0);
  const step = WIDTH / items.length, width = Math.max(1, step - Math.min(3, step / 4));
  const known = items.filter(({ value }) => value > 0);
  const label = known.length ? `${title}: ${known.map(({ name, value }) => `${name} ${format(value)}`).join(", ")}` : `${title}: none`;
  return html`<figure class="chart columns-over-time">
    <figcaption>${title}</figcaption>
    <svg viewBox="0 0 ${WIDTH} ${height + 22}" role="img" aria-label=${label}>
      <text x=${WIDTH} y="12" class="value">${max ? `highest ${format(max)}` : "none"}</text>
      ${items.map(({ name, value }, index) => value > 0 && html`<rect key=${name} x=${index * step} width=${width} class="bar"
        y=${height - Math.max(2, (value / max) * (height - 20))} height=${Math.max(2, (value / max) * (height - 20))} rx="1">
        <title>${name}: ${format(value)}</title></rect>`)}
      <line x1="0" y1=${height} x2=${WIDTH} y2=${height} class="axis" />
      <text x="0" y=${height + 17} class="range">${items[0]?.name}</text>
      <text x=${WIDTH} y=${height + 17} class="range end">${items.at(-1)?.name}</text>
    </svg>
  </figure>`;
};

/** Means with their intervals on one scale. `items` are `[{name, mean, low, high, text, range, best}]`. */
export const Intervals = ({ title, items }) => {
  const known = items.flatMap(({ mean, low, high }) => [mean, low, high]).filter(isKnown);
  const min = Math.min(0, ...known), max = Math.max(...known, min) || 1;
  const getX = (value) => 6 + ((value - min) / (max - min || 1)) * (WIDTH - 12);
  const label = `${title}: ${items.map((item) => `${item.name} ${item.text}, ${item.range}`).join("; ")}`;
  return html`<figure class="chart intervals">
    <figcaption>${title}</figcaption>
    <svg viewBox="0 0 ${WIDTH} ${items.length * ARM - 8}" role="img" aria-label=${label}>
      ${items.map((item, index) => {
        const top = index * ARM, y = top + 30;
        return html`<g class=${item.best ? "best" : ""}>
          <text x="0" y=${top + 16}>${clip(item.name, 28)}</text>
          <text x=${WIDTH} y=${top + 16} class="value">${item.text}</text>
          <line x1="6" y1=${y} x2=${WIDTH - 6} y2=${y} class="groove" />
          ${isKnown(item.low) && html`<path class="whisker" d=${drawWhisker(getX(item.low), getX(item.high), y)} />`}
          ${isKnown(item.mean) && html`<circle cx=${getX(item.mean)} cy=${y} r="5" class="mean" />`}
          <text x="0" y=${top + 50} class="range">${item.range}</text>
        </g>`;
      })}
    </svg>
  </figure>`;
};

/** A difference over time with its interval as a band. `points` are `[{pairs, difference, low, high}]`. */
export const Trend = ({ title, points, text }) => {
  const height = 120;
  const end = points[points.length - 1];
  const known = [0, end.low, end.high, ...points.map(({ difference }) => difference)].filter(isKnown);
  const margin = (Math.max(...known) - Math.min(...known)) / 2; // early intervals are wide: only their middle is shown
  const min = Math.min(...known) - margin, max = Math.max(...known) + margin, last = end.pairs;
  const getX = (pairs) => 6 + (pairs / last) * (WIDTH - 12);
  const getY = (value) => 6 + ((max - Math.min(max, Math.max(min, value))) / (max - min || 1)) * (height - 12);
  const draw = (items) => items.map(([pairs, value]) => `${getX(pairs)},${getY(value)}`).join(" ");
  const sure = points.filter(({ low }) => isKnown(low));
  const band = [...sure.map(({ pairs, low }) => [pairs, low]), ...sure.map(({ pairs, high }) => [pairs, high]).reverse()];
  return html`<figure class="chart trend">
    <figcaption>${title}</figcaption>
    <svg viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label=${`${title}: ${text}`}>
      ${sure.length > 1 && html`<polygon points=${draw(band)} class="band" />`}
      <line x1="6" y1=${getY(0)} x2=${WIDTH - 6} y2=${getY(0)} class="zero" />
      <polyline points=${draw(points.map(({ pairs, difference }) => [pairs, difference]))} class="line" />
    </svg>
    <p class="more">${text}</p>
  </figure>`;
};

/** A progress bar. `part` is from 0 to 1; `level` sets the colour. */
export const Meter = ({ part, label, level = "" }) => {
  const percent = Math.round(Math.min(1, Math.max(0, part ?? 0)) * 100);
  return html`<div class="meter ${level}" role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${percent}>
    <div style=${{ width: `${percent}%` }}></div>
  </div>`;
};

const isKnown = (value) => value !== null && value !== undefined;

const drawWhisker = (low, high, y) => `M${low} ${y - 6}V${y + 6}M${low} ${y}H${high}M${high} ${y - 6}V${y + 6}`;

const clip = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
