// The conversation of a path: a window that loads entries as you scroll, and the text an agent is streaming. Text of a
// session is inserted as text; only HTML that the server sanitized is inserted as markup.
import { Button, Chip, SafeHtml, Component, Empty, Notice, createRef, html } from "./html.js";
import { formatClock, formatCost, formatDay, formatShort, pluralize } from "./format.js";
import { getOwn } from "./rows.js";

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
  if (entry.role === "toolResult" && entry.tool) return `Result of ${entry.tool}`;
  if (entry.type !== "message") return TITLES.get(entry.type) ?? (entry.text || entry.type);
  return SPEAKERS.get(entry.role) ?? entry.role ?? "Message";
};

const listFacts = ({ author, model, tokens, cost }) => [author && `by ${author}`, model, tokens && `${formatShort(tokens)} tokens`, cost && formatCost(cost)].filter(Boolean);

const LONG = 24; // longer outputs are folded

const Output = ({ text, failed }) => {
  const lines = text.split("\n").length;
  const block = html`<pre class="block ${failed ? "error" : ""}">${text}</pre>`;
  return lines > LONG || text.length > 4000 ? html`<details><summary>Output, ${pluralize(lines, "line")}</summary>${block}</details>` : block;
};

const CALL_SUBJECTS = ["path", "file_path", "filePath", "command", "cmd", "pattern", "query", "url", "description"]; // as in core/entry_text.py

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

class Picture extends Component {
  state = { failed: false };
  render({ address, label }, { failed }) {
    if (failed) return html`<p class="hint">[image cannot be shown]</p>`;
    return html`<img src=${address} alt=${label} onError=${() => this.setState({ failed: true })} />`;
  }
}

/** The images of an entry, or a placeholder where no address is known. */
const Pictures = ({ entry: { id, images }, base }) => {
  if (!images) return null;
  if (!base) return html`<p class="hint">[${images === 1 ? "image" : `${images} images`}]</p>`;
  return html`<div class="pictures">${Array.from({ length: images }, (_, number) => {
    const address = `/api${base}/images/${number}?entry=${encodeURIComponent(id)}`;
    return html`<${Picture} key=${address} address=${address} label=${`Image ${number + 1} of ${images}`} />`;
  })}</div>`;
};

const Body = ({ entry, base }) => {
  const kind = getKind(entry);
  if (kind === "setting") return null;
  if (kind === "tool") {
    const hasText = entry.text || !entry.images;
    return html`${hasText && html`<${Output} text=${entry.text} failed=${entry.failed} />`}<${Pictures} entry=${entry} base=${base} />`;
  }
  return html`
    ${entry.thinking && html`<details class="thinking"><summary>Thinking</summary><pre class="plain">${entry.thinking}</pre></details>`}
    <${Prose} entry=${entry} />
    <${Pictures} entry=${entry} base=${base} />
    ${entry.tools?.map((use) => html`<${Call} use=${use} />`)}
    ${entry.error && html`<pre class="block error">${entry.error}</pre>`}`;
};

