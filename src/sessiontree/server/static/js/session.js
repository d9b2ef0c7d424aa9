// The state of one session: its tree, branches, shown path and live events. It sends requests; views read its fields
// and call its methods.
import { at } from "./api.js";
import { lay } from "./layout.js";
import { join } from "./rows.js";
import { Stream } from "./stream.js";

const TREE_PAGE = 1000, PATH_PAGE = 60;
// Milliseconds: until events are worked out together, until an entry's path is asked for, between looks at the figures
const SETTLE = 40, STAY = 60, INFO = 1500;
const POLL = 3000; // milliseconds between looks where no stream can be opened
const MOST = 5 * PATH_PAGE; // entries of the path that are kept: what is further away is loaded again when one comes back
const NOWHERE = { end: undefined, start: 0, length: 0, entries: [], way: null };

export class Session {
  /**
   * `changed()` is called whenever there is something to draw, `tell(text, kind)` with what a handler says, and
   * `renamed(was, now)` when a branch has another name.
   */
  constructor(api, id, { changed, tell, renamed }) {
    Object.assign(this, { api, id, changed, tell, renamed });
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
    // A part of the path to `end`, of `length` entries: those from number `start` on. `way` is another one when the path
    // is another one, and the same as long as it only goes on.
    this.path = NOWHERE;
    this.loading = true;
    this.error = null;
    this.connection = "waiting";
    this.refusal = null; // why the server opens no stream of events, where it does not
    this.runs = new Map();
    this.asked = new Map(); // questions about tool calls that are open, by their ids
    this.fresh = []; // entries that have come in and are not yet among the rows
    this.hidden = new Map(); // those that the filter hides, with the shown entry they hang on
    this.whole = false; // whether the rows are all that the filter shows
    this.stale = {}; // kinds of what is to be loaded anew: info, branches, tree
    this.loads = {}; // of each kind, and of the path, the newest load while it is under way
  }

  async open() {
    this.stream?.stop();
    this.closed = false;
    this.connection = "waiting";
    const opening = (this.opening = {});
    try {
      const place = await this.loadInfo();
      if (this.opening !== opening) return;
      this.listen(place);
      const isFirst = this.path === NOWHERE;
      if (isFirst) this.setHeads(new Map([[this.current, this.info.leaf]]));
      [this.fresh, this.hidden, this.error] = [[], new Map(), null];
      this.asked = new Map((await this.api.get(`${this.base}/permissions`)).questions.map((one) => [one.id, one]));
      if (this.opening !== opening) return;
      const branches = this.loadBranches();
      if (!isFirst) await branches; // one of them may be looked at
      await Promise.all([branches, this.loadTree(), this.goOn(this.entries.at(-1)?.id, this.path.start, MOST)]);
    } catch (error) {
      if (this.opening !== opening) return;
      if (error.status === 404 && this.selected) {
        this.selected = null; // it was there before the session was written anew
        return this.open();
      }
      this.error = error.message;
    }
    this.loading = false;
    this.changed();
  }

  /** Hear what happens behind a place among the events: that of what is being loaded. */
  listen(place) {
    let isFirst = true;
    this.stream = new Stream(this.api, `${this.base}/events`, {
      after: place,
      heard: (event) => this.hear(event),
      resync: () => this.open(),
      state: (state, error) => {
        if (state === "live" && !isFirst) this.stale.info = true; // nobody tells what ended meanwhile
        isFirst &&= state !== "live";
        this.connection = state;
        if (state === "ended") this.error = error.message;
        else this.setRefusal(state === "waiting" ? error : null);
        this.changed();
      },
    });
  }

  /** The server opens no stream for this page: why, while what happens is asked for now and then instead. */
  setRefusal(error) {
    this.refusal = error && error.message;
    clearInterval(this.polling);
    this.polling = this.refusal ? setInterval(() => this.poll(), POLL) : undefined;
  }

