// The view of a session: tree, conversation, branches, and the keys and buttons that act on them. Its dialogs are in
// questions.js.
import { go, ofSession } from "./addresses.js";
import { Ask } from "./dialogs.js";
import { Button, Chip, Component, Empty, Notice, html } from "./html.js";
import { Compare } from "./compare.js";
import { Composer, Conversation, carryDraft } from "./conversation.js";
import { Experiments } from "./experiments.js";
import { Graph } from "./graph.js";
import { ago, count, money, plural, short } from "./figures.js";
import { listen } from "./keys.js";
import { Permissions } from "./permissions.js";
import { Questions } from "./questions.js";
import { Session } from "./session.js";
import { visible } from "./visible.js";

const FILTERS = [
  ["default", "conversation"], ["no-tools", "without tools"], ["user-only", "prompts"], ["labeled-only", "labels"], ["all", "everything"],
];
const TABS = [["tree", "Tree"], ["talk", "Conversation"], ["branches", "Branches"], ["compare", "Compare"], ["ab", "A/B"]];

const Problems = ({ kind, problems, children }) => html`<details class=${kind}>
  <summary>${children}</summary>
  <ul>${problems.slice(0, 100).map(({ message }) => html`<li>${message}</li>`)}</ul>
</details>`;

export class Workspace extends Component {
  state = { dialog: null, editing: null };
  conversation = {}; // it puts itself there, for the keys

  constructor(props) {
    super(props);
    this.session = new Session(props.api, props.id, {
      changed: () => this.drawSoon(),
      tell: props.tell,
      renamed: (was, now) => carryDraft(props.id, was, now),
    });
    this.questions = new Questions(this.session, {
      runs: () => this.runs,
      tell: props.tell,
      edit: (text) => this.setState({ editing: { text } }),
      ask: (dialog) => this.setState({ dialog }),
    });
  }

