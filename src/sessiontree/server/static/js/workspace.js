// The view of a session: tree, conversation, branches, and the keys and buttons that act on them. Its dialogs are in
// session_dialogs.js.
import { go, linkToSession } from "./addresses.js";
import { FormDialog } from "./dialogs.js";
import { Button, Chip, Component, Empty, Notice, html } from "./html.js";
import { Compare } from "./compare.js";
import { Composer, renameDraft, returnToDraft } from "./composer.js";
import { Conversation } from "./conversation.js";
import { EntryActions, Versions } from "./entry_actions.js";
import { Experiments } from "./experiments.js";
import { Graph } from "./graph.js";
import { formatAge, formatCost, formatCount, formatShort, pluralize } from "./format.js";
import { listenForKeys } from "./keys.js";
import { Menu } from "./menu.js";
import { ModelView } from "./model_view.js";
import { Permissions } from "./permissions.js";
import { SessionDialogs } from "./session_dialogs.js";
import { Session } from "./session.js";
import { SessionSearch, highlightWords } from "./session_search.js";
import { ShareDialog } from "./share_dialog.js";
import { groupBranches } from "./rows.js";
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
  state = { dialog: null, editing: null, edited: null, viewed: null, sharing: false, finding: null }; // `edited`, `viewed`: entry ids
  conversation = {}; // the component, for keyboard shortcuts

  constructor(props) {
    super(props);
    this.session = new Session(props.api, props.id, {
      onChange: () => this.drawSoon(),
      notify: props.notify,
      onRename: (before, after) => renameDraft(props.id, before, after),
      onUnsent: (branch, text) => {
        returnToDraft(props.id, branch, text);
        props.notify("The agent stopped before it read your message. It is in the text field again.");
      },
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
      g: () => session.pointed && this.ask(dialogs.buildNavigateDialog(session.pointed)),
      b: () => this.ask(dialogs.buildBranchDialog(session.pointed ?? session.end)),
      l: () => session.end && this.ask(dialogs.buildLabelDialog(session.pointed ?? session.end)),
      f: () => this.ask(dialogs.buildForkDialog(session.pointed ?? session.end)),
      m: () => this.askMerge(),
      u: () => this.canWrite && this.undo(),
      c: () => this.show("compare"),
      x: () => this.show("ab"),
      e: () => this.editFocused(),
      r: () => this.retryFocused(),
      "[": () => this.stepVersion(-1),
      "]": () => this.stepVersion(1),
      v: () => session.end && this.setState({ viewed: session.end }),
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
    if (this.state.finding !== null) highlightWords(document.querySelector(".path"), this.state.finding);
  }

  /** Show the branch or entry that the address names. */
  followAddress() {
    const { branch, entry, query } = this.props.place;
    if (query) this.find(query);
    if (this.props.tab === "compare" || this.props.tab === "ab") return;
    if (branch && this.session.heads.has(branch)) this.session.showBranch(branch);
    else if (entry) this.session.showVersion(entry);
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
  get canShare() {
    return this.props.me.scopes.includes("write") && this.session.branches.length > 0;
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

  // Versions of messages

  /** Return the focused entry if it has that role, or the last one of the role. */
  findMessage(...roles) {
    const id = document.activeElement?.closest?.("article[data-entry]")?.dataset.entry;
    const { entries } = this.session;
    return entries.find((entry) => entry.id === id && roles.includes(entry.role)) ?? entries.findLast(({ role }) => roles.includes(role));
  }

  edit = (id) => this.setState({ edited: id });
  editFocused() {
    const entry = this.canRun && this.canWrite && this.findMessage("user");
    if (entry) this.edit(entry.id);
  }

  /** Answer again. With a choice of models, ask for one first. */
  retry = (entry) => {
    const { session } = this, { models } = this.props;
    if (models.length > 1) return this.ask(this.dialogs.buildRetryDialog(entry, models));
    return this.attempt(() => session.retry(entry));
  };
  retryFocused() {
    const entry = this.canRun && this.canWrite && this.findMessage("assistant");
    if (entry) this.retry(entry);
  }

  stepVersion(by) {
    const entry = this.findMessage("user", "assistant");
    const shown = entry?.versions ? entry : this.session.entries.findLast(({ versions }) => versions);
    const id = shown?.versions[shown.versions.indexOf(shown.id) + by];
    if (id) this.session.showVersion(id);
  }

  stopFinding = () => {
    this.setState({ finding: null });
    document.querySelector(".window")?.focus();
  };

  find = (query = "") => this.setState(({ finding }) => ({ finding: finding ?? query }));

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

  renderVersions = (entry) => html`<${Versions} entry=${entry} show=${(id) => this.session.showVersion(id)} />`;

  renderActions = (entry) => html`<${EntryActions}
    entry=${entry}
    session=${this.session}
    dialogs=${this.canWrite ? this.dialogs : undefined}
    canRun=${this.canRun && this.canWrite}
    edit=${this.edit}
    retry=${this.retry}
    viewContext=${(id) => this.setState({ viewed: id })}
    run=${(work, message) => this.attempt(work, message)}
    ask=${this.ask}
  />`;

  // Rendering

  render({ tab }, { dialog, viewed, sharing }) {
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
      ${viewed && html`<${ModelView} key=${viewed} session=${session} place=${viewed} close=${() => this.setState({ viewed: null })} />`}
      ${sharing && html`<${ShareDialog} session=${session} close=${() => this.setState({ sharing: false })} />`}
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
    const ask = (build) => () => this.setState({ dialog: this.dialogs[build]() });
    const undoTitle = info.undoable ? `Undo ${info.undoable}` : "Undo the last move, switch or merge";
    const share = () => this.setState({ sharing: true });
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
          <${Button} label="Undo" keys="u" kind="wide-only" title=${undoTitle} onClick=${() => this.undo()} />`}
        ${this.canShare && html`<${Button} label="Share" kind="wide-only" title="Create a read-only link" onClick=${share} />`}
        <${Button} label="Export" kind="wide-only" title="Download the session" onClick=${ask("buildExportDialog")} />
        ${this.canWrite && html`<${Button} label=${info.archived ? "Restore" : "Archive"} kind="wide-only" onClick=${archive} />`}
        <${Menu} label="Session actions" kind="phone-only">
          ${this.canWrite && html`
            <${Button} label=${undoTitle} onClick=${() => this.undo()} />
            <${Button} label="Rename" onClick=${() => this.ask(this.dialogs.buildRenameDialog())} />`}
          ${this.canShare && html`<${Button} label="Share" onClick=${share} />`}
          <${Button} label="Export" onClick=${ask("buildExportDialog")} />
          ${this.canWrite && html`<${Button} label=${info.archived ? "Restore" : "Archive"} onClick=${archive} />`}
        <//>
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
          <${Button} kind="small" label="New branch" keys="b" onClick=${() => this.ask(this.dialogs.buildBranchDialog(session.pointed ?? session.end))} />`}
      </div>
      ${tab === "branches" ? this.renderBranches() : html`<${Graph}
        layout=${session.layout}
        heads=${session.entryHeads}
        leaf=${session.shownLeaf}
        isLeafHidden=${session.isLeafHidden}
        selected=${session.pointed}
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
      ${groupBranches(session.branches).map(({ group, branches }) => (group
        ? html`<li class="group" key=${`${group}/`}><details open=${branches.some(({ name }) => name === session.branch) || undefined}>
            <summary>${group} · ${pluralize(branches.length, "branch", "branches")}</summary>
            <ul class="branches">${branches.map((branch) => this.renderBranch(branch))}</ul>
          </details></li>`
        : this.renderBranch(branches[0])))}
    </ul>`;
  }

  renderBranch(branch) {
    const { session } = this;
    return html`<li class=${branch.name === session.branch ? "chosen" : ""} key=${branch.name}>
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
      </li>`;
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
      ${this.state.finding !== null && html`<${SessionSearch} session=${session} query=${this.state.finding}
        show=${(id) => session.showVersion(id)} onQuery=${(query) => this.setState({ finding: query })} close=${this.stopFinding} />`}
      <${Conversation} handle=${this.conversation} session=${session} pathKey=${session.path.key} actions=${this.renderActions}
        versions=${this.renderVersions} edited=${this.state.edited} stopEditing=${() => this.edit(null)}
        sendEdit=${(entry, text) => session.sendVersion(entry, text)} />
      <${Permissions} session=${session} allowed=${allowed.run} me=${me} />
      <${Composer} session=${session} branch=${session.branch} editing=${this.state.editing} me=${me} allowed=${allowed}
        models=${models} notify=${notify} />
    </section>`;
  }

  /** The shown branch, and buttons to switch to it or to go back. */
  renderBranchBar() {
    const { session } = this;
    const listed = session.branches.filter(({ name, archived }) => !archived || name === session.branch);
    const isElsewhere = session.selected || session.otherBranch;
    const other = session.branch && session.branch !== session.current ? session.branch : null;
    return html`<div class="tools row where">
      <select aria-label="Shown branch" value=${session.branch ?? ""} onChange=${(event) => event.target.value && session.showBranch(event.target.value)}>
        ${!session.branch && html`<option value="">at ${session.describe(session.selected)}</option>`}
        ${groupBranches(listed).map(({ group, branches }) => {
          const options = branches.map(({ name }) => html`<option value=${name}>${name}${name === session.current ? " · current" : ""}</option>`);
          return group ? html`<optgroup label=${group}>${options}</optgroup>` : options;
        })}
      </select>
      <span class="gap"></span>
      <${Button} kind="small" label="Search" title="Search in this session" onClick=${() => this.find()} />
      ${session.end && html`<${Button} kind="small wide-only" label="Model's view" keys="v" title="What the model sees here" onClick=${() => this.setState({ viewed: session.end })} />`}
      ${isElsewhere && this.canWrite && other && html`
        <${Button} kind="small" label=${`Switch to ${other}`} onClick=${() => this.attempt(() => this.dialogs.switchTo(other))} />`}
      ${this.canWrite && session.pointed && session.pointed !== session.leaf && html`
        <${Button} kind="small" label="Go here" keys="g" onClick=${() => this.ask(this.dialogs.buildNavigateDialog(session.pointed))} />`}
      ${isElsewhere && html`<${Button} kind="small" label="Back to current" keys="Esc" onClick=${() => session.showBranch(session.current)} />`}
    </div>`;
  }
}