  /** Ask for everything that events would have told. */
  poll() {
    if (document.hidden) return;
    Object.assign(this.stale, { info: true, branches: true, tree: true });
    this.settleSoon();
  }

  close() {
    this.closed = true;
    clearInterval(this.polling);
    this.opening = null;
    this.stream?.stop();
    clearTimeout(this.soon);
    clearTimeout(this.due);
    clearTimeout(this.staying);
  }

  // What is there

  get leaf() {
    return this.heads.get(this.current) ?? null;
  }
  /** The entry of the tree that stands for the leaf: the nearest one above it where the filter hides it. */
  get here() {
    const { leaf } = this;
    return this.hidden.has(leaf) ? this.hidden.get(leaf) : leaf;
  }
  get isHereHidden() {
    return this.here !== this.leaf;
  }
  /** The branch that is read: none when an entry inside the tree was pointed at. */
  get branch() {
    return this.selected ? null : this.looking ?? this.current;
  }
  /** The entry where the shown path ends. */
  get end() {
    return this.selected ?? this.heads.get(this.looking ?? this.current) ?? null;
  }
  /** The last entry of the shown path that the tree has: the filter may hide its end. */
  get shownEnd() {
    const { chosen, layout } = this;
    if (chosen === null) return this.here;
    return layout.index.has(chosen) ? chosen : this.entries.findLast(({ id }) => layout.index.has(id))?.id ?? null;
  }
  /** The entry that was chosen, by itself or as the head of another branch. */
  get chosen() {
    return this.selected ?? (this.looking ? this.end : null);
  }
  get entries() {
    return this.path.entries;
  }
  get earlier() {
    return this.path.start > 0;
  }
  get later() {
    return this.path.start + this.path.entries.length < this.path.length;
  }
  get running() {
    return new Set([...this.runs].filter(([, run]) => isAtWork(run)).map(([branch]) => branch));
  }
  /** As the tree tells it, or the path where the filter hides the entry from the tree. */
  labelOf(id, said = this.entries.find((entry) => entry.id === id)) {
    const row = this.layout.nodes[this.layout.index.get(id) ?? -1]?.row ?? said;
    return row?.label ?? null;
  }

  // Loading: of each kind the newest question counts, and an answer to an older one is dropped

  /** `work(isNewest)` loads a kind; what makes that stale meanwhile is looked at afterwards. */
  async load(kind, work) {
    const mine = (this.loads[kind] = { end: this.end });
    this.stale[kind] = false;
    try {
      return await work(() => this.loads[kind] === mine);
    } finally {
      if (this.loads[kind] === mine) {
        this.loads[kind] = null;
        if (this.stale[kind] || this.end !== mine.end) this.settleSoon();
        this.changed();
      }
    }
  }

