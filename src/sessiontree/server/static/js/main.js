// The page: signs in with the code in the link, reads the rights of the token, and shows the view of the address.
import { SESSIONS, SWARMS, go, read } from "./addresses.js";
import { Api } from "./api.js";
import { Help, SignIn } from "./dialogs.js";
import { Component, Notice, html, render } from "./html.js";
import { keepTheme, toggleTheme } from "./palette.js";
import { listen } from "./keys.js";
import { Sessions } from "./sessions.js";
import { SwarmView } from "./swarm.js";
import { Swarms } from "./swarms.js";
import { Workspace } from "./workspace.js";

const SHOWN = 2600; // milliseconds that something said stays
const CREDENTIAL = /^#(code|token)=(.+)$/;

/** The code or token of the link, which is then taken out of the address. */
function takeCredential() {
  const [, kind, value] = CREDENTIAL.exec(location.hash) ?? [];
  if (!kind) return null;
  history.replaceState(null, "", location.pathname);
  return { [kind]: decodeURIComponent(value) };
}

class App extends Component {
  constructor(props) {
    super(props);
    this.api = new Api(() => this.refused());
    this.credential = takeCredential();
    const shown = { route: read(location.hash), help: false, said: null };
    this.state = { ...shown, me: null, models: [], gate: false, error: null };
  }

  componentDidMount() {
    addEventListener("hashchange", this.follow);
    listen({
      "?": () => this.setState({ help: true }),
      "/": () => this.search(),
      s: () => go(SESSIONS),
      w: () => go(SWARMS),
      d: toggleTheme,
    });
    this.enter(this.credential);
  }

  follow = () => {
    const credential = takeCredential();
    if (credential) this.enter(credential);
    this.setState({ route: read(location.hash) });
  };

  search() {
    const focus = () => document.getElementById("search")?.focus();
    if (this.state.route.view === "sessions") return focus();
    go(SESSIONS);
    return setTimeout(focus, 60);
  }

  refused() {
    this.setState(({ me, error }) => ({
      me: null,
      gate: true,
      error: me ? "You have been signed out: the sign-in of this browser has expired or was revoked." : error,
    }));
  }

  /** Sign in, with what was given or by the cookie that there is; nothing comes of it if more is given meanwhile. */
  async enter(credential) {
    const entering = (this.entering = {});
    const isNewest = () => this.entering === entering;
    this.setState({ error: null });
    let failed = null;
    try {
      if (credential) await this.api.signIn(credential);
    } catch (error) {
      failed = error; // this browser may be signed in already: a link that was used is no reason to ask again
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
      if (reason) this.setState({ error: sentence(reason.message) });
    }
  }

  signOut = async () => {
    try {
      await this.api.signOut();
      this.setState({ me: null, gate: true, error: null });
    } catch (error) {
      this.tell(error.message, "wrong");
    }
  };

  tell = (text, kind = "") => {
    clearTimeout(this.timer);
    this.setState({ said: { text, kind } });
    this.timer = setTimeout(() => this.setState({ said: null }), kind === "wrong" ? 3 * SHOWN : SHOWN);
  };

  view({ view, id, tab, place }) {
    const { api, tell } = this, { me, models } = this.state;
    const allowed = me.allowRun && me.scopes.includes("run");
    if (view === "session") {
      return html`<${Workspace} key=${id} id=${id} tab=${tab} place=${place} api=${api} me=${me} models=${models} tell=${tell} />`;
    }
    if (view === "swarms") return html`<${Swarms} api=${api} me=${me} allowed=${allowed} models=${models} tell=${tell} />`;
    if (view === "swarm") return html`<${SwarmView} key=${id} id=${id} api=${api} allowed=${allowed} tell=${tell} />`;
    return html`<${Sessions} api=${api} me=${me} tell=${tell} />`;
  }

  bar(view) {
    const at = (...names) => (names.includes(view) ? "page" : undefined);
    return html`<header class="topbar">
      <a class="brand" href=${SESSIONS}>${LOGO}<span>sessiontree</span></a>
      <nav aria-label="Main">
        <a href=${SESSIONS} aria-current=${at("sessions", "session")}>Sessions</a>
        <a href=${SWARMS} aria-current=${at("swarms", "swarm")}>Swarms</a>
      </nav>
      <span class="gap"></span>
      ${this.state.me?.kind === "browser" && html`<button type="button" class="words" title="Sign this browser out" onClick=${this.signOut}>Sign out</button>`}
      <button type="button" aria-label="Search" title="Search (/)" onClick=${() => this.search()}>⌕</button>
      <button type="button" aria-label="Light or dark" title="Light or dark (d)" onClick=${toggleTheme}>◐</button>
      <button type="button" aria-label="Keys" title="Keys (?)" onClick=${() => this.setState({ help: true })}>?</button>
    </header>`;
  }

  render(_, { route, me, gate, error, help, said }) {
    if (gate) return html`<${SignIn} wrong=${error} given=${(token) => this.enter({ token })} />`;
    return html`
      ${this.bar(route.view)}
      <${Notice} text=${error} kind="wrong" />
      ${me && this.view(route)}
      ${help && html`<${Help} close=${() => this.setState({ help: false })} />`}
      <div class="said ${said ? "on" : ""} ${said?.kind ?? ""}" role="status" aria-live="polite">${said?.text}</div>`;
  }
}

const sentence = (words) => `${words.charAt(0).toUpperCase()}${words.slice(1)}.`;

const LOGO = html`<svg viewBox="0 0 24 24" aria-hidden="true">
  <path d="M7 4v16M7 9c0 5 10 1 10 7" />
  <circle cx="7" cy="4" r="2.4" /><circle cx="7" cy="20" r="2.4" /><circle cx="17" cy="18" r="2.4" />
</svg>`;

keepTheme();
render(html`<${App} />`, document.getElementById("app"));
document.documentElement.dataset.ready = "true";
