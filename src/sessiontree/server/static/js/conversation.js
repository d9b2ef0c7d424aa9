// The conversation of a path: a window that loads entries as you scroll, the text an agent is streaming, and the
// composer. Text of a session is inserted as text; only HTML that the server sanitized is inserted as markup.
import { linkToSwarm } from "./addresses.js";
import { Button, Chip, SafeHtml, Component, Empty, ModelInput, Notice, RunsUnavailable, createRef, html } from "./html.js";
import { formatClock, formatCost, formatDay, formatShort, pluralize } from "./format.js";
import { getOwn } from "./rows.js";
import { MODES } from "./permissions.js";

const NEAR = 600; // pixels from an end of the window at which more entries are loaded
const TITLES = new Map([["compaction", "Compaction"], ["branch_summary", "Branch summary"], ["custom_message", "Note"]]);
const SPEAKERS = new Map([["user", "User"], ["assistant", "Assistant"], ["toolResult", "Tool"]]);

/** Return the style of an entry: `user`, `assistant`, `tool`, `summary`, `setting` … */
const getKind = ({ type, role }) => {
  if (type === "message") {
    if (role === "user" || role === "assistant") return role;
    return role === "toolResult" || /Execution$/.test(role ?? "") ? "tool" : "custom";
  }
  if (type === "compaction") return "compaction";
  if (type === "branch_summary") return "summary";
  return type === "custom_message" ? "custom" : "setting";
};

const getTitle = (entry) => {
  if (entry.merge) return "Merge";
  if (entry.type !== "message") return TITLES.get(entry.type) ?? (entry.text || entry.type);
  return SPEAKERS.get(entry.role) ?? entry.role ?? "Message";
};

const listFacts = ({ model, tokens, cost }) => [model, tokens && `${formatShort(tokens)} tokens`, cost && formatCost(cost)].filter(Boolean);

const LONG = 24; // longer outputs are folded

const Output = ({ text, failed }) => {
  const lines = text.split("\n").length;
  const block = html`<pre class="block ${failed ? "error" : ""}">${text}</pre>`;
  return lines > LONG || text.length > 4000 ? html`<details><summary>Output, ${pluralize(lines, "line")}</summary>${block}</details>` : block;
};

const CALL_SUBJECTS = ["path", "file_path", "command", "pattern", "query", "url", "description"]; // as in core/entry_text.py

/** Return the argument that identifies a tool call. */
const getSubject = (values) => {
  if (typeof values !== "object" || values === null) return "";
  const key = CALL_SUBJECTS.find((name) => typeof getOwn(values, name) === "string");
  return key ? values[key].split("\n")[0].slice(0, 120) : "";
};

const Call = ({ use }) => html`<details class="call ${use.ok === false ? "failed" : ""}">
  <summary><b>${use.name}</b> ${getSubject(use.arguments)}${use.ok === false && html` <${Chip} kind="wrong">failed<//>`}</summary>
  <pre class="block">${JSON.stringify(use.arguments, null, 2)}</pre>
