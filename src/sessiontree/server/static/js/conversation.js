// The conversation of a path: a window that loads entries as you scroll, the text an agent is streaming, and the
// composer. Text of a session is inserted as text; only HTML that the server sanitized is inserted as markup.
import { ofSwarm } from "./addresses.js";
import { Button, Chip, Cleaned, Component, Empty, Models, Notice, NoRuns, createRef, html } from "./html.js";
import { clock, day, money, plural, short } from "./figures.js";
import { own } from "./rows.js";
import { MODES } from "./permissions.js";

const NEAR = 600; // pixels from an end of the window at which more is loaded
const TITLES = new Map([["compaction", "Compaction"], ["branch_summary", "Branch summary"], ["custom_message", "Note"]]);
const SPEAKERS = new Map([["user", "User"], ["assistant", "Assistant"], ["toolResult", "Tool"]]);

/** What an entry looks like: `user`, `assistant`, `tool`, `summary`, `setting` … */
export const kindOf = ({ type, role }) => {
  if (type === "message") {
    if (role === "user" || role === "assistant") return role;
    return role === "toolResult" || /Execution$/.test(role ?? "") ? "tool" : "custom";
  }
  if (type === "compaction") return "compaction";
  if (type === "branch_summary") return "summary";
  return type === "custom_message" ? "custom" : "setting";
};

export const titleOf = (entry) => {
  if (entry.merge) return "Merge";
  if (entry.type !== "message") return TITLES.get(entry.type) ?? (entry.text || entry.type);
  return SPEAKERS.get(entry.role) ?? entry.role ?? "Message";
};

const facts = ({ model, tokens, cost }) => [model, tokens && `${short(tokens)} tokens`, cost && money(cost)].filter(Boolean);

const LONG = 24; // lines of an output that stay in sight

const Output = ({ text, failed }) => {
  const lines = text.split("\n").length;
  const block = html`<pre class="block ${failed ? "error" : ""}">${text}</pre>`;
  return lines > LONG || text.length > 4000 ? html`<details><summary>Output, ${plural(lines, "line")}</summary>${block}</details>` : block;
};

/** The argument that says most of a call. */
const subjectOf = (values) => {
  if (typeof values !== "object" || values === null) return "";
  const key = ["path", "file_path", "command", "pattern", "query", "url"].find((name) => typeof own(values, name) === "string");
  return key ? values[key].split("\n")[0].slice(0, 120) : "";
};

const Call = ({ use }) => html`<details class="call ${use.ok === false ? "failed" : ""}">
  <summary><b>${use.name}</b> ${subjectOf(use.arguments)}${use.ok === false && html` <${Chip} kind="wrong">failed<//>`}</summary>
  <pre class="block">${JSON.stringify(use.arguments, null, 2)}</pre>
