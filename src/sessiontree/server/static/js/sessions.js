// The list of sessions with search in names and messages.
import { go, linkToSession } from "./addresses.js";
import { FormDialog } from "./dialogs.js";
import { Button, Chip, Component, Empty, Notice, html } from "./html.js";
import { formatAge, formatCost, pluralize } from "./format.js";

const PAGE = 50, HITS = 30;
const PAUSE = 180, POLL = 5000; // milliseconds: after a key, and between polls

export class Sessions extends Component {
  state = { sessions: null, next: null, hits: [], unread: 0, error: null, query: "", archived: false, dialog: false };

  componentDidMount() {
    this.load();
    this.pollTimer = setInterval(() => this.poll(), POLL);
  }
  componentWillUnmount() {
    clearTimeout(this.timer);
    clearInterval(this.pollTimer);
    this.request = null;
  }

  /** Load the list again, unless a request is still in progress. */
  poll() {
    const pages = (this.state.sessions?.length ?? 0) / PAGE;
    if (document.visibilityState === "visible" && pages <= 1 && !this.request) this.load();
  }

  async load(more = false) {
    const request = (this.request = {});
    const { query, archived, next } = this.state, { api } = this.props;
    const params = { q: query, archived: archived || undefined, limit: PAGE, cursor: more ? next : undefined };
    const search = query && !more ? api.get("/search", { q: query, limit: HITS }).catch(({ message }) => ({ hits: [], error: message })) : null;
    try {
      const [listing, found] = await Promise.all([api.get("/sessions", params), search]);
      if (this.request !== request) return;
      this.setState({
        sessions: more ? [...this.state.sessions, ...listing.sessions] : listing.sessions,
        next: listing.next,
        hits: found?.hits ?? (more ? this.state.hits : []),
        unread: found?.unread ?? (more ? this.state.unread : 0),
        error: found?.error ?? null,
      });
    } catch (error) {
      if (this.request === request) this.setState({ error: error.message, sessions: this.state.sessions ?? [] });
    }
    if (this.request === request) this.request = null;
  }

  onInput = (event) => {
    this.setState({ query: event.target.value });
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), PAUSE);
  };

  buildDialog() {
    return {
      title: "New session",
      action: "Create",
      fields: NEW_SESSION_FIELDS,
      submit: (values) => this.props.api.post("/sessions", values),
      after: ({ id }) => go(linkToSession(id)),
    };
  }

  render({ me, notify }, { sessions, next, hits, unread, error, query, archived, dialog }) {
    const onArchived = (event) => this.setState({ archived: event.target.checked }, () => this.load());
    const start = me.scopes.includes("write") ? "Press New session to start one, or run" : "Run";
    const none = html`No sessions yet. ${start} <code>sessiontree</code> in a project folder.`;
    return html`<main class="scroll"><section class="sessions" aria-label="Sessions">
      <h1 class="unseen">Sessions</h1>
      <div class="row search">
        <input id="search" type="search" aria-label="Search" placeholder="Search names and messages"
          value=${query} onInput=${this.onInput} autocomplete="off" spellcheck=${false} />
        <label class="check"><input type="checkbox" checked=${archived} onChange=${onArchived} /><span>Archived</span></label>
        ${me.scopes.includes("write") && html`
          <${Button} kind="primary" label="New session" onClick=${() => this.setState({ dialog: true })} />`}
      </div>
      <${Notice} text=${error} kind="wrong" />
      <${Notice} text=${unread > 0 && `${pluralize(unread, "session")} could not be read.`} />
      ${sessions === null && html`<${Empty}>Loading…<//>`}
      ${sessions?.length === 0 && !hits.length && !error && html`<${Empty}>${query ? `No matches for “${query}”. Try fewer words.` : archived ? "No archived sessions. To archive a session, open it and choose Archive." : none}<//>`}
      ${sessions?.length > 0 && html`<ul class="list">${sessions.map((session) => html`<${SessionItem} key=${session.id} session=${session} />`)}</ul>`}
      ${next && html`<p class="row"><${Button} label="Load more" onClick=${() => this.load(true)} /></p>`}
      ${hits.length > 0 && html`<h2>Matches in messages</h2>
        <ul class="list hits">${hits.map((hit) => html`<${Hit} key=${`${hit.session} ${hit.entry}`} hit=${hit} />`)}</ul>`}
      ${dialog && html`<${FormDialog} ...${this.buildDialog()} close=${() => this.setState({ dialog: false })} notify=${notify} />`}
    </section></main>`;
  }
}

const NEW_SESSION_FIELDS = [{ name: "name", label: "Name" }, { name: "cwd", label: "Folder", help: "Leave empty to use the folder of the server." }];

const SessionItem = ({ session }) => html`<li><a href=${linkToSession(session.id)}>
  <span class="name">${session.name || session.firstMessage || "Unnamed session"}</span>
  ${session.damaged && html`<${Chip} kind="wrong">damaged<//>`}
  ${session.archived && html`<${Chip}>archived<//>`}
  ${session.source && html`<${Chip}>${session.source}<//>`}
  ${session.name && session.firstMessage && html`<span class="first">${session.firstMessage}</span>`}
  <span class="facts">
    <span class="path-of">${session.cwd}</span>
    <span>${pluralize(session.entries, "entry", "entries")}</span>
    ${session.branches > 1 && html`<span>${session.branches} branches</span>`}
    ${session.cost > 0 && html`<span>${formatCost(session.cost)}</span>`}
    <span>${formatAge(session.modified, Date.now())}</span>
  </span>
</a></li>`;

const Hit = ({ hit }) => html`<li><a href=${linkToSession(hit.session, "talk", [["entry", hit.entry]])}>
  <span class="snippet">${hit.snippet}</span>
  <span class="facts">
    <span>${hit.sessionName || "Unnamed session"}</span>
    <span>${hit.role.replaceAll("_", " ")}</span>
    ${hit.branch && html`<span>${hit.branch}</span>`}
    <span>${formatAge(hit.timestamp, Date.now())}</span>
  </span>
</a></li>`;
