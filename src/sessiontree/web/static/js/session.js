// One session as the page knows it: its tree, its branches, the path that is shown, and what happens while one looks.
// It asks the server and listens to it; views read its fields and call its methods. Nothing here draws.
import { at } from "./api.js";
import { lay, pathTo } from "./layout.js";
import { join } from "./rows.js";
import { Stream } from "./stream.js";

const TREE_PAGE = 1000, PATH_PAGE = 60;
// Milliseconds: until events are worked out together, until an entry's path is asked for, between looks at the figures
const SETTLE = 40, STAY = 60, INFO = 1500;
const MOST_PAGES = 5; // of the path, kept at once: what is further away is loaded again when one comes back

export class Session {
  /** `changed()` is called whenever there is something to draw, `tell(text, kind)` with what a handler says. */
  constructor(api, id, { changed, tell }) {
    Object.assign(this, { api, id, changed, tell });
    this.base = at("sessions", id);
    this.filter = "default";
    this.info = null;
    this.branches = [];
    this.current = "main";
    this.rows = [];
    this.layout = lay([]);
    this.heads = new Map();
    this.entryHeads = new Map();
    this.selected = null; // an entry that was pointed at; null follows a branch
    this.looking = null; // another branch than the current one that is being read
    this.pages = [];
    this.loading = true;
    this.error = null;
    this.connection = "waiting";
    this.runs = new Map();
    this.early = [];
    this.fresh = []; // entries that have come in and are not yet among the rows
    this.hidden = new Map(); // those that the filter hides, with the shown entry they hang on
    this.stale = {};
  }

  async open() {
    this.stream?.stop();
    this.closed = false;
    this.early = [];
    this.stream = new Stream(this.api, `${this.base}/events`, {
      heard: (event) => (this.early ? this.early.push(event) : this.hear(event)),
      resync: () => {
        [this.selected, this.looking] = [null, null];
        this.open();
      },
      state: (state, error) => {
        if (state === "live" && !this.early) this.stale.info = true; // nobody tells what ended meanwhile
        this.connection = state;
        if (error) this.error = error.message;
        this.changed();
      },
    });
    try {
      await this.loadInfo();
      this.setHeads({ [this.current]: this.info.leaf });
      this.error = null;
      await this.loadRest();
    } catch (error) {
      this.error = error.message;
    }
    this.loading = false;
    const early = this.early ?? [];
    this.early = null;
    early.forEach((event) => this.hear(event));
    this.changed();
  }

  close() {
    this.closed = true;
    this.stream?.stop();
    clearTimeout(this.soon);
    clearTimeout(this.due);
    clearTimeout(this.staying);
  }

  // What is there

  get leaf() {
    return this.heads.get(this.current) ?? null;
  }
  /** The branch that is read: none when an entry inside the tree was pointed at. */
  get branch() {
    if (!this.selected) return this.looking ?? this.current;
    const names = this.entryHeads.get(this.selected) ?? [];
    return names.find((name) => name === (this.looking ?? this.current)) ?? names[0] ?? null;
  }
  /** The entry where the shown path ends. */
  get end() {
    return this.selected ?? this.heads.get(this.looking ?? this.current) ?? null;
  }
  get entries() {
    return this.pages.flatMap((page) => page.entries);
  }
  get earlier() {
    return this.pages[0]?.previous ?? null;
  }
  get later() {
    return this.pages.at(-1)?.next ?? null;
  }
  get running() {
    return new Set([...this.runs].filter(([, run]) => isAtWork(run)).map(([branch]) => branch));
  }
  /** As the tree tells it, or the path where the filter hides the entry from the tree. */
  labelOf(id, said = this.entries.find((entry) => entry.id === id)) {
    const row = this.layout.nodes[this.layout.index.get(id) ?? -1]?.row ?? said;
    return row?.label ?? null;
  }

  async loadInfo() {
    this.lookedAt = performance.now();
    const before = new Map(this.runs), heads = this.heads;
    this.info = await this.api.get(this.base);
    if (this.heads === heads) this.current = this.info.branch; // no event has told more since
    const running = new Set(this.info.running);
    for (const branch of new Set([...before.keys(), ...running])) {
      const run = before.get(branch);
      if (this.runs.get(branch) !== run) continue; // an event has told of it since
      if (running.has(branch) !== isAtWork(run)) this.runs.set(branch, running.has(branch) ? started() : ended(run));
    }
  }

  loadRest() {
    return Promise.all([this.loadBranches(), this.loadTree(), this.loadPath()]);
  }

  async loadBranches() {
    const before = this.heads;
    const told = await this.api.get(`${this.base}/branches`);
    const isNews = this.heads === before; // no event has told more since
    this.branches = told.branches;
    if (isNews) this.current = told.current;
    this.setHeads(Object.fromEntries(isNews ? told.branches.map(({ name, head }) => [name, head]) : this.heads));
  }