</details>`;

/** The text of an entry. The server renders no HTML for a very long text; show that as plain text. */
const Prose = ({ entry }) =>
  entry.html ? html`<${SafeHtml} name="prose" markup=${entry.html} />` : entry.text && html`<pre class="plain">${entry.text}</pre>`;

/** A placeholder for images. Only the exported page shows them. */
const Pictures = ({ count }) => count > 0 && html`<p class="hint">[${count === 1 ? "image" : `${count} images`}]</p>`;

const Body = ({ entry }) => {
  const kind = getKind(entry);
  if (kind === "setting") return null;
  if (kind === "tool") {
    const hasText = entry.text || !entry.images;
    return html`${hasText && html`<${Output} text=${entry.text} failed=${entry.failed} />`}<${Pictures} count=${entry.images} />`;
  }
  return html`
    ${entry.thinking && html`<details class="thinking"><summary>Thinking</summary><pre class="plain">${entry.thinking}</pre></details>`}
    <${Prose} entry=${entry} />
    <${Pictures} count=${entry.images} />
    ${entry.tools?.map((use) => html`<${Call} use=${use} />`)}
    ${entry.error && html`<pre class="block error">${entry.error}</pre>`}`;
};

export const Entry = ({ entry, heads = [], label = entry.label, chosen, actions }) => html`
  <article
    class="entry ${getKind(entry)} ${entry.error || entry.failed ? "failed" : ""} ${chosen ? "chosen" : ""}"
    id=${`e-${entry.id}`}
    data-entry=${entry.id}
    tabindex="-1"
  >
    <header>
      <h3>${getTitle(entry)}</h3>
      ${label && html`<${Chip} kind="label">${label}<//>`}
      ${heads.map((name) => html`<${Chip} kind="branch">${name}<//>`)}
      ${listFacts(entry).map((fact) => html`<span class="fact">${fact}</span>`)}
      ${actions && html`<span class="acts">${actions(entry)}</span>`}
      <time datetime=${entry.timestamp} title=${`${formatDay(entry.timestamp)} ${formatClock(entry.timestamp)}`}>${formatClock(entry.timestamp)}</time>
    </header>
    <${Body} entry=${entry} />
  </article>`;

/** The text that an agent is streaming. */
const StreamedText = ({ run }) => html`<article class="entry assistant streaming" aria-live="off">
  <header>
    <h3>Assistant</h3>
    <span class="fact">${run.doing ? `running ${run.doing}` : "running"}</span><span class="pulse" aria-hidden="true"></span>
  </header>
  ${run.thinking && !run.text && html`<p class="thinking-now">${run.thinking.slice(-400)}</p>`}
  ${run.text && html`<pre class="plain stream">${run.text}</pre>`}
  ${run.tool && html`<pre class="plain tool-now">${run.tool.slice(-600)}</pre>`}
  ${run.waiting.map((text) => html`<p class="hint">Queued: ${text}</p>`)}
