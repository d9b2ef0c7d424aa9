// The state of one session: its tree, branches, shown path and live events. It sends requests; views read its fields
// and call its methods.
import { joinPath } from "./api.js";
import { layOut } from "./layout.js";
import { joinRows } from "./rows.js";
import { Stream } from "./stream.js";
import { StreamedMarkdown } from "./streamed_markdown.js";

const TREE_PAGE = 1000, PATH_PAGE = 60;
const MAX_WHOLE_TREE = 10_000; // entries; of a larger session, only the rows around a place are loaded
// Milliseconds: delay to handle events together, delay to load the path of an entry, interval to load the statistics
const SETTLE = 40, STAY = 60, INFO = 1500;
const POLL = 3000; // milliseconds between polls if no stream can be opened
const MAX_ENTRIES = 5 * PATH_PAGE; // entries of the path in memory; others are loaded again when the user scrolls there
const MAX_NAME = 40; // characters of an entry's text that name it
const NO_PATH = { end: undefined, start: 0, length: 0, entries: [], key: null };

export class Session {
  /**
   * Calls `onChange()` when there is something to draw, `notify(text, kind)` with a message for the user,
   * `onRename(before, after)` when a branch was renamed, and `onUnsent(branch, text)` with messages to an agent that
   * ended before it read them.
   */
  constructor(api, id, { onChange, notify, onRename, onUnsent }) {
    Object.assign(this, { api, id, onChange, notify, onRename, onUnsent });
    this.base = joinPath("sessions", id);
    this.filter = "default";
    this.info = null;
    this.branches = [];
    this.current = "main";
    this.rows = [];
    this.layout = layOut([]);
    this.heads = new Map();
    this.entryHeads = new Map();
    this.selected = null; // the selected entry; null follows a branch
    this.otherBranch = null; // a shown branch that is not the current one
    // The loaded entries of the path to `end`, from number `start` on. The path has `length` entries. `key` is a new
    // object for another path, and stays the same while a path grows.
    this.path = NO_PATH;
    this.loading = true;
    this.error = null;
    this.connection = "waiting";
    this.streamError = null; // why the server refuses an event stream
    this.runs = new Map();
    this.steered = []; // messages that this page sent to running agents
    this.target = null; // an entry that the conversation scrolls to
    this.marked = null; // an entry on the shown path that the user asked for
    this.unnamed = []; // leaves without a branch
    this.promptOptions = { model: "", mode: null }; // chosen in the composer
    this.markdown = new StreamedMarkdown(api, () => this.onChange());
    this.questions = new Map(); // open permission questions by id
    this.newRows = []; // new entries that are not yet among the rows
    this.hidden = new Map(); // hidden entries, with their nearest shown ancestor
    this.isComplete = false; // whether all rows are loaded, or all of the window
    this.window = null; // of a large session: whether rows are before and after the loaded ones
    this.windowPlace = null; // the entry in the middle of the window; null is the end of the shown path
    this.stale = {}; // which of info, branches and tree must be loaded again
    this.loads = {}; // the newest load in progress of each kind and of the path
  }

  async open() {
    this.stream?.stop();
    this.closed = false;
    this.connection = "waiting";
    const currentOpen = (this.currentOpen = {});
    try {
      const place = await this.loadInfo(false);
      if (this.currentOpen !== currentOpen) return;
      this.listen(place);
      const isFirst = this.path === NO_PATH;
      if (isFirst) this.setHeads(new Map([[this.current, this.info.leaf]]));
      [this.newRows, this.hidden, this.error] = [[], new Map(), null];
      this.questions = new Map((await this.api.get(`${this.base}/permissions`)).questions.map((one) => [one.id, one]));
      if (this.currentOpen !== currentOpen) return;
      const branches = this.loadBranches();
      if (!isFirst) await branches; // one of them may be shown
      await Promise.all([branches, this.loadTree(), this.extendPath(this.entries.at(-1)?.id, this.path.start, MAX_ENTRIES)]);
      if (!this.isCounted) this.guard(() => this.loadInfo());
    } catch (error) {
      if (this.currentOpen !== currentOpen) return;
      if (error.status === 404 && this.selected) {
        this.selected = null; // the session was rewritten without it
        return this.open();
      }
      this.error = error.message;
    }
    this.loading = false;
    this.onChange();
  }