  setHeads(heads) {
    this.heads = new Map(Object.entries(heads));
    this.entryHeads = new Map();
    const hidden = new Set(this.branches.filter((branch) => branch.archived).map((branch) => branch.name));
    for (const [name, head] of this.heads) {
      if (head && !hidden.has(name)) this.entryHeads.set(head, [...(this.entryHeads.get(head) ?? []), name]);
    }
  }

  /** The tree, page by page: what has come is drawn while the rest is on its way. */
  async loadTree() {
    const asked = (this.asked = {});
    const rows = [];
    this.hidden = new Map();
    for await (const page of this.api.pages(`${this.base}/tree`, { filter: this.filter, limit: TREE_PAGE })) {
      if (this.asked !== asked) return;
      rows.push(...page.entries);
      this.total = page.total;
      this.setRows(rows.slice());
      this.changed();
    }
  }

  setRows(rows) {
    this.rows = rows;
    this.laid = this.leaf;
    this.layout = lay(rows, this.leaf);
  }

  setFilter(filter) {
    this.filter = filter;
    return this.guard(() => this.loadTree());
  }

  // The path

  async page(cursor) {
    return this.api.get(`${this.base}/path`, { at: this.end ?? "root", cursor, limit: PATH_PAGE, html: 1 });
  }

  async loadPath() {
    const end = (this.wanted = this.end);
    const page = await this.page("end");
    if (this.wanted !== end) return;
    this.pages = [page];
    this.shown = end;
    this.changed();
  }

  async loadEarlier() {
    if (!this.earlier || this.turning) return;
    await this.turn(async (end) => {
      const page = await this.page(this.earlier);
      if (this.shown === end) this.pages = [page, ...this.pages].slice(0, MOST_PAGES);
    });
  }

  async loadLater() {
    if (!this.later || this.turning) return;
    await this.turn(async (end) => {
      const page = await this.page(this.later);
      if (this.shown === end) this.pages = [...this.pages, page].slice(-MOST_PAGES);
    });
  }

  async turn(work) {
    this.turning = true;
    await this.guard(() => work(this.shown));
    this.turning = false;
    this.changed();
  }

  /** What was added at the end of the shown path, where one was at its end. */
  async loadTail() {
    if (!this.pages.length || this.later) return;
    const end = this.end;
    const page = await this.page("end");
    if (this.end !== end) return;
    const known = this.entries;
    const from = known.findIndex((entry) => entry.id === page.entries[0]?.id);
    if (from < 0) this.pages = [page];
    else {
      const first = { ...this.pages[0], entries: known.slice(0, from), next: null };
      this.pages = from ? [first, page] : [{ ...page, previous: this.earlier }];
    }
    this.shown = end;
    this.changed();
  }

  /** Show the path to an entry. Its text is asked for when one has stayed there for a moment. */
  select(id) {
    this.selected = id;
    this.changed();
    clearTimeout(this.staying);
    this.staying = setTimeout(() => this.guard(() => this.loadPath()), STAY);
  }

  /** Read a branch, and follow it as it grows; the session stays where it is. */
  async look(branch) {
    this.selected = null;
    this.looking = branch === this.current ? null : branch;
    this.changed();
    await this.guard(() => this.loadPath());
  }

  async guard(work) {
    try {
      return await work();
    } catch (error) {
      this.error = error.message;
      this.changed();
      return undefined;
    }
  }

  // What happens while one looks

  hear({ type, data }) {
    if (this.closed) return;
    if (type === "entry") this.hearEntry(data.entry);
    else if (type === "head") this.hearHead(data);
    else if (type === "delta") this.hearDelta(data);
    else if (type === "tool") this.hearTool(data);
    else if (type === "queue") this.hearQueue(data);
    else if (type === "run") this.hearRun(data);
    else if (type === "notice") this.tell(data.text, data.level === "info" ? "" : "wrong");
    this.settleSoon();
  }

  settleSoon() {
    this.soon ??= setTimeout(() => this.settle(), SETTLE);
  }

  /** Figures are looked at now and then while entries come, and once after the last. */
  lookSoon() {
    this.due ??= setTimeout(() => {
      this.due = undefined;
      this.stale.info = this.stale.branches = true;
      this.settleSoon();
    }, this.lookedAt + INFO - performance.now());
  }

  hearEntry(row) {
    this.fresh.push(row);
    if (row.type === "label") this.stale.tree = true;
    if (row.type === "session_info") this.stale.info = true;
    const run = this.runs.get(row.branch);
    if (run && row.role === "assistant") run.written = row.id;
  }

  hearHead({ current, heads, archived }) {
    this.current = current;
    const known = new Map(this.branches.map((branch) => [branch.name, branch]));
    const told = Object.entries(heads), hidden = new Set(archived);
    if (told.some(([name]) => known.get(name)?.archived !== hidden.has(name))) this.stale.branches = true;
    if (told.some(([name, head]) => known.get(name)?.head !== head)) this.lookSoon();
    this.setHeads(heads);
    if (this.looking && !this.heads.has(this.looking)) this.looking = null;
    if (this.looking === this.current) this.looking = null;
  }

