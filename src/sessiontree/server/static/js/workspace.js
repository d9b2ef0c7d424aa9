// The view of a session: tree, conversation, branches, and the keys and buttons that act on them. Its dialogs are in
// session_dialogs.js.
import { go, linkToSession } from "./addresses.js";
import { FormDialog } from "./dialogs.js";
import { Button, Chip, Component, Empty, Notice, html } from "./html.js";
import { Compare } from "./compare.js";
import { Composer, Conversation, renameDraft } from "./conversation.js";
import { Experiments } from "./experiments.js";
import { Graph } from "./graph.js";
import { formatAge, formatCost, formatCount, formatShort, pluralize } from "./format.js";
import { listenForKeys } from "./keys.js";
import { Permissions } from "./permissions.js";
import { SessionDialogs } from "./session_dialogs.js";
import { Session } from "./session.js";
import { makeVisible } from "./sanitize.js";

const FILTERS = [
  ["default", "Default"], ["no-tools", "No tools"], ["user-only", "Prompts only"], ["labeled-only", "Labeled only"], ["all", "All entries"],
];
const TABS = [["tree", "Tree"], ["talk", "Conversation"], ["branches", "Branches"], ["compare", "Compare"], ["ab", "A/B"]];

const Problems = ({ kind, problems, children }) => html`<details class=${kind}>
  <summary>${children}</summary>
  <ul>${problems.slice(0, 100).map(({ message }) => html`<li>${message}</li>`)}</ul>
</details>`;

export class Workspace extends Component {
  state = { dialog: null, editing: null };
  conversation = {}; // the component, for keyboard shortcuts

  constructor(props) {
    super(props);
    this.session = new Session(props.api, props.id, {
      onChange: () => this.drawSoon(),
      notify: props.notify,
      onRename: (before, after) => renameDraft(props.id, before, after),
    });
    this.dialogs = new SessionDialogs(this.session, {
      canRun: () => this.canRun,
      notify: props.notify,
      edit: (text) => this.setState({ editing: { text } }),
      ask: (dialog) => this.setState({ dialog }),
    });
  }

  componentDidMount() {
    const { session, dialogs } = this;
    this.session.open().then(() => this.followAddress());
    this.stopKeyListener = listenForKeys({
      t: () => this.show("tree", "#graph"),
      p: () => this.show("talk", ".composer textarea"),
      j: () => this.conversation.current?.step(1),
      k: () => this.conversation.current?.step(-1),
      g: () => session.chosen && this.ask(dialogs.buildNavigateDialog(session.chosen)),
      b: () => this.ask(dialogs.buildBranchDialog(session.end)),
      l: () => session.end && this.ask(dialogs.buildLabelDialog(session.end)),
      f: () => this.ask(dialogs.buildForkDialog(session.end)),
      m: () => this.askMerge(),
      u: () => this.canWrite && this.undo(),
      c: () => this.show("compare"),
      x: () => this.show("ab"),
      Escape: () => this.goBack(),
    });
  }

  componentWillUnmount() {
    document.title = "sessiontree";
    this.session.close();
    this.stopKeyListener();
    cancelAnimationFrame(this.frame);
  }

  componentDidUpdate(before) {
    document.title = makeVisible([this.session.info?.name, "sessiontree"].filter(Boolean).join(" · "));
    if (before.place !== this.props.place) this.followAddress();
  }

  /** Show the branch or entry that the address names. */
  followAddress() {
    const { branch, entry } = this.props.place;
    if (this.props.tab === "compare" || this.props.tab === "ab") return;
    if (branch && this.session.heads.has(branch)) this.session.showBranch(branch);
    else if (entry) this.session.select(entry);
  }

