// One measurement of the real pi, in a process of its own:
//
//   node pi.mjs <folder of the unpacked pi package> TASK '{"file": ...}'
//
// What is imported is not timed. Answers with one line of JSON; times are seconds.

import { mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const say = process.stdout.write.bind(process.stdout);
for (const name of ["log", "info", "debug"]) console[name] = console.error; // stdout is ours

const [home, task, given] = process.argv.slice(2);
const { SessionManager } = await import(pathToFileURL(join(home, "dist", "bundle", "index.js")).href);

const now = () => performance.now() / 1000;
const memory = (key) => Number(readFileSync("/proc/self/status", "utf8").match(`${key}:\\s+(\\d+)`)[1]) / 1024;

function messages(file, count) {
  const found = [];
  for (const line of readFileSync(file, "utf8").split("\n")) {
    if (found.length === count || !line) break;
    const entry = JSON.parse(line);
    if (entry.type === "message") found.push(entry.message);
  }
  return found;
}

function inScratch(scratch, work) {
  const folder = mkdtempSync(join(scratch, "pi-"));
  try {
    return work(folder);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const TASKS = {
  context({ file }) {
    const start = now();
    const { messages } = SessionManager.open(file).buildSessionContext();
    return { seconds: now() - start, messages: messages.length };
  },

  open_tree({ file }) {
    const before = memory("VmRSS");
    const start = now();
    const manager = SessionManager.open(file);
    const leaf = manager.getLeafId();
    const seconds = now() - start;
    return {
      seconds,
      entries: manager.getEntryCount(),
      leaf,
      peak: memory("VmHWM") - before,
      kept: memory("VmRSS") - before,
    };
  },

  append({ file, count, scratch }) {
    const all = messages(file, count);
    return inScratch(scratch, (folder) => {
      const manager = SessionManager.create("/project", folder);
      for (const message of all.slice(0, 20)) manager.appendMessage(message);
      const start = now();
      for (const message of all) manager.appendMessage(message);
      const seconds = (now() - start) / all.length;
      const payload = [...all, ...all.slice(0, 20)].map((message) => Buffer.byteLength(JSON.stringify(message)));
      const size = statSync(manager.getSessionFile()).size;
      return { seconds, disk: size / payload.reduce((sum, bytes) => sum + bytes, 0) };
    });
  },

  fork({ file, scratch }) {
    return inScratch(scratch, (folder) => {
      const start = now();
      const manager = SessionManager.open(file, folder);
      const opened = now();
      const made = manager.createBranchedSession(manager.getLeafId());
      const done = now();
      return { seconds: done - opened, with_open: done - start, bytes: statSync(made).size };
    });
  },

  async sessions() {
    const start = now(); // the folder is in PI_CODING_AGENT_DIR
    const found = await SessionManager.listAll();
    return { seconds: now() - start, sessions: found.length };
  },
};

say(`${JSON.stringify(await TASKS[task](JSON.parse(given)))}\n`);
process.exit(0);