  hearDelta({ branch, kind, text, offset }) {
    const run = this.runs.get(branch) ?? started();
    this.runs.set(branch, run);
    if (run.written) Object.assign(run, silent());
    const field = kind === "tool_call" ? "tool" : kind;
    run[field] = (offset === 0 ? "" : run[field] ?? "") + text;
  }

  hearTool({ branch, name, status }) {
    const run = this.runs.get(branch);
    if (run) run.doing = status === "ended" ? "" : name;
  }

  hearQueue({ branch, steering, followUp }) {
    const run = this.runs.get(branch);
    if (run) run.waiting = [...steering, ...followUp];
  }

  hearRun({ branch, status, error }) {
    if (status === "started") this.runs.set(branch, started());
    else {
      this.runs.set(branch, ended(this.runs.get(branch), error));
      this.stale.info = true;
    }
  }

  /** Many events come at once: what they changed is worked out together, a little later. */
  async settle() {
    this.soon = undefined;
    if (this.closed) return;
    const fresh = this.fresh.splice(0), { stale } = this;
    this.stale = {};
    if (fresh.length) {
      const rows = join(this.rows, fresh, this.filter, this.hidden);
      if (rows === null) stale.tree = true;
      else if (rows.length > this.rows.length) this.setRows(rows);
      this.total = Math.max(this.total ?? 0, this.rows.length);
      this.lookSoon();
    }
    if (this.laid !== this.leaf) this.setRows(this.rows);
    this.changed();
    await this.guard(() =>
      Promise.all([stale.info && this.loadInfo(), stale.branches && this.loadBranches(), stale.tree && this.loadTree()]));
    if (this.end !== this.shown) await this.guard(() => (this.follows() ? this.loadTail() : this.loadPath()));
    for (const run of this.runs.values()) if (run.written) Object.assign(run, silent());
    this.changed();
  }

  /** Whether the end of the shown path only went on from where it was. */
  follows() {
    return pathTo(this.layout, this.end).some((number) => this.layout.nodes[number].row.id === this.shown);
  }

  // What one can do

  /** A write: afterwards everything that it may have changed is looked at again. */
  async act(method, path, body) {
    const answer = await this.api.send(method, `${this.base}${path}`, body);
    await Promise.all([this.loadInfo(), this.loadBranches()]);
    await Promise.all([this.loadTree(), this.loadPath()]);
    this.changed();
    return answer;
  }

  async navigate(to, options) {
    this.selected = null;
    this.looking = null;
    return this.act("POST", "/navigate", { to, ...options });
  }
  createBranch(values) {
    if (values.switch) [this.selected, this.looking] = [null, null];
    return this.act("POST", "/branches", values);
  }
  changeBranch(name, values) {
    return this.act("PATCH", `/branches${at(name)}`, values);
  }
  switchTo(branch) {
    this.selected = null;
    this.looking = null;
    return this.act("POST", "/switch-branch", { branch });
  }
  undo() {
    this.selected = null;
    this.looking = null;
    return this.act("POST", "/undo", {});
  }
  label(entry, label) {
    return this.act("POST", "/label", { entry, label });
  }
  merge(values) {
    this.selected = null;
    return this.act("POST", "/merge", values);
  }
  promote(values) {
    this.selected = null;
    this.looking = null;
    return this.act("POST", "/promote", values);
  }
  fork(values) {
    return this.api.post(`${this.base}/fork`, values);
  }
  rename(name) {
    return this.act("PATCH", "", { name });
  }
  async archive(archived) {
    await this.api.post(`${this.base}/archive`, { archived });
    await this.loadInfo();
    this.changed();
  }
  add(text) {
    return this.act("POST", "/entries", { role: "user", text, branch: this.branch ?? undefined });
  }
  prompt(text, model) {
    return this.api.post(`${this.base}/prompt`, { text, branch: this.branch ?? undefined, ...(model ? { model } : {}) });
  }
  steer(text) {
    return this.api.post(`${this.base}/steer`, { text, branch: this.branch ?? undefined });
  }
  abort() {
    return this.api.post(`${this.base}/abort`, { branch: this.branch ?? undefined });
  }
  compare(branches, metric) {
    return this.api.post(`${this.base}/compare`, { branches, ...(metric ? { metric } : {}) });
  }
}

/** What an agent says before it is written; `written` is the entry that has it, until that is shown. */
const silent = () => ({ text: "", thinking: "", tool: "", written: null });
const started = () => ({ ...silent(), status: "started", doing: "", waiting: [], error: null });
const ended = (run, error = null) => ({ ...(run ?? started()), status: "ended", doing: "", waiting: [], error });
const isAtWork = (run) => run?.status === "started";
