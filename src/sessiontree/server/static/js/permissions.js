// Permission questions of agents and their answers. They never take the keyboard focus.
import { Button, Component, Notice, html } from "./html.js";

export const MODES = [
  ["read-only", "Read only"], ["ask", "Ask first"], ["allow-edits", "Allow edits"], ["allow-all", "Allow all"],
];

const LABELS = new Map([["once", "Allow once"], ["session", "Allow for this session"], ["always", "Always allow in this folder"]]);
const CLICK_DELAY = 700; // milliseconds until the buttons work, so that a click meant for something else does nothing

class PermissionCard extends Component {
  state = { ready: false, busy: false, error: null, reason: "" };

  componentDidMount() {
    this.timer = setTimeout(() => this.setState({ ready: true }), CLICK_DELAY);
  }

  componentWillUnmount() {
    clearTimeout(this.timer);
  }

  answer = async (scope) => {
    const { session, question } = this.props, { reason } = this.state;
    this.setState({ busy: true, error: null });
    try {
      await session.answer(question.id, scope, scope === "no" ? reason.trim() : "");
    } catch (error) {
      this.setState({ busy: false, error: error.message });
    }
  };

  render({ question, allowed, limited }, { ready, busy, error, reason }) {
    const scopes = question.scopes.filter((scope) => LABELS.has(scope) && !(scope === "always" && limited));
    const disabled = !ready || busy;
    return html`<section class="permission" role="region" aria-label=${`Allow ${question.tool}?`} data-question=${question.id}>
      <p role="status"><b>Allow ${question.tool}?</b> <span class="fact">${question.why}</span></p>
      <pre class="block">${question.detail}</pre>
      ${question.cut && html`<p class="hint">Truncated. The tool call above shows the full text.</p>`}
      ${question.rule && scopes.length > 1 && html`<p class="hint">“Allow for this session” and “Always allow in this folder” add this rule: <code>${question.rule}</code></p>`}
      <${Notice} text=${error} kind="wrong" />
      ${allowed
        ? html`<div class="row">
            ${scopes.map((scope) => html`<${Button} kind=${scope === "once" ? "primary" : ""} label=${LABELS.get(scope)}
              disabled=${disabled} onClick=${() => this.answer(scope)} />`)}
            <span class="gap"></span>
            <input aria-label="Reason for the model (optional)" placeholder="Reason" value=${reason}
              onInput=${(event) => this.setState({ reason: event.target.value })} />
            <${Button} kind="danger" label="Deny" disabled=${disabled} onClick=${() => this.answer("no")} />
          </div>`
        : html`<p class="hint">This token cannot answer; it needs the scope <code>run</code>.</p>`}
    </section>`;
  }
}

/** The open permission questions of the shown branch. */
export const Permissions = ({ session, allowed, me }) => {
  const questions = [...session.questions.values()].filter(({ branch }) => branch === session.branch);
  return questions.length > 0 && html`<div class="permissions">
    ${questions.map((question) => html`<${PermissionCard} key=${question.id} session=${session} question=${question}
      allowed=${allowed} limited=${me.projects !== null} />`)}
  </div>`;
};
