// Drives the real pi SessionManager for the tests.
//
//   node pi.mjs <folder of the unpacked pi package>
//
// Says {"ready": true, "version": ...} once, then reads one JSON request per line on stdin
// and answers each with one JSON line: {"ok": ...} or {"error": "..."}. Requests: HANDLERS.
// Opening a file is what pi does on resume, so it may repair or migrate that file.

import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
for (const name of ["log", "info", "debug"]) console[name] = console.error; // stdout is ours

const home = process.argv[2];
const pi = await import(pathToFileURL(join(home, "dist", "bundle", "index.js")).href);
const { version } = JSON.parse(readFileSync(join(home, "package.json"), "utf8"));

const METHODS = new Set([
  "appendMessage", "appendLabelChange", "appendSessionInfo", "appendModelChange",
  "appendThinkingLevelChange", "appendCompaction", "appendCustomEntry",
  "appendCustomMessageEntry", "appendContextEdit", "appendUsage",
  "branch", "resetLeaf", "branchWithSummary", "createBranchedSession",
]);

const text = (error) => (error instanceof Error ? error.message : String(error));

// Inside arguments {"$ref": n} stands for the id made by operation n, {"$undefined": true} for undefined.
function fill(value, made) {
  if (Array.isArray(value)) return value.map((item) => fill(item, made));
  if (value === null || typeof value !== "object") return value;
  if ("$ref" in value) return made[value.$ref];
  if ("$undefined" in value) return undefined;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, fill(item, made)]));
}

// Each operation is [method, ...arguments]. A failing one is noted, and the rest still run.
function run(manager, ops) {
  const ids = [];
  const errors = {};
  ops.forEach(([method, ...args], index) => {
    ids.push(null);
    try {
      if (!METHODS.has(method)) throw new Error(`unknown operation ${method}`);
      const result = manager[method](...args.map((arg) => fill(arg, ids)));
      ids[index] = (typeof result === "object" ? result?.id : result) ?? null;
    } catch (error) {
      errors[index] = text(error);
    }
  });
  const file = manager.getSessionFile() ?? null;
  return {
    ids,
    errors,
    leafId: manager.getLeafId(),
    sessionId: manager.getSessionId(),
    file,
    written: file !== null && existsSync(file),
  };
}

// Depth first in pi's order, flat because a chain may be deeper than JSON readers can nest.
function flatTree(roots) {
  const rows = [];
  const stack = roots.map((node) => [node, 0]).reverse();
  while (stack.length > 0) {
    const [node, depth] = stack.pop();
    rows.push({ id: node.entry.id, depth, label: node.label, labelTimestamp: node.labelTimestamp });
    for (let i = node.children.length - 1; i >= 0; i--) stack.push([node.children[i], depth + 1]);
  }
  return rows;
}

function contextAt(entries, leaf) {
  const { model, thinkingLevel, messages } = pi.buildSessionContext(entries, leaf);
  return { leaf, model, thinkingLevel, messages, llm: pi.convertToLlm(messages) };
}

const HANDLERS = {
  describe({ file, leaves = [] }) {
    const manager = pi.SessionManager.open(file);
    const entries = manager.getEntries();
    const labels = {};
    for (const { id } of entries) {
      const label = manager.getLabel(id);
      if (label !== undefined) labels[id] = label;
    }
    return {
      header: manager.getHeader(),
      entryCount: manager.getEntryCount(),
      leafId: manager.getLeafId(),
      branch: manager.getBranch().map((entry) => entry.id),
      tree: flatTree(manager.getTree()),
      labels,
      name: manager.getSessionName() ?? null,
      contexts: leaves.map((leaf) => {
        try {
          return contextAt(entries, leaf);
        } catch (error) {
          return { leaf, error: text(error) };
        }
      }),
    };
  },

  apply({ file, ops }) {
    return run(pi.SessionManager.open(file), ops);
  },

  create({ dir, cwd, options, ops = [] }) {
    return run(pi.SessionManager.create(cwd, dir, options), ops);
  },

  collect({ file, pairs }) {
    const manager = pi.SessionManager.open(file);
    return pairs.map(([from, to]) => {
      const found = pi.collectEntriesForBranchSummary(manager, from, to);
      return { from, to, commonAncestorId: found.commonAncestorId, ids: found.entries.map((entry) => entry.id) };
    });
  },

  // The new file goes to a folder of its own and is removed again: only its lines matter.
  fork({ file, at }) {
    const dir = mkdtempSync(join(tmpdir(), "pi-fork-"));
    try {
      const manager = pi.SessionManager.open(file, dir);
      const made = manager.createBranchedSession(at);
      const written = existsSync(made);
      const lines = written
        ? readFileSync(made, "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line))
        : [manager.getHeader(), ...manager.getEntries()];
      return { at, written, leafId: manager.getLeafId(), lines };
    } finally {
      rmSync(dir, { recursive: true, force: true });
    }
  },
};

function answer(line) {
  try {
    const request = JSON.parse(line);
    if (!Object.hasOwn(HANDLERS, request.op)) throw new Error(`unknown request ${request.op}`);
    const ok = HANDLERS[request.op](request);
    JSON.stringify(ok); // a value that cannot be written is this request's error
    say({ ok });
  } catch (error) {
    say({ error: text(error) });
  }
}

process.on("uncaughtException", (error) => console.error(error));
process.on("unhandledRejection", (error) => console.error(error));

say({ ready: true, version });
process.stdin.setEncoding("utf8");
let pending = "";
for await (const chunk of process.stdin) {
  const lines = (pending + chunk).split("\n");
  pending = lines.pop();
  for (const line of lines) answer(line);
}
process.exit(0);
