// The list of sessions with search in names and messages.
import { go, ofSession } from "./addresses.js";
import { Ask } from "./dialogs.js";
import { Button, Chip, Component, Empty, Notice, html } from "./html.js";
import { ago, money, plural } from "./figures.js";

const PAGE = 50, HITS = 30;
const PAUSE = 180, LOOK = 5000; // milliseconds: after a key, and between two looks at the list

export class Sessions extends Component {
  state = { sessions: null, next: null, hits: [], unread: 0, error: null, query: "", archived: false, dialog: false };

  componentDidMount() {
    this.load();
    this.looking = setInterval(() => this.look(), LOOK);
  }
  componentWillUnmount() {
    clearTimeout(this.timer);
    clearInterval(this.looking);
    this.asked = null;
  }

  /** Not while an answer is under way, which may take longer than the pause between two looks. */
  look() {
    const pages = (this.state.sessions?.length ?? 0) / PAGE;
    if (document.visibilityState === "visible" && pages <= 1 && !this.asked) this.load();
  }

  async load(more = false) {
    const asked = (this.asked = {});
    const { query, archived, next } = this.state, { api } = this.props;
    const listed = { q: query, archived: archived || undefined, limit: PAGE, cursor: more ? next : undefined };
    const said = query && !more ? api.get("/search", { q: query, limit: HITS }).catch(({ message }) => ({ hits: [], error: message })) : null;
    try {
      const [listing, found] = await Promise.all([api.get("/sessions", listed), said]);
      if (this.asked !== asked) return;
      this.setState({
        sessions: more ? [...this.state.sessions, ...listing.sessions] : listing.sessions,
        next: listing.next,
        hits: found?.hits ?? (more ? this.state.hits : []),
        unread: found?.unread ?? (more ? this.state.unread : 0),
        error: found?.error ?? null,
      });
    } catch (error) {
      if (this.asked === asked) this.setState({ error: error.message, sessions: this.state.sessions ?? [] });
    }
    if (this.asked === asked) this.asked = null;
  }

  typed = (event) => {
    this.setState({ query: event.target.value });
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), PAUSE);
  };

  making() {
    return {
      title: "New session",
      action: "Create",
      fields: NEW,
      submit: (values) => this.props.api.post("/sessions", values),
      after: ({ id }) => go(ofSession(id)),
    };
  }

  render({ me, tell }, { sessions, next, hits, unread, error, query, archived, dialog }) {
    const shelve = (event) => this.setState({ archived: event.target.checked }, () => this.load());
    return html`<main class="scroll"><section class="sessions" aria-label="Sessions">
      <div class="row search">
        <input id="search" type="search" aria-label="Search" placeholder="Search names and messages"
          value=${query} onInput=${this.typed} autocomplete="off" spellcheck=${false} />
        <label class="check"><input type="checkbox" checked=${archived} onChange=${shelve} /><span>archived</span></label>
        ${me.scopes.includes("write") && html`
          <${Button} kind="primary" label="New session" onClick=${() => this.setState({ dialog: true })} />`}
      </div>
      <${Notice} text=${error} kind="wrong" />
      <${Notice} text=${unread > 0 && `${unread === 1 ? "1 session" : `${unread} sessions`} could not be read.`} />
      ${sessions === null && html`<${Empty}>Loading…<//>`}
      ${sessions?.length === 0 && !hits.length && !error && html`<${Empty}>${query ? "No matches." : "No sessions yet."}<//>`}
      ${sessions?.length > 0 && html`<ul class="list">${sessions.map((session) => html`<${Listed} key=${session.id} session=${session} />`)}</ul>`}
      ${next && html`<p class="row"><${Button} label="More" onClick=${() => this.load(true)} /></p>`}
      ${hits.length > 0 && html`<h2>Matches in messages</h2>
        <ul class="list hits">${hits.map((hit) => html`<${Hit} key=${`${hit.session} ${hit.entry}`} hit=${hit} />`)}</ul>`}
      ${dialog && html`<${Ask} ...${this.making()} close=${() => this.setState({ dialog: false })} tell=${tell} />`}
    </section></main>`;
  }
}

const NEW = [{ name: "name", label: "Name" }, { name: "cwd", label: "Folder", help: "Leave empty for the folder of the server." }];

const Listed = ({ session }) => html`<li><a href=${ofSession(session.id)}>
  <span class="name">${session.name || session.firstMessage || "Unnamed session"}</span>
  ${session.damaged && html`<${Chip} kind="wrong">damaged<//>`}
  ${session.archived && html`<${Chip}>archived<//>`}
  ${session.name && session.firstMessage && html`<span class="first">${session.firstMessage}</span>`}
  <span class="facts">
    <span class="path-of">${session.cwd}</span>
    <span>${plural(session.entries, "entry", "entries")}</span>
    ${session.branches > 1 && html`<span>${session.branches} branches</span>`}
    ${session.cost > 0 && html`<span>${money(session.cost)}</span>`}
    <span>${ago(session.modified, Date.now())}</span>
  </span>
</a></li>`;

const Hit = ({ hit }) => html`<li><a href=${ofSession(hit.session, "talk", [["entry", hit.entry]])}>
  <span class="snippet">${hit.snippet}</span>
  <span class="facts">
    <span>${hit.sessionName || "Unnamed session"}</span>
    <span>${hit.role.replaceAll("_", " ")}</span>
    ${hit.branch && html`<span>${hit.branch}</span>`}
    <span>${ago(hit.timestamp, Date.now())}</span>
  </span>
</a></li>`;
