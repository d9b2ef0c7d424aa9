// Light and dark theme, stored in the browser, and the colours of the style sheet for the canvas.

const NAMES = ["panel", "ink", "soft", "line", "accent", "tint", "green", "green-tint", "amber", "amber-tint", "violet"];

/** The colours as they are now, light or dark. */
export function palette() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const found = {};
  for (const name of NAMES) {
    probe.style.color = `var(--${name})`;
    found[name] = getComputedStyle(probe).color;
  }
  found.sans = getComputedStyle(probe).fontFamily;
  probe.remove();
  return found;
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
dark.addEventListener("change", () => listeners.forEach((listener) => listener()));

/** Call `listener` whenever light becomes dark or back; gives the function that ends it. */
export function onScheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const KEY = "sessiontree.theme";
export function keepTheme() {
  const kept = localStorage.getItem(KEY);
  if (kept) document.documentElement.dataset.theme = kept;
}
export function toggleTheme() {
  const root = document.documentElement;
  const now = root.dataset.theme ?? (dark.matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  localStorage.setItem(KEY, root.dataset.theme);
  listeners.forEach((listener) => listener());
}