</article>`;

export class Conversation extends Component {
  window = createRef();
  isAtEnd = true; // keep the end visible while the conversation grows

  componentDidMount() {
    this.props.handle.current = this;
    this.settle();
  }

  getSnapshotBeforeUpdate() {
    if (this.isAtEnd) return null;
    const window = this.window.current;
    const { top } = window.getBoundingClientRect();
    const first = [...window.querySelectorAll("article[data-entry]")].find((article) => article.getBoundingClientRect().bottom > top);
    return first ? { id: first.id, top: first.getBoundingClientRect().top } : null;
  }

  componentDidUpdate(before, _, anchor) {
    const window = this.window.current;
    if (before.pathKey !== this.props.pathKey) this.isAtEnd = true;
    if (this.isAtEnd && window) window.scrollTop = window.scrollHeight;
    else if (anchor) {
      const article = document.getElementById(anchor.id);
      if (article) window.scrollTop += article.getBoundingClientRect().top - anchor.top;
    }
    this.settle();
  }

  settle() {
    const window = this.window.current;
    if (!window) return; // it was removed before the update
    if (this.isAtEnd) window.scrollTop = window.scrollHeight;
    if (!this.props.session.error) this.fill();
  }

  fill = () => {
    const window = this.window.current;
    if (!window) return;
    const { session } = this.props;
    if (window.scrollTop < NEAR && session.hasEarlier) session.loadEarlier();
    else if (window.scrollHeight - window.scrollTop - window.clientHeight < NEAR && session.hasLater) session.loadLater();
  };

  onScroll = () => {
    const window = this.window.current;
    const isNearEnd = window.scrollHeight - window.scrollTop - window.clientHeight < 40;
    this.isAtEnd = isNearEnd && (this.isAtEnd || !this.props.session.hasLater);
    this.fill();
  };

  /** Focus the next or previous entry. */
  step(direction) {
    const window = this.window.current;
    const all = [...window.querySelectorAll("article[data-entry]")];
    const from = all.indexOf(document.activeElement?.closest?.("article"));
    const top = window.getBoundingClientRect().top + 8;
    const now = from >= 0 ? from + direction : Math.max(0, all.findIndex((article) => article.getBoundingClientRect().bottom > top));
    const target = all[Math.min(Math.max(now, 0), all.length - 1)];
    target?.scrollIntoView({ block: "nearest" });
    target?.focus({ preventScroll: true });
  }

  render({ session, actions }) {
    const run = session.runs.get(session.branch);
    return html`<div class="window" ref=${this.window} onScroll=${this.onScroll} role="log" aria-label="Conversation" tabindex="0">
      <div class="path">
        ${session.hasEarlier && html`<p class="more">Scroll up to load earlier entries.</p>`}
        ${!session.entries.length && !session.loading && !run?.text && html`<${Empty}>No entries yet.<//>`}
        <div class="chunk">
          ${session.entries.map((entry) => html`<${Entry}
            key=${entry.id}
            entry=${entry}
            heads=${session.entryHeads.get(entry.id)}
            label=${session.getLabel(entry.id, entry)}
            chosen=${entry.id === session.chosen}
            actions=${actions}
          />`)}
        </div>
        ${(run?.status === "started" || run?.written) && html`<${StreamedText} run=${run} />`}
        ${run?.error && !session.entries.at(-1)?.error && html`<${Notice} text=${run.error} kind="wrong" />`}
      </div>
    </div>`;
  }
}

const drafts = new Map(); // the unsent text of each session, and the branch where the user started it

/** Keep the draft of a renamed branch. */
export const renameDraft = (session, before, after) => {
  const draft = drafts.get(session);
  if (draft?.branch === before) drafts.set(session, { ...draft, branch: after });
};

/** The text field. Enter sends, Shift+Enter starts a new line. The draft is kept when the user shows another branch. */
export class Composer extends Component {
  state = { error: null, confirmed: null, model: "", mode: null }; // `confirmed`: a branch to which the user may send a draft of another
  field = createRef();

  componentDidMount() {
    this.grow();
  }

  componentWillUnmount() {
    this.isUnmounted = true;
  }

  componentDidUpdate(before) {
    const { editing, branch } = this.props;
    if (branch !== before.branch) this.setState({ error: null, confirmed: null });
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
      const error = `You wrote this on ${draftBranch}. Send again to send it to ${branch}.`;
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
      else await session.prompt(text.trim(), this.state.model, this.state.mode ?? this.props.me.permissionMode);
      const now = this.draft.text; // the user may have typed more
      if (now.startsWith(text)) this.change({ text: now.slice(text.length).trimStart(), branch });
    } catch (error) {
      if (this.isUnmounted || session.branch !== branch) notify(`Not sent to ${branch}: ${error.message}`, "wrong");
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

  render({ session, me, allowed, models }, { error, model, mode }) {
    if (!allowed.write) return null;
    const { branch } = session, { text, busy } = this.draft;
    if (session.info.readOnly) return html`<p class="composer disabled">${session.info.readOnly}</p>`;
    if (!branch) {
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
        : [`Prompt on ${branch}`, "Send"];
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
              placeholder=${session.info.models.at(-1) ? `${session.info.models.at(-1)} (current)` : "Session default"}
              onInput=${(event) => this.setState({ model: event.target.value.trim() })} />`}
          ${allowed.run && !running && html`
            <select aria-label="Permission mode" title="Permission mode" value=${mode ?? me.permissionMode}
              onChange=${(event) => this.setState({ mode: event.target.value })}>
              ${MODES.slice(0, MODES.findIndex(([value]) => value === me.permissionMode) + 1).map(([value, label]) => html`<option value=${value}>${label}</option>`)}
            </select>`}
          <span class="gap"></span>
          ${running && swarm && html`<a class="button" href=${linkToSwarm(swarm)} title="The agent belongs to a swarm">Open swarm</a>`}
          ${running && !swarm && html`<${Button} label="Stop" kind="danger" onClick=${this.abort} title="Stop the agent" />`}
          <${Button} type="submit" kind="primary" label=${action} disabled=${busy || !text.trim()} keys="Enter" />
        </div>
      </div>
      ${!allowed.run && html`<${RunsUnavailable} me=${me} kind="hint" />`}
    </form>`;
  }
}
