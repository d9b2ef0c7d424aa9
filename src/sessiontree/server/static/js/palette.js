// Light and dark theme, stored in the browser, and the colours of the style sheet for the canvas.

const NAMES = ["panel", "ink", "soft", "line", "accent", "tint", "green", "green-tint", "amber", "amber-tint", "violet", "red", "edge"];

/** Return the colours of the current theme. */
export function readPalette() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const colours = {};
  for (const name of NAMES) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  colours.sans = getComputedStyle(probe).fontFamily;
  probe.remove();
  return colours;
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
dark.addEventListener("change", () => listeners.forEach((listener) => listener()));

/** Call `listener` when the theme changes. Returns a function that stops it. */
export function onThemeChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const KEY = "sessiontree.theme";
export function restoreTheme() {
  const theme = localStorage.getItem(KEY);
  if (theme) document.documentElement.dataset.theme = theme;
}
export function toggleTheme() {
  const root = document.documentElement;
  const now = root.dataset.theme ?? (dark.matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  localStorage.setItem(KEY, root.dataset.theme);
  listeners.forEach((listener) => listener());
}