  /** Subscribe to the events after a position: that of the loaded data. */
  listen(place) {
    let isFirst = true;
    this.stream = new Stream(this.api, `${this.base}/events`, {
      after: place,
      onEvent: (event) => this.handle(event),
      onResync: () => this.open(),
      onState: (state, error) => {
        if (state === "live" && !isFirst) this.stale.info = true; // the end of a run is not sent again
        isFirst &&= state !== "live";
        this.connection = state;
        if (state === "ended") this.error = error.message;
        else this.setStreamError(state === "waiting" ? error : null);
        this.onChange();
      },
    });
  }

  /** Store why the server refuses an event stream, and poll instead. */
  setStreamError(error) {
    this.streamError = error && error.message;
    clearInterval(this.pollTimer);
    this.pollTimer = this.streamError ? setInterval(() => this.poll(), POLL) : undefined;
  }

  /** Load everything that events would have reported. */
  poll() {
    if (document.hidden) return;
    Object.assign(this.stale, { info: true, branches: true, tree: true });
    this.settleSoon();
  }

  close() {
    this.closed = true;
    clearInterval(this.pollTimer);
    this.currentOpen = null;
    this.stream?.stop();
    clearTimeout(this.settleTimer);
    clearTimeout(this.infoTimer);
    clearTimeout(this.pathTimer);
  }

  // State

  get leaf() {
    return this.heads.get(this.current) ?? null;
  }
  /** The leaf, or its nearest shown ancestor if the filter hides it. */
  get shownLeaf() {
    const { leaf } = this;
    return this.hidden.has(leaf) ? this.hidden.get(leaf) : leaf;
  }
  get isLeafHidden() {
    return this.shownLeaf !== this.leaf;
  }
  /** The shown branch. Null if an entry inside the tree is selected. */
  get branch() {
    return this.selected ? null : this.otherBranch ?? this.current;
  }
  /** The entry where the shown path ends. */
  get end() {
    return this.selected ?? this.heads.get(this.otherBranch ?? this.current) ?? null;
  }
  /** The last entry of the shown path that the filter does not hide. */
  get shownEnd() {
    const { chosen, layout } = this;
    if (chosen === null) return this.shownLeaf;
    return layout.index.has(chosen) ? chosen : this.entries.findLast(({ id }) => layout.index.has(id))?.id ?? null;
  }
  /** The selected entry, or the head of a shown branch that is not the current one. */
  get chosen() {
    return this.selected ?? (this.otherBranch ? this.end : null);
  }
  /** The entry that actions are about: one that the user asked for, or the selected one. */
  get pointed() {
    return this.marked ?? this.chosen;
  }
  get entries() {
    return this.path.entries;
  }
  /** The model that answers next on the shown path, unless the user chooses another one. */
  get model() {
    return this.entries.findLast(({ model }) => model)?.model ?? this.info?.models.at(-1) ?? null;
  }
  get hasEarlier() {
    return this.path.start > 0;
  }
  get hasLater() {
    return this.path.start + this.path.entries.length < this.path.length;
  }
  get running() {
    return new Set([...this.runs].filter(([, run]) => isActive(run)).map(([branch]) => branch));
  }
  /** Return the label from the tree, or from the path if the filter hides the entry. */
  getLabel(id, entry = this.entries.find((one) => one.id === id)) {
    const row = this.layout.nodes[this.layout.index.get(id) ?? -1]?.row ?? entry;
    return row?.label ?? null;
  }

  /** Return the text of an entry in quotation marks, shortened, to name the entry in a dialog. */
  describe(id) {
    const row = this.layout.nodes[this.layout.index.get(id) ?? -1]?.row ?? this.entries.find((one) => one.id === id);
    const text = row?.text?.trim().split(/\s+/).join(" ");
    return text ? `“${text.length > MAX_NAME ? `${text.slice(0, MAX_NAME).trimEnd()}…` : text}”` : "this entry";
  }

  // Loading: the newest request of each kind counts; older responses are dropped

