// The actions of an entry: edit, retry, versions, copy, and a menu with the rest.
import { linkToEntry } from "./addresses.js";
import { Button, html } from "./html.js";
import { Menu } from "./menu.js";

/** The versions of a message, as `‹ 1/2 ›`. */
export const Versions = ({ entry, show }) => {
  const { versions } = entry;
  if (!versions) return null;
  const at = versions.indexOf(entry.id), count = versions.length;
  const step = (by, label, text) => html`<button type="button" class="small" aria-label=${label} title=${label}
    disabled=${versions[at + by] === undefined} onClick=${() => show(versions[at + by])}>${text}</button>`;
  return html`<span class="versions" role="group" aria-label=${`Version ${at + 1} of ${count}`}>
    ${step(-1, "Previous version", "‹")}<span class="fact">${at + 1}/${count}</span>${step(1, "Next version", "›")}
  </span>`;
};

/** Copy a text to the clipboard, also where the page is not in a secure context. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  if (!isCopied) throw new Error("this browser does not allow copying");
}

/** `run` calls an action and reports its failure. `dialogs` are undefined if the user may not write. */
export const EntryActions = ({ entry, session, dialogs, canRun, edit, retry, viewContext, run, ask }) => {
  const { id, role, text } = entry;
  const canEdit = canRun && role === "user", canRetry = canRun && role === "assistant";
  const copy = () => run(() => copyText(text), "Copied");
  const copyLink = () => run(() => copyText(new URL(linkToEntry(session.id, id), location.href).href), "Link copied");
  return html`<span class="acts">
    ${canEdit && html`<${Button} kind="small" label="Edit" keys="e" title="Edit and send again" onClick=${() => edit(id)} />`}
    ${canRetry && html`<${Button} kind="small" label="Retry" keys="r" title="Answer again" onClick=${() => retry(entry)} />`}
    ${text && html`<${Button} kind="small wide-only" label="Copy" onClick=${copy} />`}
    ${dialogs && html`<${Button} kind="small wide-only" label="Go here" onClick=${() => ask(dialogs.buildNavigateDialog(id))} />`}
    <${Menu} label="More actions">
      ${text && html`<${Button} kind="phone-only" label="Copy" onClick=${copy} />`}
      ${dialogs && html`
        <${Button} kind="phone-only" label="Go here" onClick=${() => ask(dialogs.buildNavigateDialog(id))} />
        <${Button} label="Branch" onClick=${() => ask(dialogs.buildBranchDialog(id))} />
        <${Button} label="Label" onClick=${() => ask(dialogs.buildLabelDialog(id))} />
        <${Button} label="Fork" onClick=${() => ask(dialogs.buildForkDialog(id))} />`}
      <${Button} label="Copy link" onClick=${copyLink} />
      <${Button} label="Model's view" onClick=${() => viewContext(id)} />
    <//>
  </span>`;
};
