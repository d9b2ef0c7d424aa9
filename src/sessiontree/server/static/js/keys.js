// Keyboard shortcuts: one table of keys, and the listener. Keys that are typed into a control are text.

export const KEYS = [
  ["Everywhere", [
    ["/", "search"], ["s", "sessions"], ["w", "swarms"], ["d", "light or dark"], ["?", "show keys"],
    ["Esc", "close, or go back to the current branch"],
  ]],
  ["In a session", [
    ["t", "go to the tree"], ["p", "write a prompt"], ["j k", "next and previous entry"], ["g", "move to the selected entry"],
    ["b", "new branch from it"], ["l", "label it"], ["f", "fork from it"], ["m", "merge a branch"],
    ["u", "undo the last move, switch or merge"], ["c", "compare branches"], ["x", "A/B"],
  ]],
  ["In the tree", [
    ["↑ ↓", "along a branch"], ["← →", "to the next branch"], ["Home End", "to the root, to the leaf"],
    ["Enter", "to the conversation"], ["+ -", "zoom"], ["0", "fit tree"],
  ]],
];

const REPEATED = new Set(["j", "k"]); // keys that go on while they are held; all others act once

/** Call the work for the pressed key; gives the function that ends it. */
export function listen(works) {
  const heard = (event) => {
    const typed = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || event.isComposing) return;
    if (event.repeat && !REPEATED.has(event.key)) return;
    if ((typed && event.key !== "Escape") || document.querySelector("dialog[open]")) return;
    const work = Object.hasOwn(works, event.key) ? works[event.key] : null;
    if (!work) return;
    if (typed) typed.blur();
    event.preventDefault();
    work();
  };
  addEventListener("keydown", heard);
  return () => removeEventListener("keydown", heard);
}