  /** Load a kind with `work(isNewest)`. If it becomes stale in the meantime, load it again afterwards. */
  async load(kind, work) {
    const mine = (this.loads[kind] = { end: this.end });
    this.stale[kind] = false;
    try {
      return await work(() => this.loads[kind] === mine);
    } finally {
      if (this.loads[kind] === mine) {
        this.loads[kind] = null;
        if (this.stale[kind] || this.end !== mine.end) this.settleSoon();
        this.onChange();
      }
    }
  }

  /** Load the summary of the session. Returns its position among the events. Without `wait`, totals may be missing. */
  loadInfo(wait = true) {
    this.infoLoadedAt = performance.now();
    return this.load("info", async (isNewest) => {
      const before = new Map(this.runs), heads = this.heads;
      const answer = await this.api.fetch(wait ? this.base : `${this.base}?wait=false`);
      const info = await answer.json();
      if (isNewest()) {
        this.isCounted = info.tokens !== null;
        const { cost, tokens, models, problems } = this.isCounted ? info : this.info ?? { models: [], problems: [] };
        this.info = { ...info, cost, tokens, models, problems };
        if (this.heads === heads) this.current = info.branch; // no newer event
        this.setRunning(new Set(info.running), before);
      }
      return answer.headers.get("ETag")?.replace(/^W\//, ""); // a proxy may mark it as weak
    });
  }

  setRunning(running, before) {
    for (const branch of new Set([...before.keys(), ...running])) {
      const run = before.get(branch);
      if (this.runs.get(branch) !== run) continue; // an event has changed it since
      if (running.has(branch) !== isActive(run)) this.runs.set(branch, running.has(branch) ? createRun() : endRun(run));
    }
  }

  loadBranches() {
    return this.load("branches", async (isNewest) => {
      const before = this.heads;
      const list = await this.api.getAll(`${this.base}/branches`, "branches");
      if (!isNewest()) return;
      const isUnchanged = this.heads === before; // no newer event
      this.branches = list.branches;
      this.unnamed = list.unnamed;
      if (isUnchanged) this.current = list.current;
      else this.checkBranches();
      this.setHeads(isUnchanged ? new Map(list.branches.map(({ name, head }) => [name, head])) : this.heads);
    });
  }

  /** `heads` is a map, because a branch may have the name of an object property. */
  setHeads(heads) {
    for (const name of this.heads.keys()) {
      const renamed = this.findNewName(name, heads);
      if (renamed && renamed !== name) this.onRename(name, renamed);
    }
    const otherBranch = this.otherBranch && this.findNewName(this.otherBranch, heads);
    this.otherBranch = otherBranch === this.current ? null : otherBranch;
    this.heads = heads;
    this.entryHeads = new Map();
    const hidden = new Set(this.branches.filter((branch) => branch.archived).map((branch) => branch.name));
    for (const [name, head] of this.heads) {
      if (head && !hidden.has(name)) this.entryHeads.set(head, [...(this.entryHeads.get(head) ?? []), name]);
    }
  }

  /** Return the name of a branch in new heads. A new name at the same entry is a rename. Null if the branch is gone. */
  findNewName(name, heads) {
    if (heads.has(name)) return name;
    const isRenamed = ([other, head]) => head === this.heads.get(name) && !this.heads.has(other);
    return [...heads].find(isRenamed)?.[0] ?? null;
  }

  /** Load the tree. The first time, draw each page; later, draw only the complete tree. */
  loadTree() {
    return this.load("tree", async (isNewest) => {
      if (this.info.entries > MAX_WHOLE_TREE) return this.loadWindow(isNewest);
      const rows = [];
      let leaf = null;
      for await (const page of this.api.iteratePages(`${this.base}/tree`, { filter: this.filter, limit: TREE_PAGE })) {
        if (!isNewest()) return;
        rows.push(...page.entries);
        leaf = page.leaf;
        if (this.isComplete) continue;
        this.rememberHiddenLeaf(rows, leaf);
        this.total = page.total;
        this.setRows(rows.slice());
        this.onChange();
      }
      this.isComplete = true;
      this.total = rows.length;
      this.rememberHiddenLeaf(rows, leaf);
      this.joinNewRows(rows);
    });
  }

  /** Load the rows around the place of the window, at first the end of the shown path. */
  async loadWindow(isNewest) {
    const around = this.windowPlace ?? this.end ?? "root";
    const page = await this.api.get(`${this.base}/tree`, { filter: this.filter, limit: TREE_PAGE, around });
    if (!isNewest()) return;
    this.window = { hasEarlier: page.hasEarlier, hasLater: page.hasLater };
    this.isComplete = true;
    this.total = this.info.entries;
    this.rememberHiddenLeaf(page.entries, page.leaf);
    this.joinNewRows(page.entries);
  }

  /** Show the rows around another entry of a large session; null follows the shown path. */
  moveWindow(place) {
    this.windowPlace = place;
    return this.guard(() => this.loadTree());
  }

  /** If the filter hides the leaf, remember its nearest shown ancestor: the last active row. */
  rememberHiddenLeaf(rows, leaf) {
    if (leaf === null || rows.some(({ id }) => id === leaf)) this.hidden.delete(leaf);
    else this.hidden.set(leaf, rows.findLast(({ active }) => active)?.id ?? null);
  }

  /** Add the entries that arrived since the rows were requested. */
  joinNewRows(rows) {
    const joined = joinRows(rows, this.newRows.splice(0), this.filter, this.hidden);
    if (joined === null) this.stale.tree = true;
    const hasChanges = joined?.length > rows.length || joined?.some((row, number) => row !== rows[number]);
    if (rows !== this.rows || hasChanges || this.laidOutLeaf !== this.leaf) this.setRows(joined ?? rows);
    this.total = Math.max(this.total ?? 0, this.rows.length);
  }

  setRows(rows) {
    this.rows = rows;
    this.laidOutLeaf = this.leaf;
    this.layout = layOut(rows, this.shownLeaf);
  }

  setFilter(filter) {
    this.filter = filter;
    this.isComplete = false;
    this.windowPlace = null;
    this.hidden = new Map();
    return this.guard(() => this.loadTree());
  }

  // The path

  /** Fetch a part of the path to an entry: from a number on, or its end. */
  fetchPath(end, from, limit = PATH_PAGE) {
    const cursor = from === undefined ? "end" : `${end ?? ""}.${from}`;
    return this.api.get(`${this.base}/path`, { at: end ?? "root", cursor, limit, html: 1 });
  }

  showPath(path) {
    this.path = path;
    this.dropStreamed();
    this.onChange();
  }

  /** Load the end of the selected path, or the part around an entry at a depth. */
  loadPath(depth) {
    clearTimeout(this.pathTimer);
    this.pathTimer = undefined;
    return this.load("path", async (isNewest) => {
      const { end } = this;
      const from = depth === undefined ? undefined : Math.max(0, depth - PATH_PAGE / 2);
      const { entries, total } = await this.fetchPath(end, from);
      const start = from ?? total - entries.length;
      if (isNewest()) this.showPath({ end, start, length: total, entries, key: {} });
    });
  }

  /** Load new entries at the end of the path without scrolling. Another path is shown from its end. */
  follow() {
    const { path, hasLater } = this;
    if (hasLater) return this.extendPath(path.end, path.length - 1, 1);
    return this.extendPath(path.end, Math.max(path.start, path.length - PATH_PAGE), 2 * PATH_PAGE);
  }

  /** Load a part of the path and join it, if it contains the `known` entry. */
  extendPath(known, from, limit) {
    if (!known) return this.loadPath();
    return this.load("path", async (isNewest) => {
      const { end } = this;
      const page = await this.fetchPath(end, from, limit);
      if (!isNewest()) return undefined;
      if (!page.entries.some(({ id }) => id === known)) return this.loadPath();
      const { start, entries } = this.path; // the user may have scrolled
      const adjoins = from >= start && from <= start + entries.length;
      const joined = adjoins ? [...entries.slice(0, from - start), ...page.entries].slice(0, MAX_ENTRIES) : entries;
      return this.showPath({ ...this.path, end, length: page.total, entries: joined });
    });
  }

  loadEarlier() {
    const { start } = this.path, from = Math.max(0, start - PATH_PAGE);
    return this.loadAdjacent(from, start - from, (path, entries) => {
      if (path.start === start) this.showPath({ ...path, start: from, entries: [...entries, ...path.entries].slice(0, MAX_ENTRIES) });
    });
  }

  loadLater() {
    const { start, entries } = this.path, from = start + entries.length;
    return this.loadAdjacent(from, PATH_PAGE, (path, more) => {
      if (path.start + path.entries.length !== from) return;
      const joined = [...path.entries, ...more];
      const kept = joined.length > MAX_ENTRIES ? joined.slice(PATH_PAGE - MAX_ENTRIES) : joined; // leave room for new entries
      this.showPath({ ...path, start: path.start + joined.length - kept.length, entries: kept });
    });
  }

  /** Load a part next to the shown one, unless the path changed. */
  async loadAdjacent(from, limit, add) {
    if (this.isPaging) return;
    this.isPaging = true;
    const { end, key } = this.path;
    const page = await this.guard(() => this.fetchPath(end, from, limit));
    this.isPaging = false;
    if (page && this.path.key === key) add(this.path, page.entries);
    this.onChange();
  }

  /** Show the path to an entry, or follow the branch whose head it is. Waits for a pause before loading the path. */
  select(id) {
    this.setPlace(id);
    this.onChange();
    clearTimeout(this.pathTimer);
    this.pathTimer = setTimeout(() => this.guard(() => this.loadPath()), STAY);
  }

  setPlace(id) {
    this.marked = null;
    const names = this.entryHeads.get(id) ?? [];
    const name = [this.otherBranch, this.current].find((one) => names.includes(one)) ?? names[0];
    if (name) this.setShownBranch(name);
    else this.selected = id;
  }

  /** Show and follow a branch. The current branch of the session does not change. */
  async showBranch(branch) {
    this.setShownBranch(branch);
    this.onChange();
    if (this.window && this.end && !this.layout.index.has(this.end)) this.moveWindow(null);
    await this.guard(() => this.loadPath());
  }

  setShownBranch(branch) {
    this.marked = null;
    this.selected = null;
    this.otherBranch = branch === this.current ? null : branch;
  }

  async guard(work) {
    try {
      return await work();
    } catch (error) {
      this.error = error.message;
      this.onChange();
      return undefined;
    }
  }

  // Events

  handle({ type, data }) {
    if (this.closed) return;
    if (type === "entry") this.handleEntry(data.entry);
    else if (type === "head") this.handleHead(data);
    else if (type === "delta") this.handleDelta(data);
    else if (type === "tool") this.handleTool(data);
    else if (type === "queue") this.handleQueue(data);
    else if (type === "snapshot") this.handleSnapshot(data);
    else if (type === "run") this.handleRun(data);
    else if (type === "permission") this.handlePermission(data);
    else if (type === "notice") this.notify(data.text, data.level === "info" ? "" : "wrong");
    this.settleSoon();
  }

  settleSoon() {
    this.settleTimer ??= setTimeout(() => this.settle(), SETTLE);
  }

  /** Load statistics at intervals while entries arrive, and once after the last. */
  loadInfoSoon() {
    this.infoTimer ??= setTimeout(() => {
      this.infoTimer = undefined;
      this.stale.info = this.stale.branches = true;
      this.settleSoon();
    }, this.infoLoadedAt + INFO - performance.now());
  }

  handleEntry(row) {
    this.newRows.push(row);
    if (row.type === "label") this.stale.tree = true;
    if (row.type === "session_info") this.stale.info = true;
    const run = this.runs.get(row.branch);
    if (run && row.role === "assistant") run.written = row.id;
  }

  handleHead(event) {
    this.current = event.current;
    this.lastHead = event;
    if (this.branches.length) this.checkBranches();
    this.setHeads(new Map(Object.entries(event.heads)));
  }

  /** Compare the branches with the last event. Load new branches at once, statistics later. */
  checkBranches() {
    const known = new Map(this.branches.map((branch) => [branch.name, branch]));
    const heads = Object.entries(this.lastHead.heads), hidden = new Set(this.lastHead.archived);
    if (heads.some(([name]) => known.get(name)?.archived !== hidden.has(name))) this.stale.branches = true;
    if (heads.some(([name, head]) => known.get(name)?.head !== head)) this.loadInfoSoon();
  }

  handleDelta({ branch, kind, text, offset }) {
    const run = this.runs.get(branch) ?? createRun();
    this.runs.set(branch, run);
    if (run.written) Object.assign(run, createEmptyText());
    const field = kind === "tool_call" ? "tool" : kind;
    run[field] = (offset === 0 ? "" : run[field] ?? "") + text;
    if (field === "text") this.markdown.update(run);
  }

  handleTool({ branch, name, status }) {
    const run = this.runs.get(branch);
    if (run) run.doing = status === "ended" ? "" : name;
  }

  handleSnapshot({ branch, done, total }) {
    const run = this.runs.get(branch);
    if (run) run.saving = done < total ? `saving files: ${done.toLocaleString("en")} of ${total.toLocaleString("en")}` : "";
  }

  handleQueue({ branch, steering, followUp }) {
    const run = this.runs.get(branch);
    if (run) run.waiting = [...steering, ...followUp];
  }

  handleRun({ branch, status, error, denied = [] }) {
    if (status === "started") this.runs.set(branch, createRun());
    else {
      this.returnUnsent(branch, this.runs.get(branch)?.waiting ?? []);
      if (denied.length) this.notify(`Denied: ${denied.map(({ call }) => call).join("; ")}`.slice(0, 500), "");
      this.runs.set(branch, endRun(this.runs.get(branch), error));
      this.stale.info = true;
    }
  }

  /** Give back the messages of this page that are still in the queue of a run. */
  returnUnsent(branch, waiting) {
    const unsent = waiting.filter((text) => this.steered.includes(text));
    this.steered = this.steered.filter((text) => !unsent.includes(text));
    if (unsent.length) this.onUnsent(branch, unsent.join("\n\n"));
  }

  handlePermission({ status, ...question }) {
    if (status === "asked") this.questions.set(question.id, question);
    else this.questions.delete(question.id);
    if (status === "expired") this.notify("A permission question expired and was denied", "wrong");
  }

  /** Handle the changes of several events together. */
  settle() {
    this.settleTimer = undefined;
    if (this.closed) return;
    if (this.newRows.length) this.loadInfoSoon();
    if (!this.loads.tree && (this.newRows.length || this.laidOutLeaf !== this.leaf)) this.joinNewRows(this.rows);
    this.locateLeaf();
    this.dropStreamed();
    this.onChange();
    this.reload("info", () => this.loadInfo());
    this.reload("branches", () => this.loadBranches());
    this.reload("tree", () => this.loadTree());
    if (!this.loads.path && !this.pathTimer && this.end !== this.path.end) this.guard(() => this.follow());
  }

  /** Load the tree once if the leaf moved to a hidden entry whose ancestors are unknown. */
  locateLeaf() {
    const { leaf } = this;
    if (this.loads.tree || !this.isComplete || this.newRows.length) return; // it may be among the new rows
    if (leaf === this.soughtLeaf || leaf === null || this.hidden.has(leaf) || this.layout.index.has(leaf)) return;
    this.soughtLeaf = leaf;
    this.stale.tree = true;
  }

  /** Load a kind again if it is stale and no load of it is in progress. */
  reload(kind, load) {
    if (this.stale[kind] && !this.loads[kind]) this.guard(load);
  }

  /** Drop streamed text when its entry is in the path, or its branch is not shown. */
  dropStreamed() {
    for (const [branch, run] of this.runs) {
      if (run.written && (branch !== this.branch || this.end === this.path.end)) Object.assign(run, createEmptyText());
    }
  }

  // Actions

  /** Return what the user has selected, to notice later whether that changed. */
  getShownPlace() {
    return { selected: this.selected, otherBranch: this.otherBranch };
  }

  /**
   * Send a write and load everything that it may have changed. If it `moves` the branch or `adds` an entry, show the
   * end of the path, unless the user selected something else since `from`.
   */
  async sendWrite(method, path, body, { moves = false, adds = false, from = this.getShownPlace() } = {}) {
    const answer = await this.api.send(method, `${this.base}${path}`, body);
    const isSamePlace = this.selected === from.selected && this.otherBranch === from.otherBranch;
    const showsEnd = moves && !answer.cancelled && isSamePlace;
    if (showsEnd) [this.selected, this.otherBranch] = [null, null];
    await this.guard(async () => {
      await Promise.all([this.loadInfo(), this.loadBranches()]);
      await Promise.all([this.loadTree(), showsEnd || (adds && isSamePlace) ? this.loadPath() : this.follow()]);
    });
    this.onChange();
    return answer;
  }

  navigate(to, options) {
    return this.sendWrite("POST", "/navigate", { to, ...options }, { moves: true });
  }
  /** Return how the files of two places differ. */
  diffFiles(a, b) {
    return this.api.post(`${this.base}/files-diff`, { a, b });
  }
  /** Return which files a move can restore. `route` is navigate, switch-branch or undo. */
  async previewFiles(route, values) {
    return (await this.api.post(`${this.base}/${route}`, { ...values, preview: true })).files;
  }
  async createBranch(values) {
    const answer = await this.sendWrite("POST", "/branches", values, { moves: values.switch });
    if (this.selected) this.select(this.selected); // it may be the head of the new branch
    return answer;
  }
  changeBranch(name, values) {
    return this.sendWrite("PATCH", `/branches${joinPath(name)}`, values);
  }
  switchTo(branch, options, from) {
    return this.sendWrite("POST", "/switch-branch", { branch, ...options }, { moves: true, from });
  }
  undo(options, from) {
    return this.sendWrite("POST", "/undo", { ...options }, { moves: true, from });
  }
  async label(entry, label) {
    await this.sendWrite("POST", "/label", { entry, label });
    const entries = this.entries.map((one) => (one.id === entry ? { ...one, label } : one));
    this.showPath({ ...this.path, entries });
  }
  merge(values) {
    return this.sendWrite("POST", "/merge", values, { moves: true });
  }
  promote(values) {
    return this.sendWrite("POST", "/promote", values, { moves: true });
  }
  fork(values) {
    return this.api.post(`${this.base}/fork`, values);
  }
  rename(name) {
    return this.sendWrite("PATCH", "", { name });
  }
  async archive(archived) {
    await this.api.post(`${this.base}/archive`, { archived });
    await this.loadInfo();
    this.onChange();
  }
  add(text) {
    return this.sendWrite("POST", "/entries", { role: "user", text, branch: this.branch ?? undefined }, { adds: true });
  }
  /** Send a prompt on the shown branch. With `at`, the branch moves there first; the old path stays in the tree. */
  async prompt(text, { at, model = this.promptOptions.model } = {}) {
    const branch = this.branch ?? this.current;
    const body = { text, branch, at, permissionMode: this.promptOptions.mode ?? undefined, ...(model ? { model } : {}) };
    const answer = await this.api.post(`${this.base}/prompt`, body);
    this.marked = null; // actions are about the new end
    if (at !== undefined) {
      this.setShownBranch(branch);
      this.stale.info = true;
      this.settleSoon();
    }
    return answer;
  }
  /** Send another version of a user message. */
  sendVersion({ parent }, text) {
    return this.prompt(text, { at: parent ?? "root" });
  }
  /** Let the model answer again: the same prompt or tool results, or an unanswered message. */
  retry({ id, parent, role }, model) {
    return this.prompt("", { at: role === "user" ? id : parent ?? "root", model });
  }
  /** Show the newest path through an entry, and scroll to the entry. */
  async showVersion(id) {
    const found = await this.guard(() => this.api.get(`${this.base}/entries${joinPath(id)}`));
    if (!found) return;
    this.setPlace(found.newestLeaf);
    this.target = this.marked = found.entry.id;
    this.onChange();
    await this.guard(() => this.loadPath(found.depth));
  }
  answer(question, scope, reason) {
    return this.api.post(`${this.base}/permissions${joinPath(question)}`, { answer: scope, ...(reason ? { reason } : {}) });
  }
  steer(text) {
    this.steered.push(text);
    return this.api.post(`${this.base}/steer`, { text, branch: this.branch ?? undefined });
  }
  abort() {
    return this.api.post(`${this.base}/abort`, { branch: this.branch ?? undefined });
  }
  compare(branches, metric) {
    return this.api.post(`${this.base}/compare`, { branches, ...(metric ? { metric } : {}) });
  }
}

/** The streamed text of a run. `written` is the entry that contains it, until that entry is shown. */
const createEmptyText = () => ({ text: "", html: "", thinking: "", tool: "", written: null });
const createRun = () => ({ ...createEmptyText(), status: "started", doing: "", saving: "", waiting: [], error: null });
const endRun = (run, error = null) => ({ ...(run ?? createRun()), status: "ended", doing: "", saving: "", waiting: [], error });
const isActive = (run) => run?.status === "started";
