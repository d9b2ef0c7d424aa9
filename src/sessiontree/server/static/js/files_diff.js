// How the files of two branches differ: counts, then a diff side by side. On a narrow screen, one below the other.
import { html } from "./html.js";
import { pluralize } from "./format.js";

/** Parse a unified diff into files, each with rows of an old and a new line. A missing side is null. */
export function parseDiff(text) {
  const files = [];
  let file = null, removed = [], added = [];
  const flush = () => {
    for (let i = 0; i < Math.max(removed.length, added.length); i++) file?.rows.push([removed[i] ?? null, added[i] ?? null]);
    [removed, added] = [[], []];
  };
  let inHunk = false;
  for (const line of text.split("\n")) {
    if (line.startsWith("diff --git ")) {
      flush();
      inHunk = false;
      const names = line.slice("diff --git ".length); // a/PATH b/PATH, with the same path: there are no renames
      file = { name: names.slice((names.length + 1) / 2 + 2), rows: [] };
      files.push(file);
    } else if (line.startsWith("@@")) {
      flush();
      inHunk = true;
      file?.rows.push([line, line]);
    } else if (inHunk && line.startsWith("-")) {
      if (added.length) flush();
      removed.push(line.slice(1));
    } else if (inHunk && line.startsWith("+")) added.push(line.slice(1));
    else if (inHunk && line.startsWith(" ")) {
      flush();
      file?.rows.push([line.slice(1), line.slice(1)]);
    } else if (line.startsWith("Binary files")) file?.rows.push([line, line]);
  }
  flush();
  return files;
}

const describeCounts = ({ added, deleted }) => (added === null ? "binary" : `+${added} −${deleted}`);

const renderRow = ([before, after]) => {
  const same = before === after;
  if (same && before.startsWith("@@")) return html`<tr class="hunk"><td colspan="2">${before}</td></tr>`;
  return html`<tr>
    <td class=${same ? "" : before === null ? "none" : "removed"}>${before ?? ""}</td>
    <td class=${same ? "" : after === null ? "none" : "added"}>${after ?? ""}</td>
  </tr>`;
};

export const FilesDiff = ({ a, b, files: { paths, diff, missing } }) => {
  if (missing) return html`<p class="note">Files of ${a} and ${b}: ${missing}.</p>`;
  return html`<details class="files-diff"><summary>${pluralize(paths.length, "file")} ${paths.length === 1 ? "differs" : "differ"} between ${a} and ${b}</summary>
    <ul class="counts">${paths.map((file) => html`<li><code>${file.path}</code> <span class="note">${describeCounts(file)}</span></li>`)}</ul>
    ${parseDiff(diff).map(({ name, rows }) => html`<div class="wide" tabindex="0" role="region" aria-label=${`Differences of ${name}`}>
      <table class="side-by-side">
        <caption>${name}</caption>
        <thead><tr><th scope="col">${a}</th><th scope="col">${b}</th></tr></thead>
        <tbody>${rows.map(renderRow)}</tbody>
      </table></div>`)}
  </details>`;
};
