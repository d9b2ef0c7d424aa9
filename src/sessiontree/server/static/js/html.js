// What all views use: `html` templates, components and small shared controls. `Cleaned` is the only place where text
// becomes markup, and it accepts only HTML that the server sanitized. All other text is escaped and made visible by
// `html`.
import { Component, createRef, h, render } from "../vendor/preact.mjs";
import htm from "../vendor/htm.mjs";
import { visible } from "./visible.js";

export { Component, createRef, render };

const READ = ["title", "aria-label", "placeholder"]; // attributes that people read

const shown = (child) => (typeof child === "string" ? visible(child) : Array.isArray(child) ? child.map(shown) : child);

const made = (type, props, ...children) => {
  const read = typeof type === "string" && props ? READ.filter((name) => typeof props[name] === "string") : [];
  const told = read.length ? { ...props, ...Object.fromEntries(read.map((name) => [name, visible(props[name])])) } : props;
  return h(type, told, ...children.map(shown));
};

export const html = htm.bind(made);

export const Cleaned = ({ markup, name }) =>
  html`<div class=${name} dangerouslySetInnerHTML=${{ __html: markup }}></div>`;

/** A line that says what happened, or nothing; `wrong` is an error. */
export const Notice = ({ text, kind = "", action }) =>
  text ? html`<p class="notice ${kind}" role=${kind === "wrong" ? "alert" : "status"}><span>${text}</span>${action}</p>` : null;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

export const Chip = ({ kind, children }) => html`<span class="chip ${kind}">${children}</span>`;

/** A button; `keys` is shown in its tooltip. */
export const Button = ({ label, title, keys, kind = "", onClick, disabled, pressed, type = "button", name }) => html`
  <button
    type=${type}
    class=${kind}
    disabled=${disabled}
    aria-pressed=${pressed}
    aria-label=${name}
    title=${[title, keys && `(${keys})`].filter(Boolean).join(" ") || undefined}
    onClick=${onClick}
  >${label}</button>`;

/** A labelled control of a form; `help` says what it takes. */
export const Field = ({ label, help, children, wide }) => html`
  <label class="field ${wide ? "wide" : ""}"><span>${label}</span>${children}${help && html`<small>${help}</small>`}</label>`;

/** A control for the name of a model; any may be written, those that are ready are offered. */
export const Models = ({ name, models, placeholder, label, value, onInput }) => html`
  <input name=${name} list=${`${name}-models`} placeholder=${placeholder} autocomplete="off" spellcheck=${false}
    aria-label=${label} value=${value} onInput=${onInput} />
  <datalist id=${`${name}-models`}>${models.map((model) => html`<option value=${model}></option>`)}</datalist>`;

/** Why no agent can be run: the server does not, or the token may not. */
export const NoRuns = ({ me, kind = "empty" }) => html`<p class=${kind}>${me.allowRun
  ? html`This token cannot run agents; it needs the scope <code>run</code>.`
  : html`This server does not run agents. Start it with <code>sessiontree serve --allow-run</code>.`}</p>`;

/** What a form holds, by the names of its controls; empty texts are left out. */
export const valuesOf = (form) =>
  Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value !== ""));
