// Keyboard shortcuts: one table of keys, and the listener. Keys that are typed into a control are text.

export const KEYS = [
  ["Everywhere", [
    ["/", "search"], ["s", "sessions"], ["w", "swarms"], ["o", "overview"], ["d", "switch theme"], ["?", "show shortcuts"],
    ["Esc", "close, or go back to the current branch"],
  ]],
  ["In a session", [
    ["t", "go to the tree"], ["p", "write a prompt"], ["j k", "next and previous entry"], ["g", "move to the selected entry"],
    ["b", "new branch from it"], ["l", "label it"], ["f", "fork from it"], ["m", "merge a branch"],
    ["u", "undo the last move, switch or merge"], ["c", "compare branches"], ["e", "edit the focused or last prompt"],
    ["r", "retry the focused or last answer"], ["[ ]", "previous and next version"], ["v", "show the model's view"], ["x", "A/B runs"],
  ]],
  ["In the tree", [
    ["↑ ↓", "move along the branch"], ["← →", "move to the next branch"], ["Home End", "go to the root or leaf"],
    ["Enter", "open the conversation"], ["+ -", "zoom"], ["0", "fit tree"],
  ]],
];

const SETTING = "sessiontree.keys";
export const hasShortcuts = () => localStorage.getItem(SETTING) !== "off";
export const setShortcuts = (on) => localStorage.setItem(SETTING, on ? "on" : "off");

const REPEATED = new Set(["j", "k"]); // keys that repeat while they are held

/** Call the action of each pressed key. Returns a function that stops it. */
export function listenForKeys(actions) {
  const onKey = (event) => {
    const typed = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || event.isComposing) return;
    if (event.repeat && !REPEATED.has(event.key)) return;
    if ((typed && event.key !== "Escape") || document.querySelector("dialog[open]")) return;
    const action = Object.hasOwn(actions, event.key) ? actions[event.key] : null;
    if (!action || (event.key !== "Escape" && !hasShortcuts())) return;
    if (typed) typed.blur();
    event.preventDefault();
    action();
  };
  addEventListener("keydown", onKey);
  return () => removeEventListener("keydown", onKey);
}
