// The sessions: a list with search. Words are looked for in names and, through the index, in everything that was said.
import { Ask } from "./dialogs.js";
import { Button, Chip, Component, Empty, Notice, html } from "./html.js";
import { ago, money, plural } from "./figures.js";

const PAGE = 50, PAUSE = 180, LOOK = 5000;

export class Sessions extends Component {
  state = { sessions: null, next: null, hits: [], error: null, query: this.props.query ?? "", archived: false, dialog: false };

  componentDidMount() {
    this.load();
    this.looking = setInterval(() => document.visibilityState === "visible" && (this.state.sessions?.length ?? 0) <= PAGE && this.load(), LOOK);
  }
  componentWillUnmount() {
    clearTimeout(this.timer);
    clearInterval(this.looking);
    this.asked = null;
  }

  async load(more = false) {
    const asked = (this.asked = {});
    const { query, archived, next } = this.state, { api } = this.props;
    try {
      const [listing, found] = await Promise.all([
        api.get("/sessions", { q: query, archived: archived || undefined, limit: PAGE, cursor: more ? next : undefined }),
        query && !more ? api.get("/search", { q: query, limit: 30 }).catch(() => ({ hits: [] })) : { hits: more ? this.state.hits : [] },
      ]);
      if (this.asked !== asked) return;
      this.setState({ sessions: more ? [...this.state.sessions, ...listing.sessions] : listing.sessions, next: listing.next, hits: found.hits, error: null });
    } catch (error) {
      if (this.asked === asked) this.setState({ error: error.message, sessions: this.state.sessions ?? [] });
    }
  }

  typed = (event) => {
    this.setState({ query: event.target.value });
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), PAUSE);
  };

  render({ me, api, go }, { sessions, next, hits, error, query, archived, dialog }) {
    const now = Date.now();
    return html`<main class="scroll"><section class="sessions" aria-label="Sessions">
      <div class="row search">
        <input id="search" type="search" placeholder="Search names and everything that was said" aria-label="Search" value=${query} onInput=${this.typed} autocomplete="off" spellcheck=${false} />
        <label class="check"><input type="checkbox" checked=${archived} onChange=${(event) => { this.setState({ archived: event.target.checked }); setTimeout(() => this.load()); }} /><span>archived</span></label>
        ${me.scopes.includes("write") && html`<${Button} kind="primary" label="New session" onClick=${() => this.setState({ dialog: true })} />`}
      </div>
      <${Notice} text=${error} kind="wrong" />
      ${sessions === null && html`<${Empty}>Loading…<//>`}
      ${sessions?.length === 0 && !hits.length && html`<${Empty}>${query ? "Nothing was found." : "There are no sessions yet."}<//>`}
      ${sessions?.length > 0 && html`<ul class="list">
        ${sessions.map((session) => html`<li key=${session.id}><a href=${`#/s/${encodeURIComponent(session.id)}`}>
          <span class="name">${session.name || session.firstMessage || "Unnamed session"}</span>
          ${session.damaged && html`<${Chip} kind="wrong">damaged<//>`}
          ${session.archived && html`<${Chip}>archived<//>`}
          ${session.name && session.firstMessage && html`<span class="first">${session.firstMessage}</span>`}
          <span class="facts"><span class="path-of">${session.cwd}</span><span>${plural(session.entries, "entry", "entries")}</span>
            ${session.branches > 1 && html`<span>${session.branches} branches</span>`}${session.cost > 0 && html`<span>${money(session.cost)}</span>`}<span>${ago(session.modified, now)}</span></span>
        </a></li>`)}
      </ul>`}
      ${next && html`<p class="row"><${Button} label="More" onClick=${() => this.load(true)} /></p>`}
      ${hits.length > 0 && html`<h2>Said in</h2><ul class="list hits">
        ${hits.map((hit) => html`<li key=${`${hit.session} ${hit.entry}`}><a href=${`#/s/${encodeURIComponent(hit.session)}/talk?entry=${encodeURIComponent(hit.entry)}`}>
          <span class="snippet">${hit.snippet}</span>
          <span class="facts"><span>${hit.sessionName || "Unnamed session"}</span><span>${hit.role}</span>${hit.branch && html`<span>${hit.branch}</span>`}<span>${ago(hit.timestamp, now)}</span></span>
        </a></li>`)}
      </ul>`}
      ${dialog && html`<${Ask} title="New session" action="Make" close=${() => this.setState({ dialog: false })}
        fields=${[{ name: "name", label: "Name" }, { name: "cwd", label: "Folder", help: "Left empty, the folder the server works in." }]}
        submit=${async (values) => go(`/s/${encodeURIComponent((await api.post("/sessions", values)).id)}`)} />`}
    </section></main>`;
  }
}