/** `base` is the address of the session, for images. `editor` replaces the body while the user edits the message. */
export const Entry = ({ entry, base, heads = [], label = entry.label, chosen, actions, versions, editor }) => html`
  <article
    class="entry ${getKind(entry)} ${entry.error || entry.failed ? "failed" : ""} ${chosen ? "chosen" : ""}"
    id=${`e-${entry.id}`}
    data-entry=${entry.id}
    tabindex="-1"
  >
    <header>
      <h2>${getTitle(entry)}</h2>
      ${versions?.(entry)}
      ${(entry.error || entry.failed) && html`<${Chip} kind="wrong">failed<//>`}
      ${label && html`<${Chip} kind="label">${label}<//>`}
      ${heads.map((name) => html`<${Chip} kind="branch">${name}<//>`)}
      ${listFacts(entry).map((fact) => html`<span class="fact">${fact}</span>`)}
      ${actions && !editor && html`<span class="acts">${actions(entry)}</span>`}
      <time datetime=${entry.timestamp} title=${`${formatDay(entry.timestamp)} ${formatClock(entry.timestamp)}`}>${formatClock(entry.timestamp)}</time>
    </header>
    ${editor ?? html`<${Body} entry=${entry} base=${base} />`}
  </article>`;

/** Edits a message in place. */
class MessageEditor extends Component {
  field = createRef();
  state = { busy: false, error: null };

  componentDidMount() {
    const field = this.field.current;
    field.style.height = `${Math.min(field.scrollHeight + 2, 400)}px`;
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  send = async (event) => {
    event.preventDefault();
    const text = this.field.current.value.trim();
    if (!text || this.state.busy) return;
    this.setState({ busy: true, error: null });
    try {
      await this.props.send(text);
      this.props.close();
    } catch (error) {
      this.setState({ busy: false, error: error.message });
    }
  };

  onKeyDown = (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      this.props.close();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) this.send(event);
  };

  render({ text, branch, close }, { busy, error }) {
    return html`<form class="editor" onSubmit=${this.send}>
      <textarea ref=${this.field} aria-label="Edit message" defaultValue=${text} onKeyDown=${this.onKeyDown}></textarea>
      <${Notice} text=${error} kind="wrong" />
      <div class="row end">
        <span class="hint">Moves ${branch}. The old version stays in the tree.</span><span class="gap"></span>
        <${Button} label="Cancel" keys="Esc" onClick=${close} />
        <${Button} type="submit" kind="primary" label="Send" keys="Enter" disabled=${busy} />
      </div>
    </form>`;
  }
}

/** The text that an agent is streaming. */
const StreamedText = ({ run }) => html`<article class="entry assistant streaming" aria-live="off">
  <header>
    <h2>Assistant</h2>
    <span class="fact">${run.saving || (run.doing ? `running ${run.doing}` : "running")}</span><span class="pulse" aria-hidden="true"></span>
  </header>
  ${run.thinking && !run.text && html`<p class="thinking-now">${run.thinking.slice(-400)}</p>`}
  ${run.text && (run.html
    ? html`<${SafeHtml} name="prose stream" markup=${run.html} />`
    : html`<pre class="plain stream">${run.text}</pre>`)}
  ${run.tool && html`<pre class="plain tool-now">${run.tool.slice(-600)}</pre>`}
  ${run.waiting.map((text) => html`<p class="hint">Queued: ${text}</p>`)}
</article>`;

export class Conversation extends Component {
  window = createRef();
  isAtEnd = true; // keep the end visible while the conversation grows

  componentDidMount() {
    this.props.handle.current = this;
    this.settle();
    // The composer, permission questions and loaded images change the height.
    const window = this.window.current;
    this.observer = new ResizeObserver(() => this.isAtEnd && (window.scrollTop = window.scrollHeight));
    this.observer.observe(window);
    this.observer.observe(window.firstElementChild);
  }

  componentWillUnmount() {
    this.observer.disconnect();
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
    if (this.showTarget()) return this.settle();
    if (this.isAtEnd && window) window.scrollTop = window.scrollHeight;
    else if (anchor) {
      const article = document.getElementById(anchor.id);
      if (article) window.scrollTop += article.getBoundingClientRect().top - anchor.top;
    }
    this.settle();
  }

  /** Scroll to the entry that the user asked for. Returns whether it did. */
  showTarget() {
    const { session } = this.props;
    const article = session.target && document.getElementById(`e-${session.target}`);
    if (!article || session.loads.path) return false;
    session.target = null;
    this.isAtEnd = false;
    article.scrollIntoView({ block: "center" });
    const isTyping = document.activeElement?.matches("textarea"); // loading takes time; keep the keys where they are
    if (!isTyping && !article.contains(document.activeElement)) article.focus({ preventScroll: true });
    return true;
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
    if (!window) return; // a scroll that was reported after the conversation was removed
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

  render({ session, actions, versions, edited, stopEditing, sendEdit }) {
    const run = session.runs.get(session.branch);
    return html`<div class="window" ref=${this.window} onScroll=${this.onScroll} role="log" aria-label="Conversation" tabindex="0">
      <div class="path">
        ${session.hasEarlier && html`<p class="more">Scroll up to load earlier entries.</p>`}
        ${!session.entries.length && !session.loading && !run?.text && html`<${Empty}>No messages yet. Write the first one below.<//>`}
        <div class="chunk">
          ${session.entries.map((entry) => html`<${Entry}
            key=${entry.id}
            entry=${entry}
            base=${session.base}
            heads=${session.entryHeads.get(entry.id)}
            label=${session.getLabel(entry.id, entry)}
            chosen=${entry.id === session.pointed}
            actions=${actions}
            versions=${versions}
            editor=${entry.id === edited ? html`<${MessageEditor} text=${entry.text} branch=${session.branch ?? session.current}
              send=${(text) => sendEdit(entry, text)} close=${stopEditing} />` : undefined}
          />`)}
        </div>
        ${(run?.status === "started" || run?.written) && html`<${StreamedText} run=${run} />`}
        ${run?.error && !session.entries.at(-1)?.error && html`<${Notice} text=${run.error} kind="wrong" />`}
      </div>
    </div>`;
  }
}
