// Small SVG charts: bars for branches, intervals for arms. Sizes are in view box units, colours come from the style
// sheet, and every chart has a text alternative.
import { html } from "./html.js";

const NAME = 28, BAR = 22, ARM = 70, WIDE = 320;

/** Bars of one metric, none where the value is not known. `items` are `[{name, value, text, best}]`. */
export const Bars = ({ title, items }) => {
  const most = Math.max(...items.map((item) => item.value ?? 0), 0) || 1;
  const said = `${title}: ${items.map((item) => `${item.name} ${item.text}`).join(", ")}`;
  return html`<figure class="chart">
    <figcaption>${title}</figcaption>
    <svg viewBox="0 0 ${WIDE} ${items.length * (NAME + BAR) - 6}" role="img" aria-label=${said}>
      ${items.map((item, index) => {
        const top = index * (NAME + BAR);
        const long = Math.max(2, (item.value / most) * WIDE);
        return html`<g class=${item.best ? "best" : ""}>
          <text x="0" y=${top + 16}>${clip(item.name, 30)}</text>
          <text x=${WIDE} y=${top + 16} class="value">${item.text}</text>
          <rect x="0" y=${top + 24} width=${WIDE} height="12" rx="6" class="groove" />
          ${isKnown(item.value) && html`<rect x="0" y=${top + 24} width=${long} height="12" rx="6" class="bar" />`}
        </g>`;
      })}
    </svg>
  </figure>`;
};

/** Means with their intervals on one scale. `items` are `[{name, mean, low, high, text, range, best}]`. */
export const Intervals = ({ title, items }) => {
  const known = items.flatMap(({ mean, low, high }) => [mean, low, high]).filter(isKnown);
  const least = Math.min(0, ...known), most = Math.max(...known, least) || 1;
  const place = (value) => 6 + ((value - least) / (most - least || 1)) * (WIDE - 12);
  const said = `${title}: ${items.map((item) => `${item.name} ${item.text}, ${item.range}`).join("; ")}`;
  return html`<figure class="chart intervals">
    <figcaption>${title}</figcaption>
    <svg viewBox="0 0 ${WIDE} ${items.length * ARM - 8}" role="img" aria-label=${said}>
      ${items.map((item, index) => {
        const top = index * ARM, y = top + 30;
        return html`<g class=${item.best ? "best" : ""}>
          <text x="0" y=${top + 16}>${clip(item.name, 28)}</text>
          <text x=${WIDE} y=${top + 16} class="value">${item.text}</text>
          <line x1="6" y1=${y} x2=${WIDE - 6} y2=${y} class="groove" />
          ${isKnown(item.low) && html`<path class="whisker" d=${whisker(place(item.low), place(item.high), y)} />`}
          ${isKnown(item.mean) && html`<circle cx=${place(item.mean)} cy=${y} r="5" class="mean" />`}
          <text x="0" y=${top + 50} class="range">${item.range}</text>
        </g>`;
      })}
    </svg>
  </figure>`;
};

/** A bar that is filled to a part of 1; `level` colours it. */
export const Meter = ({ part, label, level = "" }) => {
  const percent = Math.round(Math.min(1, Math.max(0, part ?? 0)) * 100);
  return html`<div class="meter ${level}" role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${percent}>
    <div style=${{ width: `${percent}%` }}></div>
  </div>`;
};

const isKnown = (value) => value !== null && value !== undefined;

const whisker = (low, high, y) => `M${low} ${y - 6}V${y + 6}M${low} ${y}H${high}M${high} ${y - 6}V${y + 6}`;

const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
