// Share links of a session: create one, copy it, and revoke it.
import { Modal } from "./dialogs.js";
import { copyText } from "./entry_actions.js";
import { formatAge, formatDay } from "./format.js";
import { Button, Component, Field, Notice, html, readForm } from "./html.js";

const LIFETIMES = [[1, "1 day"], [7, "7 days"], [30, "30 days"], [90, "90 days"]];
const DAY = 24 * 3600;

export class ShareDialog extends Component {
  state = { shares: [], link: null, error: null, busy: false };

  get base() {
    return `${this.props.session.base}/shares`;
  }

  componentDidMount() {
    this.load();
  }

  async attempt(work) {
    this.setState({ busy: true, error: null });
    try {
      await work();
    } catch (error) {
      this.setState({ error: error.message });
    }
    this.setState({ busy: false });
  }

  load() {
    return this.attempt(async () => this.setState({ shares: (await this.props.session.api.get(this.base)).shares }));
  }

  create = (event) => {
    event.preventDefault();
    const { branch, redact, days } = readForm(event.target);
    return this.attempt(async () => {
      const body = { ...(branch ? { branch } : {}), redact: redact === "yes", seconds: Number(days) * DAY };
      const share = await this.props.session.api.post(this.base, body);
      this.setState({ link: new URL(share.path, location.origin).href });
      await this.load();
    });
  };

  revoke(id) {
    return this.attempt(async () => {
      await this.props.session.api.send("DELETE", `${this.base}/${encodeURIComponent(id)}`);
      this.setState({ link: null });
      await this.load();
    });
  }

  render({ session, close }, { shares, link, error, busy }) {
    const branches = session.branches.filter(({ archived, head }) => !archived && head);
    return html`<${Modal} title="Share" close=${close}>
      <p class="note">Anyone with the link can read what you share, without signing in, until it expires. They need to be able to reach this server.</p>
      <form onSubmit=${this.create}>
        <${Field} label="What to share"><select name="branch">
          <option value="">The whole session</option>
          ${branches.map(({ name }) => html`<option value=${name} selected=${name === session.otherBranch}>Only branch ${name}</option>`)}
        </select><//>
        <${Field} label="Expires after"><select name="days">
          ${LIFETIMES.map(([days, label]) => html`<option value=${days} selected=${days === 7}>${label}</option>`)}
        </select><//>
        <label class="check"><input type="checkbox" name="redact" value="yes" defaultChecked=${true} /><span>Redact secrets</span></label>
        <${Notice} text=${error} kind="wrong" />
        ${link && html`<${Field} label="New link. It is shown only once." wide><input class="link-field" readonly value=${link} onFocus=${(event) => event.target.select()} /><//>`}
        <div class="row end">
          <${Button} label="Close" onClick=${close} />
          ${link && html`<${Button} label="Copy link" onClick=${() => this.attempt(() => copyText(link))} />`}
          <${Button} type="submit" kind="primary" label="Create link" disabled=${busy} />
        </div>
      </form>
      ${shares.length > 0 && html`<h3>Active links</h3><ul class="plainlist">${shares.map((share) => html`<li key=${share.id}>
        <span>${share.branch ? `Branch ${share.branch}` : "Whole session"}</span>
        <span class="fact">${share.redact ? "redacted" : "not redacted"}, created ${formatAge(share.created, Date.now())}, until ${formatDay(share.expires)}</span>
        <span class="gap"></span>
        <${Button} kind="small danger" label="Revoke" disabled=${busy} onClick=${() => this.revoke(share.id)} />
      </li>`)}</ul>`}
    <//>`;
  }
}