  drawSoon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.setState({});
    });
  }

  /** Show a view and focus the element that the selector `focus` finds, at once if it exists. */
  show = (tab, focus) => {
    go(linkToSession(this.props.id, tab));
    const setFocus = () => {
      const target = focus && document.querySelector(focus);
      target?.focus();
      return document.activeElement === target;
    };
    if (focus && !setFocus()) requestAnimationFrame(() => requestAnimationFrame(setFocus));
  };

  goBack() {
    const { session } = this, { tab } = this.props;
    if (tab === "compare" || tab === "ab") this.show("talk");
    else if (session.selected || session.otherBranch) session.showBranch(session.current);
  }

  // Actions

  /** Whether the user may change the session. Not before its branches are loaded. */
  get canWrite() {
    const { info, branches } = this.session;
    return this.props.me.scopes.includes("write") && branches.length > 0 && info && !info.readOnly;
  }
  get canRun() {
    return this.props.me.allowRun && this.props.me.scopes.includes("run") && !this.session.info?.readOnly;
  }

  ask = (dialog) => this.canWrite && this.setState({ dialog });

  askMerge(from) {
    if (!this.canWrite) return;
    const dialog = this.dialogs.buildMergeDialog(from);
    if (dialog) this.ask(dialog);
    else this.props.notify("No other branch to merge");
  }

  promote = (branch) => this.ask(this.dialogs.buildPromoteDialog(branch));

  async attempt(work, message) {
    try {
      await work();
      if (message) this.props.notify(message);
    } catch (error) {
      this.props.notify(error.message, "wrong");
    }
  }
  undo() {
    return this.attempt(() => this.dialogs.undo());
  }

  renderActions = ({ id }) =>
    this.canWrite && html`
      <${Button} kind="small" label="Go here" onClick=${() => this.ask(this.dialogs.buildNavigateDialog(id))} />
      <${Button} kind="small" label="Branch" onClick=${() => this.ask(this.dialogs.buildBranchDialog(id))} />
      <${Button} kind="small" label="Label" onClick=${() => this.ask(this.dialogs.buildLabelDialog(id))} />
      <${Button} kind="small" label="Fork" onClick=${() => this.ask(this.dialogs.buildForkDialog(id))} />`;

  // Rendering

  render({ tab }, { dialog }) {
    const { session } = this;
    if (!session.info) {
      return html`<main class="single">
        <${Notice} text=${session.error} kind="wrong" />
        ${!session.error && html`<${Empty}>Loading…<//>`}
      </main>`;
    }
    const reload = html`<${Button} kind="small" label="Reload" onClick=${() => session.open()} />`;
    return html`<main class="workspace tab-${tab}" aria-busy=${session.loading ? "true" : "false"}>
      ${this.renderHead()}
      <nav class="tabs" aria-label="Views of the session">
        ${TABS.map(([name, label]) => html`
          <a data-tab=${name} href=${linkToSession(session.id, name)} aria-current=${tab === name ? "page" : undefined}>${label}</a>`)}
      </nav>
      <${Notice} text=${session.error} kind="wrong" action=${reload} />
      <${Notice} text=${session.streamError && `No live updates: ${session.streamError}. This page polls for changes and cannot send prompts.`} />
      ${this.renderView(tab)}
      ${dialog && html`<${FormDialog} key=${dialog.title} ...${dialog} close=${() => this.setState({ dialog: null })} notify=${this.props.notify} />`}
    </main>`;
  }

  renderView(tab) {
    const { session } = this, { api, me, place, models, notify } = this.props;
    const promote = this.canWrite && this.promote;
    if (tab === "compare") return html`<${Compare} session=${session} names=${place.branches} canRun=${this.canRun} promote=${promote} />`;
    if (tab === "ab") {
      return html`<${Experiments} api=${api} session=${session} chosen=${place.experiment} models=${models}
        me=${me} allowed=${this.canRun} promote=${promote} notify=${notify} />`;
    }
    return html`<div class="panes">${this.renderTree(tab)}${this.renderConversation()}</div>`;
  }

  renderHead() {
    const { session } = this, { info } = session;
    const facts = [
      pluralize(info.entries, "entry", "entries"),
      pluralize(info.branches, "branch", "branches"),
      info.tokens && `${formatShort(info.tokens)} tokens`,
      info.cost && formatCost(info.cost),
      info.models.at(-1),
      info.origin && `from ${info.origin}`,
      formatAge(info.modified, Date.now()),
    ];
    const faults = info.problems.filter(({ severity }) => severity === "fault");
    const notes = info.problems.filter(({ severity }) => severity !== "fault"); // such as an unanswered tool call
    const live = session.connection === "live";
    const archive = () => this.attempt(() => session.archive(!info.archived), info.archived ? "Restored" : "Archived");
    return html`<header class="head">
      <div class="title">
        <h1>${info.name || "Unnamed session"}</h1>
        <p class="facts">
          ${facts.filter(Boolean).map((fact) => html`<span>${fact}</span>`)}
          <span class="path-of">${info.cwd}</span>
        </p>
      </div>
      <div class="row">
        <span class="link ${session.connection}" role="status" title=${live ? "Live updates are on" : "Connecting to the server"}>
          ${live ? "live" : "connecting"}
        </span>
        ${this.canWrite && html`
          <${Button} label="Rename" kind="wide-only" onClick=${() => this.ask(this.dialogs.buildRenameDialog())} />
          <${Button} label="Undo" keys="u" title="Undo the last move, switch or merge" onClick=${() => this.undo()} />`}
        <${Button} label="Export" kind="wide-only" title="Download the session" onClick=${() => this.setState({ dialog: this.dialogs.buildExportDialog() })} />
        ${this.canWrite && html`<${Button} label=${info.archived ? "Restore" : "Archive"} kind="wide-only" onClick=${archive} />`}
      </div>
      ${faults.length > 0 && html`<${Problems} kind="notice" problems=${faults}>
        This session is damaged: ${pluralize(faults.length, "problem")}
      <//>`}
      ${notes.length > 0 && !session.running.size && html`<${Problems} kind="notes" problems=${notes}>${pluralize(notes.length, "note")}<//>`}
    </header>`;
  }

  // The tree or the list of branches

  renderTree(tab) {
    const { session } = this;
    return html`<section class="pane tree" aria-label="Tree">
      <div class="tools row">
        ${tab === "branches" ? html`<${Button} kind="small" label="‹ Tree" onClick=${() => this.show("tree")} />` : this.renderFilter()}
        <span class="gap"></span>
        ${tab !== "branches" && html`<${Button} kind="small wide-only" label="Branches" onClick=${() => this.show("branches")} />`}
        ${this.canWrite && html`
          <${Button} kind="small" label="Merge" keys="m" onClick=${() => this.askMerge()} />
          <${Button} kind="small" label="New branch" keys="b" onClick=${() => this.ask(this.dialogs.buildBranchDialog(session.end))} />`}
      </div>
      ${tab === "branches" ? this.renderBranches() : html`<${Graph}
        layout=${session.layout}
        heads=${session.entryHeads}
        leaf=${session.shownLeaf}
        isLeafHidden=${session.isLeafHidden}
        selected=${session.chosen}
        end=${session.shownEnd}
        running=${session.running}
        follow=${!session.selected && !session.otherBranch}
        onSelect=${(id) => session.select(id)}
        onOpen=${() => this.show("talk", ".window")}
      />`}
    </section>`;
  }

  renderFilter() {
    const { session } = this;
    const { rows, window: part } = session;
    const shown = rows.length;
    return html`
      <select aria-label="Tree filter" value=${session.filter} onChange=${(event) => session.setFilter(event.target.value)}>
        ${FILTERS.map(([value, label]) => html`<option value=${value}>${label}</option>`)}
      </select>
      <span class="fact">${formatCount(shown)}${session.total > shown ? ` of ${formatCount(session.total)}` : ""}</span>
      ${part?.hasEarlier && html`<${Button} kind="small" label="Earlier rows" onClick=${() => session.moveWindow(rows[0].id)} />`}
      ${part?.hasLater && html`<${Button} kind="small" label="Later rows" onClick=${() => session.moveWindow(rows.at(-1).id)} />`}`;
  }

  renderBranches() {
    const { session } = this;
    return html`<ul class="branches">
      ${session.branches.map((branch) => html`<li class=${branch.name === session.branch ? "chosen" : ""} key=${branch.name}>
        <button type="button" class="name" onClick=${() => session.showBranch(branch.name)}>
          <b>${branch.name}</b>
          ${branch.name === session.current && html`<${Chip} kind="branch">current<//>`}
          ${branch.archived && html`<${Chip}>archived<//>`}
          ${session.running.has(branch.name) && html`<${Chip} kind="busy">running<//>`}
          <span class="fact">${pluralize(branch.entryCount, "entry", "entries")}</span>
          ${branch.description && html`<small>${branch.description}</small>`}
        </button>
        ${this.canWrite && html`<span class="row">
          ${branch.name !== session.current && this.renderBranchActions(branch)}
          <${Button} kind="small" label="Rename" onClick=${() => this.ask(this.dialogs.buildRenameDialog(branch.name))} />
        </span>`}
      </li>`)}
    </ul>`;
  }

  /** Actions on a branch that is not the current one. */
  renderBranchActions({ name, archived }) {
    const { session } = this;
    return html`
      <${Button} kind="small" label="Switch" onClick=${() => this.attempt(() => this.dialogs.switchTo(name))} />
      <${Button} kind="small" label="Merge" onClick=${() => this.askMerge(name)} />
      <${Button} kind="small" label="Promote" onClick=${() => this.promote(name)} />
      <${Button} kind="small" label=${archived ? "Restore" : "Archive"}
        onClick=${() => this.attempt(() => session.changeBranch(name, { archived: !archived }))} />`;
  }

  // The conversation

  renderConversation() {
    const { session } = this, { me, models, notify } = this.props;
    const allowed = { write: me.scopes.includes("write"), run: this.canRun };
    return html`<section class="pane talk" aria-label="Conversation">
      ${this.renderBranchBar()}
      <${Conversation} handle=${this.conversation} session=${session} pathKey=${session.path.key} actions=${this.renderActions} />
      <${Permissions} session=${session} allowed=${allowed.run} me=${me} />
      <${Composer} session=${session} branch=${session.branch} editing=${this.state.editing} me=${me} allowed=${allowed}
        models=${models} notify=${notify} />
    </section>`;
  }

  /** The shown branch, and buttons to switch to it or to go back. */
  renderBranchBar() {
    const { session } = this;
    const text = session.layout.nodes[session.layout.index.get(session.selected) ?? -1]?.row.text;
    const listed = session.branches.filter(({ name, archived }) => !archived || name === session.branch);
    const isElsewhere = session.selected || session.otherBranch;
    const other = session.branch && session.branch !== session.current ? session.branch : null;
    return html`<div class="tools row where">
      <select aria-label="Shown branch" value=${session.branch ?? ""} onChange=${(event) => event.target.value && session.showBranch(event.target.value)}>
        ${!session.branch && html`<option value="">${text ? `at “${text.length > 40 ? `${text.slice(0, 40).trimEnd()}…` : text}”` : "inside the tree"}</option>`}
        ${listed.map(({ name }) => html`<option value=${name}>${name}${name === session.current ? " · current" : ""}</option>`)}
      </select>
      <span class="gap"></span>
      ${isElsewhere && this.canWrite && other && html`
        <${Button} kind="small" label=${`Switch to ${other}`} onClick=${() => this.attempt(() => this.dialogs.switchTo(other))} />`}
      ${this.canWrite && session.chosen && session.chosen !== session.leaf && html`
        <${Button} kind="small" label="Go here" keys="g" onClick=${() => this.ask(this.dialogs.buildNavigateDialog(session.chosen))} />`}
      ${isElsewhere && html`<${Button} kind="small" label="Back to current" keys="Esc" onClick=${() => session.showBranch(session.current)} />`}
    </div>`;
  }
}
