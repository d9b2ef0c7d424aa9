// The page: signs in with the code in the link, reads the rights of the token, and shows the view of the address.
import { OVERVIEW, SESSIONS, SWARMS, go, parseAddress } from "./addresses.js";
import { Api } from "./api.js";
import { Help, SignIn } from "./dialogs.js";
import { Button, Component, Notice, html, render } from "./html.js";
import { Overview } from "./overview.js";
import { restoreTheme, toggleTheme } from "./palette.js";
import { listenForKeys } from "./keys.js";
import { Menu } from "./menu.js";
import { Sessions } from "./sessions.js";
import { SwarmView } from "./swarm.js";
import { Swarms } from "./swarms.js";
import { Workspace } from "./workspace.js";

const TOAST_TIME = 2600; // milliseconds
const CREDENTIAL = /^#(code|token)=(.+)$/;

/** Return the code or token of the link, and remove it from the address bar. */
function takeCredential() {
  const [, kind, value] = CREDENTIAL.exec(location.hash) ?? [];
  if (!kind) return null;
  history.replaceState(null, "", location.pathname);
  return { [kind]: decodeURIComponent(value) };
}

class App extends Component {
  constructor(props) {
    super(props);
    this.api = new Api(() => this.showSignIn());
    this.credential = takeCredential();
    const shown = { route: parseAddress(location.hash), help: false, toast: null };
    this.state = { ...shown, me: null, models: [], gate: false, error: null };
  }

  componentDidMount() {
    addEventListener("hashchange", this.follow);
    listenForKeys({
      "?": () => this.setState({ help: true }),
      "/": () => this.search(),
      s: () => go(SESSIONS),
      w: () => go(SWARMS),
      o: () => go(OVERVIEW),
      d: toggleTheme,
    });
    this.signIn(this.credential);
  }

  follow = () => {
    const credential = takeCredential();
    if (credential) this.signIn(credential);
    this.setState({ route: parseAddress(location.hash) });
  };

  search() {
    const focus = () => document.getElementById("search")?.focus();
    if (this.state.route.view === "sessions") return focus();
    go(SESSIONS);
    return setTimeout(focus, 60);
  }

  showSignIn() {
    this.setState(({ me, error }) => ({
      me: null,
      gate: true,
      error: me ? "You have been signed out: the sign-in of this browser expired or was revoked." : error,
    }));
  }

  /** Sign in with a credential or the cookie of this browser. A newer call replaces this one. */
  async signIn(credential) {
    const attempt = (this.attempt = {});
    const isNewest = () => this.attempt === attempt;
    this.setState({ error: null });
    let failed = null;
    try {
      if (credential) await this.api.signIn(credential);
    } catch (error) {
      failed = error; // a used link is fine if this browser is already signed in
    }
    try {
      if (failed && !credential.code) throw failed;
      const me = await this.api.get("/me");
      if (!isNewest()) return;
      this.setState({ me, gate: false });
      const { models } = await this.api.get("/models");
      this.setState({ models: models.filter((model) => model.ready).map((model) => model.name) });
    } catch (error) {
      if (!isNewest()) return;
      const reason = failed ?? (error.status === 401 ? null : error);
      if (error.status === 401) this.setState({ me: null, gate: true });
      if (reason) this.setState({ error: formatSentence(reason.message) });
    }
  }

  signOut = async () => {
    try {
      await this.api.signOut();
      this.setState({ me: null, gate: true, error: null });
    } catch (error) {
      this.notify(error.message, "wrong");
    }
  };

  notify = (text, kind = "") => {
    clearTimeout(this.timer);
    this.setState({ toast: { text, kind } });
    this.timer = setTimeout(() => this.setState({ toast: null }), kind === "wrong" ? 3 * TOAST_TIME : TOAST_TIME);
  };

  renderView({ view, id, tab, place }) {
    const { api, notify } = this, { me, models } = this.state;
    const allowed = me.allowRun && me.scopes.includes("run");
    if (view === "session") {
      return html`<${Workspace} key=${id} id=${id} tab=${tab} place=${place} api=${api} me=${me} models=${models} notify=${notify} />`;
    }
    if (view === "swarms") return html`<${Swarms} api=${api} me=${me} allowed=${allowed} models=${models} notify=${notify} />`;
    if (view === "swarm") return html`<${SwarmView} key=${id} id=${id} api=${api} allowed=${allowed} notify=${notify} />`;
    if (view === "overview") return html`<${Overview} api=${api} me=${me} />`;
    return html`<${Sessions} api=${api} me=${me} notify=${notify} />`;
  }

  renderBar(view) {
    const isBrowser = this.state.me?.kind === "browser";
    const search = () => this.search(), help = () => this.setState({ help: true });
    const isCurrent = (...names) => (names.includes(view) ? "page" : undefined);
    return html`<header class="topbar">
      <a class="brand" href=${SESSIONS}>${LOGO}<span>sessiontree</span></a>
      <nav aria-label="Main">
        <a href=${SESSIONS} aria-current=${isCurrent("sessions", "session")}>Sessions</a>
        <a href=${SWARMS} aria-current=${isCurrent("swarms", "swarm")}>Swarms</a>
        <a href=${OVERVIEW} aria-current=${isCurrent("overview")}>Overview</a>
      </nav>
      <span class="gap"></span>
      <span class="row wide-only">
        ${isBrowser && html`<${Button} kind="words" label="Sign out" title="Sign out of this browser" onClick=${this.signOut} />`}
        <${Button} label="⌕" name="Search" title="Search" keys="/" onClick=${search} />
        <${Button} label="◐" name="Switch theme" title="Switch theme" keys="d" onClick=${toggleTheme} />
        <${Button} label="?" name="Keyboard shortcuts" title="Keyboard shortcuts" keys="?" onClick=${help} />
      </span>
      <${Menu} label="More" kind="phone-only">
        <${Button} label="Search" onClick=${search} />
        <${Button} label="Switch theme" onClick=${toggleTheme} />
        <${Button} label="Keyboard shortcuts" onClick=${help} />
        ${isBrowser && html`<${Button} label="Sign out" onClick=${this.signOut} />`}
      <//>
    </header>`;
  }

  render(_, { route, me, gate, error, help, toast }) {
    if (gate) return html`<${SignIn} wrong=${error} onToken=${(token) => this.signIn({ token })} />`;
    return html`
      ${this.renderBar(route.view)}
      <div class="toast ${toast ? "on" : ""} ${toast?.kind ?? ""}" role="status" aria-live="polite">${toast?.text}</div>
      <${Notice} text=${error} kind="wrong" />
      ${me && this.renderView(route)}
      ${help && html`<${Help} close=${() => this.setState({ help: false })} />`}`;

  }
}

const formatSentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;

const LOGO = html`<svg viewBox="0 0 24 24" aria-hidden="true">
  <path d="M7 4v16M7 9c0 5 10 1 10 7" />
  <circle cx="7" cy="4" r="2.4" /><circle cx="7" cy="20" r="2.4" /><circle cx="17" cy="18" r="2.4" />
</svg>`;

restoreTheme();
render(html`<${App} />`, document.getElementById("app"));
document.documentElement.dataset.ready = "true";
