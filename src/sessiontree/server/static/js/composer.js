// The text field of a session: prompts, steering messages and drafts.
import { linkToSwarm } from "./addresses.js";
import { Button, Component, ModelInput, Notice, RunsUnavailable, createRef, html } from "./html.js";
import { MODES } from "./permissions.js";
import { getOwn } from "./rows.js";

const drafts = new Map(); // the unsent text of each session, and the branch where the user started it

const describePlace = (branch) => branch ?? "an earlier entry";

/** Keep the draft of a renamed branch. */
export const renameDraft = (session, before, after) => {
  const draft = drafts.get(session);
  if (draft?.branch === before) drafts.set(session, { ...draft, branch: after });
};

/** Put a text that was not sent before the draft. */
export const returnToDraft = (session, branch, text) => {
  const draft = drafts.get(session) ?? { text: "", branch, busy: false };
  const isEmpty = !draft.text.trim();
  drafts.set(session, { ...draft, text: isEmpty ? text : `${text}\n\n${draft.text}`, branch: isEmpty ? branch : draft.branch });
};

/** The text field. Enter sends, Shift+Enter starts a new line. The draft is kept when the user shows another branch. */
export class Composer extends Component {
  state = { error: null, confirmed: undefined }; // `confirmed`: a branch to which the user may send a draft of another
  field = createRef();

  componentDidMount() {
    this.grow();
  }

  componentWillUnmount() {
    this.isUnmounted = true;
  }

  componentDidUpdate(before) {
    const { editing, branch } = this.props;
    if (branch !== before.branch) this.setState({ error: null, confirmed: undefined });
    if (editing && editing !== before.editing && !this.draft.text.trim()) { // keep an existing draft
      this.fill(editing.text);
      this.field.current?.focus();
    }
    this.grow();
  }

  get draft() {
    return drafts.get(this.props.session.id) ?? { text: "", branch: null, busy: false };
  }

  change(values) {
    drafts.set(this.props.session.id, { ...this.draft, ...values });
    this.setState({});
  }

  fill(text) {
    const { draft } = this;
    this.change({ text, branch: draft.text.trim() ? draft.branch : this.props.session.branch });
  }

  grow() {
    const field = this.field.current;
    if (!field) return;
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight, 220)}px`;
  }

  send = async () => {
    const { session, allowed, notify } = this.props, { text, branch: draftBranch, busy } = this.draft, { branch } = session;
    if (!text.trim() || busy) return;
    if (draftBranch !== branch && this.state.confirmed !== branch) {
      const error = `You wrote this on ${describePlace(draftBranch)}. Send again to send it to ${describePlace(branch)}.`;
      this.setState({ error, confirmed: branch });
      return;
    }
    if (allowed.run && session.streamError && !session.running.has(branch)) {
      this.setState({ error: `Not sent, because live updates are off: ${session.streamError}` });
      return;
    }
    this.change({ busy: true });
    this.setState({ error: null });
    try {
      if (!allowed.run) await session.add(text.trim());
      else if (session.running.has(branch)) await session.steer(text.trim());
      else await session.prompt(text.trim(), branch ? {} : { at: session.end ?? "root" });
      const now = this.draft.text; // the user may have typed more
      if (now.startsWith(text)) this.change({ text: now.slice(text.length).trimStart(), branch });
    } catch (error) {
      if (this.isUnmounted || session.branch !== branch) notify(`Not sent to ${describePlace(branch)}: ${error.message}`, "wrong");
      else this.setState({ error: error.message });
    }
    this.change({ busy: false });
  };

  abort = async () => {
    try {
      await this.props.session.abort();
    } catch (error) {
      this.setState({ error: error.message });
    }
  };

  onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.send();
  };

  choose(values) {
    Object.assign(this.props.session.promptOptions, values);
    this.setState({});
  }

  render({ session, me, allowed, models }, { error }) {
    if (!allowed.write) return null;
    const { branch } = session, { text, busy } = this.draft, { model } = session.promptOptions;
    const mode = (session.promptOptions.mode ??= me.permissionMode);
    if (session.info.readOnly) return html`<p class="composer disabled">${session.info.readOnly}</p>`;
    if (!branch && !allowed.run) {
      return html`<p class="composer disabled">You are viewing an earlier entry. Use <b>Go here</b> or <b>Branch</b> to continue from it.</p>`;
    }
    const running = session.running.has(branch), swarm = getOwn(session.info.swarming, branch);
    if (getOwn(session.info.experimenting, branch)) {
      return html`<p class="composer disabled">An experiment is running on this branch. You can send messages here when it finishes.</p>`;
    }
    if (swarm && !running && !session.info.running.includes(branch)) {
      return html`<p class="composer disabled">
        A swarm agent owns this branch. Resume or stop the swarm on <a href=${linkToSwarm(swarm)}>its page</a>.
      </p>`;
    }
    const [label, action] = !allowed.run
      ? [`Add a message to ${branch}`, "Add"]
      : running
        ? ["Message the running agent", "Steer"]
        : [branch ? `Prompt on ${branch}` : `Prompt from here (moves ${session.current})`, "Send"];
    const submit = (event) => {
      event.preventDefault();
      this.send();
    };
    return html`<form class="composer" onSubmit=${submit}>
      <${Notice} text=${error} kind="wrong" />
      <div class="write">
        <textarea ref=${this.field} rows="1" aria-label=${label} placeholder=${label} value=${text}
          onInput=${(event) => this.fill(event.target.value)} onKeyDown=${this.onKeyDown}></textarea>
        <div class="row">
          ${allowed.run && models.length > 1 && !running && html`
            <${ModelInput} name="model" label="Model" models=${models} value=${model}
              placeholder=${session.model ? `${session.model} (current)` : "Session default"}
              onInput=${(event) => this.choose({ model: event.target.value.trim() })} />`}
          ${allowed.run && !running && html`
            <select aria-label="Permission mode" title="Permission mode" value=${mode}
              onChange=${(event) => this.choose({ mode: event.target.value })}>
              ${MODES.slice(0, MODES.findIndex(([value]) => value === me.permissionMode) + 1).map(([value, label]) => html`<option value=${value}>${label}</option>`)}
            </select>`}
          <span class="gap"></span>
          ${running && swarm && html`<a class="button" href=${linkToSwarm(swarm)} title="The agent belongs to a swarm">Open swarm</a>`}
          ${running && !swarm && html`<${Button} label="Stop" kind="danger" onClick=${this.abort} title="Stop the agent" />`}
          <${Button} type="submit" kind="primary" label=${busy ? "Sending…" : action} disabled=${busy || !text.trim()} keys="Enter" />
        </div>
      </div>
      ${!allowed.run && html`<${RunsUnavailable} me=${me} kind="hint" />`}
    </form>`;
  }
}