  componentDidMount() {
    const { session, questions } = this;
    this.session.open().then(() => this.lookAt());
    this.endKeys = listen({
      t: () => this.show("tree", "#graph"),
      p: () => this.show("talk", ".composer textarea"),
      j: () => this.conversation.current?.step(1),
      k: () => this.conversation.current?.step(-1),
      g: () => session.chosen && this.ask(questions.navigate(session.chosen)),
      b: () => this.ask(questions.branch(session.end)),
      l: () => session.end && this.ask(questions.label(session.end)),
      f: () => this.ask(questions.fork(session.end)),
      m: () => this.askMerge(),
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
    document.title = visible([this.session.info?.name, "sessiontree"].filter(Boolean).join(" · "));
    if (before.place !== this.props.place) this.lookAt();
  }

  /** Show the branch or entry that the address names. */
  lookAt() {
    const { branch, entry } = this.props.place;
    if (this.props.tab === "compare" || this.props.tab === "ab") return;
    if (branch && this.session.heads.has(branch)) this.session.look(branch);
    else if (entry) this.session.select(entry);
  }

  drawSoon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.setState({});
    });
  }

  /** Show a view; the control that `focus` selects gets the keys, at once if it is there already. */
  show = (tab, focus) => {
    go(ofSession(this.props.id, tab));
    const found = () => {
      const target = focus && document.querySelector(focus);
      target?.focus();
      return document.activeElement === target;
    };
    if (focus && !found()) requestAnimationFrame(() => requestAnimationFrame(found));
  };

  back() {
    const { session } = this, { tab } = this.props;
    if (tab === "compare" || tab === "ab") this.show("talk");
    else if (session.selected || session.looking) session.look(session.current);
  }

  // Doing

  /** Whether the session may be changed: not before it is known what there is. */
  get writes() {
    const { info, branches } = this.session;
    return this.props.me.scopes.includes("write") && branches.length > 0 && info && !info.readOnly;
  }
  get runs() {
    return this.props.me.allowRun && this.props.me.scopes.includes("run") && !this.session.info?.readOnly;
  }

  ask = (dialog) => this.writes && this.setState({ dialog });

  askMerge(from) {
    if (!this.writes) return;
    const dialog = this.questions.merge(from);
    if (dialog) this.ask(dialog);
    else this.props.tell("There is no other branch to merge");
  }

  promote = (branch) => this.ask(this.questions.promote(branch));

  async try(work, said) {
    try {
      await work();
      if (said) this.props.tell(said);
    } catch (error) {
      this.props.tell(error.message, "wrong");
    }
  }
  undo() {
    return this.try(async () => {
      const { undone } = await this.session.undo();
      this.props.tell(`Undid ${undone}`);
    });
  }

  actions = ({ id }) =>
    this.writes && html`
      <${Button} kind="small" label="Go here" onClick=${() => this.ask(this.questions.navigate(id))} />
      <${Button} kind="small" label="Branch" onClick=${() => this.ask(this.questions.branch(id))} />
      <${Button} kind="small" label="Label" onClick=${() => this.ask(this.questions.label(id))} />
      <${Button} kind="small" label="Fork" onClick=${() => this.ask(this.questions.fork(id))} />`;

  // Showing

  render({ tab }, { dialog }) {
    const { session } = this;
    if (!session.info) {
      return html`<main class="single">
        <${Notice} text=${session.error} kind="wrong" />
        ${!session.error && html`<${Empty}>Loading…<//>`}
      </main>`;
    }
    const again = html`<${Button} kind="small" label="Reload" onClick=${() => session.open()} />`;
    return html`<main class="workspace tab-${tab}" aria-busy=${session.loading ? "true" : "false"}>
      ${this.head()}
      <nav class="tabs" aria-label="Views of the session">
        ${TABS.map(([name, label]) => html`
          <a data-tab=${name} href=${ofSession(session.id, name)} aria-current=${tab === name ? "page" : undefined}>${label}</a>`)}
      </nav>
      <${Notice} text=${session.error} kind="wrong" action=${again} />
      <${Notice} text=${session.refusal && `No live updates: ${session.refusal}. This page polls for changes and cannot send prompts.`} />
      ${this.view(tab)}
      ${dialog && html`<${Ask} key=${dialog.title} ...${dialog} close=${() => this.setState({ dialog: null })} tell=${this.props.tell} />`}
    </main>`;
  }

  view(tab) {
    const { session } = this, { api, me, place, models, tell } = this.props;
    const promote = this.writes && this.promote;
    if (tab === "compare") return html`<${Compare} session=${session} names=${place.branches} promote=${promote} />`;
    if (tab === "ab") {
      return html`<${Experiments} api=${api} session=${session} chosen=${place.experiment} models=${models}
        me=${me} allowed=${this.runs} promote=${promote} tell=${tell} />`;
    }
    return html`<div class="panes">${this.treePane(tab)}${this.talkPane()}</div>`;
  }

  head() {
    const { session } = this, { info } = session;
    const told = [
      plural(info.entries, "entry", "entries"),
      plural(info.branches, "branch", "branches"),
      info.tokens && `${short(info.tokens)} tokens`,
      info.cost && money(info.cost),
      info.models.at(-1),
      ago(info.modified, Date.now()),
    ];
    const faults = info.problems.filter(({ severity }) => severity === "fault");
    const notes = info.problems.filter(({ severity }) => severity !== "fault"); // a call that is not answered yet, say
    const live = session.connection === "live";
    const shelve = () => this.try(() => session.archive(!info.archived), info.archived ? "Restored" : "Archived");
    return html`<header class="head">
      <div class="title">
        <h1>${info.name || "Unnamed session"}</h1>
        <p class="facts">
          ${told.filter(Boolean).map((fact) => html`<span>${fact}</span>`)}
          <span class="path-of">${info.cwd}</span>
        </p>
      </div>
      <div class="row">
        <span class="link ${session.connection}" role="status" title=${live ? "Live updates are on" : "Connecting to the server"}>
          ${live ? "live" : "waiting"}
        </span>
        ${this.writes && html`
          <${Button} label="Rename" kind="desk" onClick=${() => this.ask(this.questions.rename())} />
          <${Button} label="Undo" keys="u" title="Undo the last move, switch or merge" onClick=${() => this.undo()} />`}
        <${Button} label="Export" kind="desk" title="Download the session" onClick=${() => this.setState({ dialog: this.questions.download() })} />
        ${this.writes && html`<${Button} label=${info.archived ? "Restore" : "Archive"} kind="desk" onClick=${shelve} />`}
      </div>
      ${faults.length > 0 && html`<${Problems} kind="notice" problems=${faults}>
        This session is damaged: ${plural(faults.length, "problem")}
      <//>`}
      ${notes.length > 0 && !session.running.size && html`<${Problems} kind="notes" problems=${notes}>${plural(notes.length, "note")}<//>`}
    </header>`;
  }

  // The tree, or the branches in its place

  treePane(tab) {
    const { session } = this;
    return html`<section class="pane tree" aria-label="Tree">
      <div class="tools row">
        ${tab === "branches" ? html`<${Button} kind="small" label="‹ Tree" onClick=${() => this.show("tree")} />` : this.filter()}
        <span class="gap"></span>
        ${tab !== "branches" && html`<${Button} kind="small desk" label="Branches" onClick=${() => this.show("branches")} />`}
        ${this.writes && html`
          <${Button} kind="small" label="Merge" keys="m" onClick=${() => this.askMerge()} />
          <${Button} kind="small" label="New branch" keys="b" onClick=${() => this.ask(this.questions.branch(session.end))} />`}
      </div>
      ${tab === "branches" ? this.branchList() : html`<${Graph}
        layout=${session.layout}
        heads=${session.entryHeads}
        leaf=${session.here}
        isLeafHidden=${session.isHereHidden}
        selected=${session.chosen}
        end=${session.shownEnd}
        running=${session.running}
        follow=${!session.selected && !session.looking}
        onSelect=${(id) => session.select(id)}
        onOpen=${() => this.show("talk", ".window")}
      />`}
    </section>`;
  }

  filter() {
    const { session } = this;
    const shown = session.rows.length;
    return html`
      <select aria-label="Tree filter" value=${session.filter} onChange=${(event) => session.setFilter(event.target.value)}>
        ${FILTERS.map(([value, words]) => html`<option value=${value}>${words}</option>`)}
      </select>
      <span class="fact">${count(shown)}${session.total > shown ? ` of ${count(session.total)}` : ""}</span>`;
  }

  branchList() {
    const { session } = this;
    return html`<ul class="branches">
      ${session.branches.map((branch) => html`<li class=${branch.name === session.branch ? "chosen" : ""} key=${branch.name}>
        <button type="button" class="name" onClick=${() => session.look(branch.name)}>
          <b>${branch.name}</b>
          ${branch.name === session.current && html`<${Chip} kind="branch">current<//>`}
          ${branch.archived && html`<${Chip}>archived<//>`}
          ${session.running.has(branch.name) && html`<${Chip} kind="busy">running<//>`}
          <span class="fact">${plural(branch.entryCount, "entry", "entries")}</span>
          ${branch.description && html`<small>${branch.description}</small>`}
        </button>
        ${this.writes && html`<span class="row">
          ${branch.name !== session.current && this.otherBranch(branch)}
          <${Button} kind="small" label="Rename" onClick=${() => this.ask(this.questions.rename(branch.name))} />
        </span>`}
      </li>`)}
    </ul>`;
  }

  /** What can be done with a branch that is not the current one. */
  otherBranch({ name, archived }) {
    const { session } = this;
    return html`
      <${Button} kind="small" label="Switch" onClick=${() => this.try(() => session.switchTo(name), `Switched to ${name}`)} />
      <${Button} kind="small" label="Merge" onClick=${() => this.askMerge(name)} />
      <${Button} kind="small" label="Promote" onClick=${() => this.promote(name)} />
      <${Button} kind="small" label=${archived ? "Restore" : "Archive"}
        onClick=${() => this.try(() => session.changeBranch(name, { archived: !archived }))} />`;
  }

  // The conversation

  talkPane() {
    const { session } = this, { me, models, tell } = this.props;
    const allowed = { write: me.scopes.includes("write"), run: this.runs };
    return html`<section class="pane talk" aria-label="Conversation">
      ${this.where()}
      <${Conversation} handle=${this.conversation} session=${session} way=${session.path.way} actions=${this.actions} />
      <${Permissions} session=${session} allowed=${allowed.run} me=${me} />
      <${Composer} session=${session} branch=${session.branch} editing=${this.state.editing} me=${me} allowed=${allowed}
        models=${models} tell=${tell} />
    </section>`;
  }

  /** Which branch is read, and the ways back. */
  where() {
    const { session } = this;
    const words = session.layout.nodes[session.layout.index.get(session.selected) ?? -1]?.row.text;
    const listed = session.branches.filter(({ name, archived }) => !archived || name === session.branch);
    const elsewhere = session.selected || session.looking;
    const other = session.branch && session.branch !== session.current ? session.branch : null;
    return html`<div class="tools row where">
      <select aria-label="Shown branch" value=${session.branch ?? ""} onChange=${(event) => event.target.value && session.look(event.target.value)}>
        ${!session.branch && html`<option value="">${words ? `at “${words.slice(0, 40)}”` : "inside the tree"}</option>`}
        ${listed.map(({ name }) => html`<option value=${name}>${name}${name === session.current ? " · current" : ""}</option>`)}
      </select>
      <span class="gap"></span>
      ${elsewhere && this.writes && other && html`
        <${Button} kind="small" label=${`Switch to ${other}`} onClick=${() => this.try(() => session.switchTo(other), `Switched to ${other}`)} />`}
      ${this.writes && session.chosen && session.chosen !== session.leaf && html`
        <${Button} kind="small" label="Go here" keys="g" onClick=${() => this.ask(this.questions.navigate(session.chosen))} />`}
      ${elsewhere && html`<${Button} kind="small" label="Back to current" keys="Esc" onClick=${() => session.look(session.current)} />`}
    </div>`;
  }
}
