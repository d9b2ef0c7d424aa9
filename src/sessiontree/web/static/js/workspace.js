// A session at work: the tree beside the conversation, branches, and everything that can be done by click or key.
import { Ask } from "./dialogs.js";
import { Button, Chip, Component, Empty, Notice, html } from "./html.js";
import { Compare } from "./compare.js";
import { Composer, Conversation } from "./conversation.js";
import { Experiments } from "./experiments.js";
import { Graph } from "./graph.js";
import { ago, count, money, plural, short } from "./figures.js";
import { listen } from "./keys.js";
import { Session } from "./session.js";

const FILTERS = [["default", "conversation"], ["no-tools", "without tools"], ["user-only", "prompts"], ["labeled-only", "labels"], ["all", "everything"]];
const TABS = [["tree", "Tree"], ["talk", "Conversation"], ["branches", "Branches"], ["compare", "Compare"], ["ab", "A/B"]];

export class Workspace extends Component {
  state = { dialog: null, editing: null, said: null };
  conversation = {}; // whoever is shown puts itself there, for the keys

  constructor(props) {
    super(props);
    this.session = new Session(props.api, props.id, { changed: () => this.drawSoon(), tell: props.tell });
  }

  componentDidMount() {
    this.session.open().then(() => this.lookAt());
    this.endKeys = listen({
      t: () => this.show("tree", "#graph"),
      p: () => this.show("talk", ".composer textarea"),
      j: () => this.conversation.current?.step(1),
      k: () => this.conversation.current?.step(-1),
      g: () => this.writes && this.session.selected && this.askNavigate(this.session.selected),
      b: () => this.writes && this.askBranch(this.session.end),
      l: () => this.writes && this.session.end && this.askLabel(this.session.end),
      f: () => this.writes && this.askFork(this.session.end),
      m: () => this.writes && this.askMerge(),
      u: () => this.writes && this.undo(),
      c: () => this.show("compare"),
      x: () => this.show("ab"),
      Escape: () => this.back(),
    });
  }

  componentWillUnmount() {
    document.title = "sessiontree";
    this.session.close();
    this.endKeys();
    cancelAnimationFrame(this.frame);
  }

  componentDidUpdate(before) {
    document.title = [this.session.info?.name, "sessiontree"].filter(Boolean).join(" · ");
    if (before.place !== this.props.place) this.lookAt();
  }

  /** Show the branch or entry that the address names. */
  lookAt() {
    const { branch, entry } = this.props.place;
    if (this.tab === "compare" || this.tab === "ab") return;
    if (branch && this.session.heads.has(branch)) this.session.look(branch);
    else if (entry) this.session.select(entry);
  }

