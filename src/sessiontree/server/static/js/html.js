// What all views use: `html` templates, components and small shared controls. `SafeHtml` is the only place where text
// becomes markup, and it accepts only HTML that the server sanitized. All other text is escaped and made visible by
// `html`.
import { Component, createRef, h, render } from "../vendor/preact.mjs";
import htm from "../vendor/htm.mjs";
import { makeVisible } from "./sanitize.js";

export { Component, createRef, render };

const TEXT_ATTRIBUTES = ["title", "aria-label", "placeholder"]; // attributes that the user reads

const makeChildVisible = (child) => (typeof child === "string" ? makeVisible(child) : Array.isArray(child) ? child.map(makeChildVisible) : child);

const createElement = (type, props, ...children) => {
  const names = typeof type === "string" && props ? TEXT_ATTRIBUTES.filter((name) => typeof props[name] === "string") : [];
  const visible = names.length ? { ...props, ...Object.fromEntries(names.map((name) => [name, makeVisible(props[name])])) } : props;
  return h(type, visible, ...children.map(makeChildVisible));
};

export const html = htm.bind(createElement);

export const SafeHtml = ({ markup, name }) =>
  html`<div class=${name} dangerouslySetInnerHTML=${{ __html: markup }}></div>`;

/** A message, or nothing. The kind `wrong` is an error. */
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

/** A labelled control of a form with an optional hint. */
export const Field = ({ label, help, children, wide }) => html`
  <label class="field ${wide ? "wide" : ""}"><span>${label}</span>${children}${help && html`<small>${help}</small>`}</label>`;

/** An input for the name of a model, with suggestions. */
export const ModelInput = ({ name, models, placeholder, label, value, onInput }) => html`
  <input name=${name} list=${`${name}-models`} placeholder=${placeholder} autocomplete="off" spellcheck=${false}
    aria-label=${label} value=${value} onInput=${onInput} />
  <datalist id=${`${name}-models`}>${models.map((model) => html`<option value=${model}></option>`)}</datalist>`;

/** Explains why agents cannot run: the server or the token does not allow it. */
export const RunsUnavailable = ({ me, kind = "empty" }) => html`<p class=${kind}>${me.allowRun
  ? html`This token cannot run agents; it needs the scope <code>run</code>.`
  : html`This server does not run agents. Start it with <code>sessiontree serve --allow-run</code>.`}</p>`;

/** Return the values of a form by name, without empty ones. */
export const readForm = (form) =>
  Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value !== ""));