  /** Gives the place of the answer among the events. */
  loadInfo() {
    this.lookedAt = performance.now();
    return this.load("info", async (isNewest) => {
      const before = new Map(this.runs), heads = this.heads;
      const answer = await this.api.fetch(this.base);
      const info = await answer.json();
      if (isNewest()) {
        this.info = info;
        if (this.heads === heads) this.current = info.branch; // no event has told more since
        this.setRunning(new Set(info.running), before);
      }
      return answer.headers.get("ETag")?.replace(/^W\//, ""); // as a proxy may tell it
    });
  }

  setRunning(running, before) {
    for (const branch of new Set([...before.keys(), ...running])) {
      const run = before.get(branch);
      if (this.runs.get(branch) !== run) continue; // an event has told of it since
      if (running.has(branch) !== isAtWork(run)) this.runs.set(branch, running.has(branch) ? started() : ended(run));
    }
  }

  loadBranches() {
    return this.load("branches", async (isNewest) => {
      const before = this.heads;
      const told = await this.api.all(`${this.base}/branches`, "branches");
      if (!isNewest()) return;
      const isNews = this.heads === before; // no event has told more since
      this.branches = told.branches;
      if (isNews) this.current = told.current;
      else this.checkBranches();
      this.setHeads(isNews ? new Map(told.branches.map(({ name, head }) => [name, head])) : this.heads);
    });
  }

  /** `heads` is a map: names of branches are whatever people choose. */
  setHeads(heads) {
    for (const was of this.heads.keys()) {
      const now = this.nameNow(was, heads);
      if (now && now !== was) this.renamed(was, now);
    }
    const looking = this.looking && this.nameNow(this.looking, heads);
    this.looking = looking === this.current ? null : looking;
    this.heads = heads;
    this.entryHeads = new Map();
    const hidden = new Set(this.branches.filter((branch) => branch.archived).map((branch) => branch.name));
    for (const [name, head] of this.heads) {
      if (head && !hidden.has(name)) this.entryHeads.set(head, [...(this.entryHeads.get(head) ?? []), name]);
    }
  }

  /** What a branch is called among other heads: a new name at the same place is its own. Nothing where it is gone. */
  nameNow(name, heads) {
    if (heads.has(name)) return name;
    const isIt = ([other, head]) => head === this.heads.get(name) && !this.heads.has(other);
    return [...heads].find(isIt)?.[0] ?? null;
  }

  /** The tree, page by page: drawn as it comes the first time, afterwards when it is whole. */
  loadTree() {
    return this.load("tree", async (isNewest) => {
      const rows = [];
      let leaf = null;
      for await (const page of this.api.pages(`${this.base}/tree`, { filter: this.filter, limit: TREE_PAGE })) {
        if (!isNewest()) return;
        rows.push(...page.entries);
        leaf = page.leaf;
        if (this.whole) continue;
        this.findHere(rows, leaf);
        this.total = page.total;
        this.setRows(rows.slice());
        this.changed();
      }
      this.whole = true;
      this.total = rows.length;
      this.findHere(rows, leaf);
      this.joinFresh(rows);
    });
  }

  /** Where the filter hides the leaf, note which shown entry is nearest above it: the last one on the way to it. */
  findHere(rows, leaf) {
    if (leaf === null || rows.some(({ id }) => id === leaf)) this.hidden.delete(leaf);
    else this.hidden.set(leaf, rows.findLast(({ active }) => active)?.id ?? null);
  }

  /** Rows with what has come in since they were asked for. */
  joinFresh(rows) {
    const joined = join(rows, this.fresh.splice(0), this.filter, this.hidden);
    if (joined === null) this.stale.tree = true;
    if (rows !== this.rows || joined?.length > rows.length || this.laid !== this.leaf) this.setRows(joined ?? rows);
    this.total = Math.max(this.total ?? 0, this.rows.length);
  }

  setRows(rows) {
    this.rows = rows;
    this.laid = this.leaf;
    this.layout = lay(rows, this.here);
  }

  setFilter(filter) {
    this.filter = filter;
    this.whole = false;
    this.hidden = new Map();
    return this.guard(() => this.loadTree());
  }

  // The path

  /** A part of the path to an entry: from a number on, or its end. */
  page(end, from, limit = PATH_PAGE) {
    const cursor = from === undefined ? "end" : `${end ?? ""}.${from}`;
    return this.api.get(`${this.base}/path`, { at: end ?? "root", cursor, limit, html: 1 });
  }

  show(path) {
    this.path = path;
    this.hush();
    this.changed();
  }

  /** The end of the path that is wanted now, whatever was shown. */
  loadPath() {
    clearTimeout(this.staying);
    this.staying = undefined;
    return this.load("path", async (isNewest) => {
      const { end } = this;
      const { entries, total } = await this.page(end);
      if (isNewest()) this.show({ end, start: total - entries.length, length: total, entries, way: {} });
    });
  }

  /** What was added behind the path: one stays where one reads. A path that is another one is shown from its end. */
  follow() {
    const { path, later } = this;
    if (later) return this.goOn(path.end, path.length - 1, 1);
    return this.goOn(path.end, Math.max(path.start, path.length - PATH_PAGE), 2 * PATH_PAGE);
  }

  /** Load a part of the path over what is shown, if that has the `known` entry. */
  goOn(known, from, limit) {
    if (!known) return this.loadPath();
    return this.load("path", async (isNewest) => {
      const { end } = this;
      const page = await this.page(end, from, limit);
      if (!isNewest()) return undefined;
      if (!page.entries.some(({ id }) => id === known)) return this.loadPath();
      const { start, entries } = this.path; // one may have turned pages meanwhile
      const adjoins = from >= start && from <= start + entries.length;
      const joined = adjoins ? [...entries.slice(0, from - start), ...page.entries].slice(0, MOST) : entries;
      return this.show({ ...this.path, end, length: page.total, entries: joined });
    });
  }

  loadEarlier() {
    const { start } = this.path, from = Math.max(0, start - PATH_PAGE);
    return this.turn(from, start - from, (path, entries) => {
      if (path.start === start) this.show({ ...path, start: from, entries: [...entries, ...path.entries].slice(0, MOST) });
    });
  }

  loadLater() {
    const { start, entries } = this.path, from = start + entries.length;
    return this.turn(from, PATH_PAGE, (path, more) => {
      if (path.start + path.entries.length !== from) return;
      const joined = [...path.entries, ...more];
      const kept = joined.length > MOST ? joined.slice(PATH_PAGE - MOST) : joined; // with room for what is added
      this.show({ ...path, start: path.start + joined.length - kept.length, entries: kept });
    });
  }

  /** Load a part beside the one that is shown, unless another path has come meanwhile. */
  async turn(from, limit, put) {
    if (this.turning) return;
    this.turning = true;
    const { end, way } = this.path;
    const page = await this.guard(() => this.page(end, from, limit));
    this.turning = false;
    if (page && this.path.way === way) put(this.path, page.entries);
    this.changed();
  }

  /** Show the path to an entry; that to the head of a branch goes on with it. One that is stayed at is asked for. */
  select(id) {
    const names = this.entryHeads.get(id) ?? [];
    const name = [this.looking, this.current].find((one) => names.includes(one)) ?? names[0];
    if (name) this.read(name);
    else this.selected = id;
    this.changed();
    clearTimeout(this.staying);
    this.staying = setTimeout(() => this.guard(() => this.loadPath()), STAY);
  }

  /** Read a branch, and follow it as it grows; the session stays where it is. */
  async look(branch) {
    this.read(branch);
    this.changed();
    await this.guard(() => this.loadPath());
  }

  read(branch) {
    this.selected = null;
    this.looking = branch === this.current ? null : branch;
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
    else if (type === "permission") this.hearPermission(data);
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

  hearHead(told) {
    this.current = told.current;
    this.told = told;
    if (this.branches.length) this.checkBranches();
    this.setHeads(new Map(Object.entries(told.heads)));
  }

  /** Whether the list of branches is as the last event told: a branch more is listed at once, figures a little later. */
  checkBranches() {
    const known = new Map(this.branches.map((branch) => [branch.name, branch]));
    const heads = Object.entries(this.told.heads), hidden = new Set(this.told.archived);
    if (heads.some(([name]) => known.get(name)?.archived !== hidden.has(name))) this.stale.branches = true;
    if (heads.some(([name, head]) => known.get(name)?.head !== head)) this.lookSoon();
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

  hearRun({ branch, status, error, denied = [] }) {
    if (status === "started") this.runs.set(branch, started());
    else {
      if (denied.length) this.tell(`Denied: ${denied.map(({ call }) => call).join("; ")}`.slice(0, 500), "");
      this.runs.set(branch, ended(this.runs.get(branch), error));
      this.stale.info = true;
    }
  }

  hearPermission({ status, ...question }) {
    if (status === "asked") this.asked.set(question.id, question);
    else this.asked.delete(question.id);
    if (status === "expired") this.tell("A permission question expired and was denied", "wrong");
  }

  /** Many events come at once: what they changed is worked out together, a little later. */
  settle() {
    this.soon = undefined;
    if (this.closed) return;
    if (this.fresh.length) this.lookSoon();
    if (!this.loads.tree && (this.fresh.length || this.laid !== this.leaf)) this.joinFresh(this.rows);
    this.seekHere();
    this.hush();
    this.changed();
    this.renew("info", () => this.loadInfo());
    this.renew("branches", () => this.loadBranches());
    this.renew("tree", () => this.loadTree());
    if (!this.loads.path && !this.staying && this.end !== this.path.end) this.guard(() => this.follow());
  }

  /** The leaf may have moved to an entry that the filter hides, of which no row tells where it is: asked once. */
  seekHere() {
    const { leaf } = this;
    if (this.loads.tree || !this.whole || this.fresh.length) return; // it may be among what comes
    if (leaf === this.sought || leaf === null || this.hidden.has(leaf) || this.layout.index.has(leaf)) return;
    this.sought = leaf;
    this.stale.tree = true;
  }

  /** What is stale is loaded when nothing of its kind is: a load that is under way comes to its end. */
  renew(kind, load) {
    if (this.stale[kind] && !this.loads[kind]) this.guard(load);
  }

  /** What an agent said is not told any more when it is in the path, or nobody looks there. */
  hush() {
    for (const [branch, run] of this.runs) {
      if (run.written && (branch !== this.branch || this.end === this.path.end)) Object.assign(run, silent());
    }
  }

  // What one can do

  /**
   * A write: afterwards everything that it may have changed is looked at again. Where it `moves` one, or `adds` what one
   * wants to see, the end is shown, unless one has begun to look at something else meanwhile.
   */
  async act(method, path, body, { moves = false, adds = false } = {}) {
    const { selected, looking } = this;
    const answer = await this.api.send(method, `${this.base}${path}`, body);
    const isStill = this.selected === selected && this.looking === looking;
    const isMoved = moves && !answer.cancelled && isStill;
    if (isMoved) [this.selected, this.looking] = [null, null];
    await this.guard(async () => {
      await Promise.all([this.loadInfo(), this.loadBranches()]);
      await Promise.all([this.loadTree(), isMoved || (adds && isStill) ? this.loadPath() : this.follow()]);
    });
    this.changed();
    return answer;
  }

  navigate(to, options) {
    return this.act("POST", "/navigate", { to, ...options }, { moves: true });
  }
  async createBranch(values) {
    const answer = await this.act("POST", "/branches", values, { moves: values.switch });
    if (this.selected) this.select(this.selected); // it may be the head of a branch now
    return answer;
  }
  changeBranch(name, values) {
    return this.act("PATCH", `/branches${at(name)}`, values);
  }
  switchTo(branch) {
    return this.act("POST", "/switch-branch", { branch }, { moves: true });
  }
  undo() {
    return this.act("POST", "/undo", {}, { moves: true });
  }
  async label(entry, label) {
    await this.act("POST", "/label", { entry, label });
    const entries = this.entries.map((one) => (one.id === entry ? { ...one, label } : one));
    this.show({ ...this.path, entries });
  }
  merge(values) {
    return this.act("POST", "/merge", values, { moves: true });
  }
  promote(values) {
    return this.act("POST", "/promote", values, { moves: true });
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
    return this.act("POST", "/entries", { role: "user", text, branch: this.branch ?? undefined }, { adds: true });
  }
  prompt(text, model, permissionMode) {
    const said = { text, branch: this.branch ?? undefined, permissionMode, ...(model ? { model } : {}) };
    return this.api.post(`${this.base}/prompt`, said);
  }
  answer(question, scope, reason) {
    return this.api.post(`${this.base}/permissions${at(question)}`, { answer: scope, ...(reason ? { reason } : {}) });
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