  drawSoon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.setState({});
    });
  }

  get tab() {
    return this.props.tab ?? "talk";
  }

  /** Show a view; the control that `focus` selects gets the keys, at once if it is there already. */
  show = (tab, focus) => {
    this.props.go(`/s/${encodeURIComponent(this.props.id)}/${tab}`);
    const found = () => {
      const target = focus && document.querySelector(focus);
      target?.focus();
      return document.activeElement === target;
    };
    if (focus && !found()) requestAnimationFrame(() => requestAnimationFrame(found));
  };

  back() {
    if (this.tab === "compare" || this.tab === "ab") this.show("talk");
    else if (this.session.selected || this.session.looking) this.session.look(this.session.current);
  }

  tell(said, kind) {
    this.props.tell(said, kind);
  }

  // Asking and doing

  ask(dialog) {
    this.setState({ dialog });
  }
  close = () => this.setState({ dialog: null });

  get writes() {
    return this.props.me.scopes.includes("write") && !this.session.info?.readOnly;
  }
  get runs() {
    return this.props.me.allowRun && this.props.me.scopes.includes("run") && !this.session.info?.readOnly;
  }

  askNavigate(entry) {
    const { session } = this;
    this.ask({
      title: "Go here",
      note: `Moves ${session.current} to this entry. What stands below stays in the tree.`,
      action: "Go",
      fields: [
        { name: "how", label: "What is left behind", kind: "choice", value: "no", options: [["no", "is not summarised"], ...(this.runs ? [["model", "is summarised by the model"]] : []), ["own", "is summarised in my words"]] },
        { name: "text", label: this.runs ? "Instructions, or the summary itself" : "The summary", kind: "text" },
      ],
      submit: async ({ how, text }) => {
        const options = how === "model" ? { summarize: true, instructions: text } : how === "own" && text ? { summary: text } : {};
        const answer = await session.navigate(entry, options);
        if (answer.cancelled) throw new Error("a hook cancelled the move");
        if (answer.text) this.setState({ editing: { text: answer.text } });
        this.tell("Moved; u takes it back");
      },
    });
  }

  askBranch(entry) {
    this.ask({
      title: "New branch",
      action: "Make",
      fields: [
        { name: "name", label: "Name", required: true },
        { name: "description", label: "What it is for" },
        { name: "switch", label: "Work on it from now on", kind: "check", value: true },
      ],
      submit: ({ name, description, switch: change }) =>
        this.session.createBranch({ name, ...(description ? { description } : {}), ...(entry ? { at: entry } : {}), switch: change === "yes" }),
    });
  }

  askLabel(entry) {
    this.ask({
      title: "Label",
      note: "A label names a place. An empty one takes the label away.",
      action: "Set",
      fields: [{ name: "label", label: "Label", value: this.session.labelOf(entry) ?? "" }],
      submit: ({ label }) => this.session.label(entry, label ?? null),
    });
  }

  askFork(entry) {
    this.ask({
      title: "Fork",
      note: "Makes a new session of the path to this entry. This one is not touched.",
      action: "Fork",
      fields: [
        { name: "name", label: "Name of the new session" },
        { name: "tree", label: "Take the whole tree", kind: "check" },
      ],
      submit: async ({ name, tree }) => {
        const made = await this.session.fork({ ...(entry && tree !== "yes" ? { at: entry } : {}), ...(name ? { name } : {}), ...(tree === "yes" ? { tree: true } : {}) });
        this.tell("Forked");
        this.props.go(`/s/${encodeURIComponent(made.id)}`);
      },
    });
  }

  askMerge(from) {
    const { session } = this;
    const others = session.branches.filter((branch) => branch.name !== session.current && !branch.archived).map((branch) => branch.name);
    if (!others.length) return this.tell("There is no other branch to merge");
    return this.ask({
      title: "Merge",
      note: `Appends a summary of a branch to ${session.current}. Both branches stay as they are.`,
      action: "Merge",
      fields: [
        { name: "from", label: "Branch", kind: "choice", value: from ?? session.looking ?? others[0], options: others.map((name) => [name, name]) },
        { name: "summary", label: "Summary", kind: "text", ...this.byModel() },
      ],
      submit: async (values) => {
        await session.merge({ ...values, into: session.current });
        this.tell(`Merged into ${session.current}`);
      },
    });
  }

  /** A summary may be left to the model where one may be asked. */
  byModel() {
    return this.runs ? { help: "Left empty, the model writes it." } : { required: true };
  }

  askExport() {
    const { session } = this;
    this.ask({
      title: "Export",
      action: "Download",
      fields: [
        { name: "format", label: "As", kind: "choice", value: "html", options: [["html", "a page"], ["md", "Markdown"], ["text", "plain text"], ["jsonl", "a session file"], ["json", "JSON"]] },
        { name: "redact", label: "Take secrets out", kind: "check" },
      ],
      submit: ({ format, redact }) =>
        session.api.download(`${session.base}/export`, { format, redact: redact === "yes" ? 1 : undefined }, `${session.info.name || session.id}.${format === "text" ? "txt" : format}`),
    });
  }

  askRename(branch) {
    this.ask({
      title: branch ? `Rename ${branch}` : "Rename the session",
      action: "Rename",
      fields: [{ name: "name", label: "Name", value: branch ?? this.session.info.name ?? "", required: true }],
      submit: ({ name }) => (branch ? this.session.changeBranch(branch, { name }) : this.session.rename(name)),
    });
  }

  async try(work, said) {
    try {
      await work();
      if (said) this.tell(said);
    } catch (error) {
      this.tell(error.message, "wrong");
    }
  }
  undo() {
    return this.try(() => this.session.undo(), "Took the last move back");
  }

  actions = (entry) =>
    this.writes && html`
      <${Button} kind="small" label="Go here" onClick=${() => this.askNavigate(entry.id)} />
      <${Button} kind="small" label="Branch" onClick=${() => this.askBranch(entry.id)} />
      <${Button} kind="small" label="Label" onClick=${() => this.askLabel(entry.id)} />
      <${Button} kind="small" label="Fork" onClick=${() => this.askFork(entry.id)} />`;

  // Showing

  render({ me, models, go, place }, { dialog, editing }) {
    const { session, tab } = this;
    if (!session.info) return html`<main class="single"><${Notice} text=${session.error} kind="wrong" />${!session.error && html`<${Empty}>Loading…<//>`}</main>`;
    const beside = tab === "tree" || tab === "talk" || tab === "branches";
    return html`<main class="workspace tab-${tab}">
      ${this.head()}
      <nav class="tabs" aria-label="Views of the session">
        ${TABS.map(([name, label]) => html`<a data-tab=${name} href=${`#/s/${encodeURIComponent(session.id)}/${name}`} aria-current=${tab === name ? "page" : undefined}>${label}</a>`)}
      </nav>
      <${Notice} text=${session.error} kind="wrong" action=${html`<${Button} kind="small" label="Load again" onClick=${() => session.open()} />`} />
      ${beside && html`<div class="panes">
        <section class="pane tree" aria-label="Tree">
          ${this.treeTools()}
          ${tab === "branches" ? this.branchList() : html`<${Graph}
            layout=${session.layout} heads=${session.entryHeads} leaf=${session.leaf} selected=${session.selected ?? (session.looking ? session.end : null)}
            running=${session.running} follow=${!session.selected && !session.looking}
            onSelect=${(id) => session.select(id)} onOpen=${() => this.show("talk", ".window")} />`}
        </section>
        <section class="pane talk" aria-label="Conversation">
          ${this.where()}
          <${Conversation} handle=${this.conversation} session=${session} end=${session.end} follows=${session.follows()} actions=${this.actions} />
          <${Composer} session=${session} editing=${editing} allowed=${{ write: me.scopes.includes("write"), run: this.runs }} models=${models} />
        </section>
      </div>`}
      ${tab === "compare" && html`<${Compare} session=${session} names=${place.names} go=${go} promote=${this.writes && ((name) => this.askPromote(name))} />`}
      ${tab === "ab" && html`<${Experiments} api=${this.props.api} session=${session} chosen=${place.experiment} models=${models} allowed=${this.runs} go=${go} promote=${this.writes && ((name) => this.askPromote(name))} />`}
      ${dialog && html`<${Ask} ...${dialog} close=${this.close} />`}
    </main>`;
  }

  askPromote(branch) {
    this.ask({
      title: `Promote ${branch}`,
      note: `${this.session.current} goes on from where ${branch} ends. The branches that were tried beside it are summarised there and archived, not deleted.`,
      action: "Promote",
      fields: [{ name: "summary", label: "Summary of the others", kind: "text", ...this.byModel() }],
      submit: async (values) => {
        const answer = await this.session.promote({ branch, ...values });
        if (answer.cancelled) throw new Error("a hook cancelled the promotion");
        this.tell(answer.archived?.length ? `Promoted; ${plural(answer.archived.length, "branch", "branches")} archived` : "Promoted");
        this.show("talk");
      },
    });
  }

  head() {
    const { session } = this, { info } = session;
    const told = [plural(info.entries, "entry", "entries"), plural(info.branches, "branch", "branches"), info.tokens && `${short(info.tokens)} tokens`, info.cost && money(info.cost), info.models?.at(-1), ago(info.modified, Date.now())];
    return html`<header class="head">
      <div class="title"><h1>${info.name || "Unnamed session"}</h1>
        <p class="facts">${told.filter(Boolean).map((fact) => html`<span>${fact}</span>`)}<span class="path-of">${info.cwd}</span></p></div>
      <div class="row">
        <span class="link ${session.connection}" role="status" title=${session.connection === "live" ? "Changes appear as they happen" : "Trying to reach the server"}>${session.connection === "live" ? "live" : "waiting"}</span>
        ${this.writes && html`<${Button} label="Rename" kind="desk" onClick=${() => this.askRename()} />
        <${Button} label="Undo" keys="u" title="Take the last move back" onClick=${() => this.undo()} />`}
        <${Button} label="Export" kind="desk" title="Download the session" onClick=${() => this.askExport()} />
        ${this.writes && html`<${Button} label=${info.archived ? "Bring back" : "Archive"} kind="desk" onClick=${() => this.try(() => session.archive(!info.archived), info.archived ? "Brought back" : "Archived")} />`}
      </div>
      ${info.problems?.length > 0 && html`<details class="notice"><summary>This session is damaged: ${plural(info.problems.length, "problem")}</summary><ul>${info.problems.slice(0, 100).map((problem) => html`<li>${problem.message ?? String(problem)}</li>`)}</ul></details>`}
    </header>`;
  }

  treeTools() {
    const { session, tab } = this;
    return html`<div class="tools row">
      ${tab === "branches"
        ? html`<${Button} kind="small" label="‹ Tree" onClick=${() => this.show("tree")} />`
        : html`<select aria-label="Which entries the tree shows" value=${session.filter} onChange=${(event) => session.setFilter(event.target.value)}>
            ${FILTERS.map(([value, words]) => html`<option value=${value}>${words}</option>`)}
          </select>
          <span class="fact">${count(session.rows.length)}${session.total > session.rows.length ? ` of ${count(session.total)}` : ""}</span>`}
      <span class="gap"></span>
      ${tab !== "branches" && html`<${Button} kind="small desk" label="Branches" onClick=${() => this.show("branches")} />`}
      ${this.writes && html`<${Button} kind="small" label="Merge" keys="m" onClick=${() => this.askMerge()} />
      <${Button} kind="small" label="New branch" keys="b" onClick=${() => this.askBranch(session.end)} />`}
    </div>`;
  }

  where() {
    const { session } = this;
    const node = session.layout.nodes[session.layout.index.get(session.selected) ?? -1];
    const elsewhere = session.selected || session.looking;
    return html`<div class="tools row where">
      <select aria-label="Branch that is shown" value=${session.branch ?? ""} onChange=${(event) => event.target.value && session.look(event.target.value)}>
        ${!session.branch && html`<option value="">${node ? `at “${node.row.text.slice(0, 40)}”` : "inside the tree"}</option>`}
        ${session.branches.filter((branch) => !branch.archived || branch.name === session.branch).map(({ name }) => html`<option value=${name}>${name}${name === session.current ? " · current" : ""}</option>`)}
      </select>
      <span class="gap"></span>
      ${elsewhere && html`
        ${this.writes && session.branch && session.branch !== session.current && html`<${Button} kind="small" label=${`Switch to ${session.branch}`} onClick=${() => this.try(() => session.switchTo(session.branch), "Switched")} />`}
        ${this.writes && session.selected && session.selected !== session.leaf && html`<${Button} kind="small" label="Go here" keys="g" onClick=${() => this.askNavigate(session.selected)} />`}
        <${Button} kind="small" label="Back to current" keys="Esc" onClick=${() => session.look(session.current)} />`}
    </div>`;
  }

  branchList() {
    const { session } = this;
    return html`<ul class="branches">
      ${session.branches.map((branch) => html`<li class=${branch.name === session.branch ? "chosen" : ""} key=${branch.name}>
        <button type="button" class="name" onClick=${() => session.look(branch.name)}>
          <b>${branch.name}</b>
          ${branch.name === session.current && html`<${Chip} kind="branch">current<//>`}
          ${branch.archived && html`<${Chip}>archived<//>`}
          ${session.running.has(branch.name) && html`<${Chip} kind="busy">at work<//>`}
          <span class="fact">${plural(branch.entryCount, "entry", "entries")}</span>
          ${branch.description && html`<small>${branch.description}</small>`}
        </button>
        ${this.writes && html`<span class="row">
          ${branch.name !== session.current && html`<${Button} kind="small" label="Switch" onClick=${() => this.try(() => session.switchTo(branch.name), `On ${branch.name}`)} />
          <${Button} kind="small" label="Merge" onClick=${() => this.askMerge(branch.name)} />
          <${Button} kind="small" label="Promote" onClick=${() => this.askPromote(branch.name)} />`}
          <${Button} kind="small" label="Rename" onClick=${() => this.askRename(branch.name)} />
          ${branch.name !== session.current && html`<${Button} kind="small" label=${branch.archived ? "Bring back" : "Archive"} onClick=${() => this.try(() => session.changeBranch(branch.name, { archived: !branch.archived }))} />`}
        </span>`}
      </li>`)}
    </ul>`;
  }
}
