// Which entries a tree filter shows, for entries that arrive live. Pure functions with the rules of core/outline.py.
// An entry that only calls tools counts as hidden even if it is the leaf.

const BOOKKEEPING = new Set([
  "label", "custom", "model_change", "thinking_level_change", "session_info", "context_edit", "usage", "model_usage",
  "service_tier_change", "title_change", "credential_pin", "session_init", "ttsr_injection", "mode_change", "reset_boundary",
]);

const isShown = (filter, { type, role, text, tools }) => {
  if (filter === "all") return true;
  if (filter === "labeled-only" || BOOKKEEPING.has(type)) return false;
  if (filter === "user-only") return role === "user";
  if (role === "assistant" && tools?.length && !text.trim()) return false;
  return filter === "default" || role !== "toolResult";
};

/**
 * Return the value of a key that a user chose, such as a branch name. Objects inherit keys: a branch may be called
 * `constructor` or `toString`.
 */
export const getOwn = (values, name) => (values && Object.hasOwn(values, name) ? values[name] : undefined);

/** A record of the files that a call changed counts for the result of the call. */
function countFiles(rows, { parent, files }) {
  const at = rows.findIndex(({ id }) => id === parent);
  if (at >= 0) rows[at] = { ...rows[at], files };
}

/** Add new rows under their nearest shown ancestors. Returns null if an ancestor is unknown. */
export function joinRows(rows, newRows, filter, hidden) {
  const known = new Set(rows.map((row) => row.id));
  const joined = [...rows];
  for (const row of newRows) {
    if (known.has(row.id)) continue;
    const parent = row.parent === null || known.has(row.parent) ? row.parent : hidden.get(row.parent);
    if (parent !== null && !known.has(parent)) return null;
    if (isShown(filter, row)) {
      known.add(row.id);
      joined.push({ ...row, parent });
    } else hidden.set(row.id, parent);
    if (row.type === "custom" && row.files) countFiles(joined, row);
  }
  return joined;
}

/** Group branches whose names share a prefix, as those of a swarm or an experiment do: `[{group, branches}]`. */
export function groupBranches(branches) {
  const getPrefix = ({ name }) => (name.includes("/") ? name.slice(0, name.indexOf("/")) : null);
  const sizes = new Map();
  for (const branch of branches) sizes.set(getPrefix(branch), (sizes.get(getPrefix(branch)) ?? 0) + 1);
  const groups = new Map(), found = [];
  for (const branch of branches) {
    const prefix = getPrefix(branch), group = prefix !== null && sizes.get(prefix) > 1 ? prefix : null;
    if (group === null || !groups.has(group)) {
      const made = { group, branches: [] };
      found.push(made);
      if (group !== null) groups.set(group, made);
    }
    (group === null ? found.at(-1) : groups.get(group)).branches.push(branch);
  }
  return found;
}
