// Dialogs: a form with a few fields, the sign-in page and the list of keys.
import { Button, Component, Field, Notice, createRef, html, readForm } from "./html.js";
import { KEYS, hasShortcuts, setShortcuts } from "./keys.js";

export class Modal extends Component {
  dialog = createRef();
  componentDidMount() {
    this.dialog.current.showModal();
  }
  componentWillUnmount() {
    this.isUnmounted = true;
    this.dialog.current.close(); // gives the focus back
  }
  render({ title, children, close, kind }) {
    const onBackdrop = (event) => event.target === event.currentTarget && close();
    return html`<dialog ref=${this.dialog} class=${kind} aria-label=${title} onClose=${() => this.isUnmounted || close()} onClick=${onBackdrop}>
      <div class="sheet"><h2>${title}</h2>${children}</div>
    </dialog>`;
  }
}

/**
 * A form. Props: `{title, note, list, fields, loadFields, action, submit(values, onProgress), after(answer), close, notify}`.
 * `loadFields()` returns a promise of more fields. The form can be submitted before they arrive.
 * If `submit` fails, the dialog shows the error and stays. If the user closes the dialog before `submit` ends, an error
 * becomes a toast, and `after`, which opens the result, is not called.
 */
export class FormDialog extends Component {
  state = { error: null, busy: false, progress: null, more: [], isLoading: Boolean(this.props.loadFields) };

  async componentDidMount() {
    const { loadFields } = this.props;
    if (!loadFields) return;
    const loaded = await loadFields().then((more) => ({ more }), (error) => ({ error: error.message }));
    if (!this.isUnmounted) this.setState({ ...loaded, isLoading: false });
  }

  componentWillUnmount() {
    this.isUnmounted = true;
  }

  submit = async (event) => {
    event.preventDefault();
    const { title, submit, after, close, notify } = this.props;
    this.setState({ busy: true, error: null, progress: null });
    try {
      const answer = await submit(readForm(event.target), (progress) => this.isUnmounted || this.setState({ progress }));
      if (this.isUnmounted) return;
      close();
      after?.(answer);
    } catch (error) {
      if (this.isUnmounted) notify(`${title}: ${error.message}`, "wrong");
      else this.setState({ busy: false, error: error.message });
    }
  };

  render({ title, note, list = [], fields = [], action, close, danger }, { error, busy, progress, more, isLoading }) {
    return html`<${Modal} title=${title} close=${close}>
      <form onSubmit=${this.submit}>
        ${note && html`<p class="note">${note}</p>`}
        ${list.length > 0 && html`<ul class="report">${list.map((line) => html`<li>${line}</li>`)}</ul>`}
        ${[...fields, ...more].map((field, index) => html`<${Control} key=${field.name} field=${field} first=${index === 0} />`)}
        ${isLoading && html`<p class="note" role="status">Checking files…</p>`}
        ${busy && progress && html`<p class="note" role="status">${progress}</p>`}
        <${Notice} text=${error} kind="wrong" />
        <div class="row end">
          ${(fields.length > 0 || danger) && html`<${Button} label="Cancel" onClick=${close} />`}
          <${Button} type="submit" kind=${danger ? "danger" : "primary"} label=${busy ? "…" : action} disabled=${busy} />
        </div>
      </form>
    <//>`;
  }
}

const Control = ({ field, first }) => {
  const { name, label, kind = "line", value, options, help, ...rest } = field;
  if (kind === "check") {
    return html`<label class="check">
      <input type="checkbox" name=${name} value="yes" defaultChecked=${value} /><span>${label}</span>
    </label>`;
  }
  if (kind === "lines") return html`<ul class="report">${field.lines.map((line) => html`<li>${line}</li>`)}</ul>`;
  if (kind === "details") return html`<${Details} label=${label} load=${field.load} />`;
  const common = { name, autofocus: first, ...rest };
  const controls = {
    choice: () => html`<select ...${common}>
      ${options.map(([one, text]) => html`<option value=${one} selected=${one === value}>${text}</option>`)}
    </select>`,
    text: () => html`<textarea ...${common} rows="3" defaultValue=${value}></textarea>`,
    line: () => html`<input ...${common} type="text" defaultValue=${value} autocomplete="off" spellcheck=${false} />`,
    number: () => html`<input ...${common} type="number" defaultValue=${value} />`,
  };
  return html`<${Field} label=${label} help=${help}>${controls[kind]()}<//>`;
};

/** A text that is loaded when the user opens it. */
class Details extends Component {
  state = { text: "…" };
  open = async (event) => {
    if (!event.target.open || this.isLoaded) return;
    this.isLoaded = true;
    this.setState({ text: await this.props.load().catch((error) => error.message) });
  };
  render({ label }, { text }) {
    return html`<details class="diff" onToggle=${this.open}><summary>${label}</summary><pre class="block">${text}</pre></details>`;
  }
}

/** Explains how to sign in. Calls `onToken(token)` with a token that the user enters. */
export const SignIn = ({ onToken, wrong }) => {
  const submit = (event) => {
    event.preventDefault();
    onToken(readForm(event.target).token);
  };
  return html`<main class="gate"><form onSubmit=${submit}>
    <h1>sessiontree</h1>
    <${Notice} text=${wrong} kind="wrong" />
    <p class="note">This browser is not signed in. On the machine that runs the server, run</p>
    <pre class="block">sessiontree token link</pre>
    <p class="note">and open the link that it prints. A link works once and signs this browser in for 30 days.</p>
    <details open=${Boolean(wrong) || undefined}>
      <summary>Sign in with a token</summary>
      <${Field} label="Token"><input name="token" type="password" autocomplete="off" required /><//>
      <${Button} type="submit" kind="primary" label="Sign in" />
    </details>
  </form></main>`;
};

export const Help = ({ close }) => html`<${Modal} title="Keyboard shortcuts" close=${close}>
  <label class="check"><input type="checkbox" defaultChecked=${hasShortcuts()} onChange=${(event) => setShortcuts(event.target.checked)} />
    <span>Use one-letter shortcuts</span></label>
  ${KEYS.map(([where, keys]) => html`<h3>${where}</h3>
    <dl class="keys">${keys.map(([key, what]) => html`<div>
      <dt>${key.split(" ").map((one) => html`<kbd>${one}</kbd>`)}</dt><dd>${what}</dd>
    </div>`)}</dl>`)}
  <div class="row end"><${Button} label="Close" kind="primary" onClick=${close} /></div>
<//>`;