</details>`;

/** What was said; a text so long that the server made no markup of it is shown as it is. */
const Words = ({ entry }) =>
  entry.html ? html`<${Cleaned} name="prose" markup=${entry.html} />` : entry.text && html`<pre class="plain">${entry.text}</pre>`;

/** That there are pictures: they are in the exported page. */
const Pictures = ({ count }) => count > 0 && html`<p class="hint">[${count === 1 ? "image" : `${count} images`}]</p>`;

const Body = ({ entry }) => {
  const kind = kindOf(entry);
  if (kind === "setting") return null;
  if (kind === "tool") {
    const said = entry.text || !entry.images;
    return html`${said && html`<${Output} text=${entry.text} failed=${entry.failed} />`}<${Pictures} count=${entry.images} />`;
  }
  return html`
    ${entry.thinking && html`<details class="thinking"><summary>Thinking</summary><pre class="plain">${entry.thinking}</pre></details>`}
    <${Words} entry=${entry} />
    <${Pictures} count=${entry.images} />
    ${entry.tools?.map((use) => html`<${Call} use=${use} />`)}
    ${entry.error && html`<pre class="block error">${entry.error}</pre>`}`;
};

export const Entry = ({ entry, heads = [], label = entry.label, chosen, actions }) => html`
  <article
    class="entry ${kindOf(entry)} ${entry.error || entry.failed ? "failed" : ""} ${chosen ? "chosen" : ""}"
    id=${`e-${entry.id}`}
    data-entry=${entry.id}
    tabindex="-1"
  >
    <header>
      <h3>${titleOf(entry)}</h3>
      ${label && html`<${Chip} kind="label">${label}<//>`}
      ${heads.map((name) => html`<${Chip} kind="branch">${name}<//>`)}
      ${facts(entry).map((fact) => html`<span class="fact">${fact}</span>`)}
      ${actions && html`<span class="acts">${actions(entry)}</span>`}
      <time datetime=${entry.timestamp} title=${`${day(entry.timestamp)} ${clock(entry.timestamp)}`}>${clock(entry.timestamp)}</time>
    </header>
    <${Body} entry=${entry} />
  </article>`;

/** What an agent is saying and has not yet written. */
const Saying = ({ run }) => html`<article class="entry assistant saying" aria-live="off">
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
  stuck = true; // the end is in sight, and stays there as the conversation grows

  componentDidMount() {
    this.props.handle.current = this;
    this.settle();
  }

  getSnapshotBeforeUpdate() {
    if (this.stuck) return null;
    const window = this.window.current;
    const { top } = window.getBoundingClientRect();
    const first = [...window.querySelectorAll("article[data-entry]")].find((article) => article.getBoundingClientRect().bottom > top);
    return first ? { id: first.id, top: first.getBoundingClientRect().top } : null;
  }

  componentDidUpdate(before, _, anchor) {
    const window = this.window.current;
    if (before.way !== this.props.way) this.stuck = true;
    if (this.stuck && window) window.scrollTop = window.scrollHeight;
    else if (anchor) {
      const again = document.getElementById(anchor.id);
      if (again) window.scrollTop += again.getBoundingClientRect().top - anchor.top;
    }
    this.settle();
  }

  settle() {
    const window = this.window.current;
    if (!window) return; // it was removed before the update
    if (this.stuck) window.scrollTop = window.scrollHeight;
    if (!this.props.session.error) this.fill();
  }

  fill = () => {
    const window = this.window.current;
    if (!window) return;
    const { session } = this.props;
    if (window.scrollTop < NEAR && session.earlier) session.loadEarlier();
    else if (window.scrollHeight - window.scrollTop - window.clientHeight < NEAR && session.later) session.loadLater();
  };

  scrolled = () => {
    const window = this.window.current;
    const isBelow = window.scrollHeight - window.scrollTop - window.clientHeight < 40;
    this.stuck = isBelow && (this.stuck || !this.props.session.later);
    this.fill();
  };

  /** To the next or previous entry, by keyboard. */
  step(way) {
    const window = this.window.current;
    const all = [...window.querySelectorAll("article[data-entry]")];
    const from = all.indexOf(document.activeElement?.closest?.("article"));
    const top = window.getBoundingClientRect().top + 8;
    const now = from >= 0 ? from + way : Math.max(0, all.findIndex((article) => article.getBoundingClientRect().bottom > top));
    const target = all[Math.min(Math.max(now, 0), all.length - 1)];
    target?.scrollIntoView({ block: "nearest" });
    target?.focus({ preventScroll: true });
  }

  render({ session, actions }) {
    const run = session.runs.get(session.branch);
    return html`<div class="window" ref=${this.window} onScroll=${this.scrolled} role="log" aria-label="Conversation" tabindex="0">
      <div class="path">
        ${session.earlier && html`<p class="more">Scroll up to load earlier entries.</p>`}
        ${!session.entries.length && !session.loading && !run?.text && html`<${Empty}>No entries yet.<//>`}
        <div class="chunk">
          ${session.entries.map((entry) => html`<${Entry}
            key=${entry.id}
            entry=${entry}
            heads=${session.entryHeads.get(entry.id)}
            label=${session.labelOf(entry.id, entry)}
            chosen=${entry.id === session.chosen}
            actions=${actions}
          />`)}
        </div>
        ${(run?.status === "started" || run?.written) && html`<${Saying} run=${run} />`}
        ${run?.error && !session.entries.at(-1)?.error && html`<${Notice} text=${run.error} kind="wrong" />`}
      </div>
    </div>`;
  }
}

const drafts = new Map(); // of each session: what is written and not yet sent, and the branch where that was begun

/** A branch has another name: what was begun there was begun on it still. */
export const carryDraft = (session, was, now) => {
  const draft = drafts.get(session);
  if (draft?.begun === was) drafts.set(session, { ...draft, begun: now });
};

/** Where one writes. Enter sends, Shift and Enter begin a line. A draft stays when one looks at something else. */
export class Composer extends Component {
  state = { error: null, confirmed: null, model: "", mode: null }; // `confirmed`: another branch than where it was begun
  field = createRef();

  componentDidMount() {
    this.grow();
  }

  componentWillUnmount() {
    this.gone = true;
  }

  componentDidUpdate(before) {
    const { editing, branch } = this.props;
    if (branch !== before.branch) this.setState({ error: null, confirmed: null });
    if (editing && editing !== before.editing && !this.draft.text.trim()) { // no draft is lost
      this.fill(editing.text);
      this.field.current?.focus();
    }
    this.grow();
  }

  get draft() {
    return drafts.get(this.props.session.id) ?? { text: "", begun: null, busy: false };
  }

  change(values) {
    drafts.set(this.props.session.id, { ...this.draft, ...values });
    this.setState({});
  }

  fill(text) {
    const { draft } = this;
    this.change({ text, begun: draft.text.trim() ? draft.begun : this.props.session.branch });
  }

  grow() {
    const field = this.field.current;
    if (!field) return;
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight, 220)}px`;
  }

  send = async () => {
    const { session, allowed, tell } = this.props, { text, begun, busy } = this.draft, { branch } = session;
    if (!text.trim() || busy) return;
    if (begun !== branch && this.state.confirmed !== branch) {
      const error = `You wrote this on ${begun}. Send again to send it to ${branch}`;
      this.setState({ error, confirmed: branch });
      return;
    }
    if (allowed.run && session.refusal && !session.running.has(branch)) {
      this.setState({ error: `Not sent, because live updates are off: ${session.refusal}` });
      return;
    }
    this.change({ busy: true });
    this.setState({ error: null });
    try {
      if (!allowed.run) await session.add(text.trim());
      else if (session.running.has(branch)) await session.steer(text.trim());
      else await session.prompt(text.trim(), this.state.model, this.state.mode ?? this.props.me.permissionMode);
      const now = this.draft.text; // one may have gone on meanwhile
      if (now.startsWith(text)) this.change({ text: now.slice(text.length).trimStart(), begun: branch });
    } catch (error) {
      if (this.gone || session.branch !== branch) tell(`Not sent to ${branch}: ${error.message}`, "wrong");
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

  pressed = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.send();
  };

  render({ session, me, allowed, models }, { error, model, mode }) {
    if (!allowed.write) return null;
    const { branch } = session, { text, busy } = this.draft;
    if (session.info.readOnly) return html`<p class="composer told">${session.info.readOnly}</p>`;
    if (!branch) {
      return html`<p class="composer told">You are viewing an entry inside the tree. Use <b>Go here</b> or <b>Branch</b> to write.</p>`;
    }
    const running = session.running.has(branch), swarm = own(session.info.swarming, branch);
    if (own(session.info.experimenting, branch)) {
      return html`<p class="composer told">An experiment is running on this branch. You can write here when it finishes.</p>`;
    }
    if (swarm && !running && !session.info.running.includes(branch)) {
      return html`<p class="composer told">
        A swarm agent owns this branch. Resume or stop the swarm on <a href=${ofSwarm(swarm)}>its page</a>.
      </p>`;
    }
    const [label, does] = !allowed.run
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
          onInput=${(event) => this.fill(event.target.value)} onKeyDown=${this.pressed}></textarea>
        <div class="row">
          ${allowed.run && models.length > 1 && !running && html`
            <${Models} name="model" label="Model" models=${models} value=${model}
              placeholder=${session.info.models.at(-1) ? `${session.info.models.at(-1)} (current)` : "session default"}
              onInput=${(event) => this.setState({ model: event.target.value.trim() })} />`}
          ${allowed.run && !running && html`
            <select aria-label="Permission mode" title="Permission mode" value=${mode ?? me.permissionMode}
              onChange=${(event) => this.setState({ mode: event.target.value })}>
              ${MODES.slice(0, MODES.findIndex(([value]) => value === me.permissionMode) + 1).map(([value, words]) => html`<option value=${value}>${words}</option>`)}
            </select>`}
          <span class="gap"></span>
          ${running && swarm && html`<a class="button" href=${ofSwarm(swarm)} title="The agent belongs to a swarm">Open swarm</a>`}
          ${running && !swarm && html`<${Button} label="Stop" kind="danger" onClick=${this.abort} title="Stop the agent" />`}
          <${Button} type="submit" kind="primary" label=${does} disabled=${busy || !text.trim()} keys="Enter" />
        </div>
      </div>
      ${!allowed.run && html`<${NoRuns} me=${me} kind="hint" />`}
    </form>`;
  }
}
