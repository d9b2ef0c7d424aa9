// Branches side by side from their common ancestor: their costs as bars, their messages as columns.
import { go, linkToBranch, linkToComparison, linkToEntry } from "./addresses.js";
import { Bars } from "./charts.js";
import { Entry } from "./conversation.js";
import { FilesDiff } from "./files_diff.js";
import { Button, Component, Empty, Notice, html } from "./html.js";
import { formatMetric, getMeasured, pluralize } from "./format.js";
import { groupBranches } from "./rows.js";

const CHARTS = [
  ["cost", "Cost", (stats) => getMeasured(stats, "cost", stats.totalCost)],
  ["tokens", "Tokens", (stats) => getMeasured(stats, "tokens", stats.totalTokens)],
  ["time", "Time", (stats) => stats.durationMs / 1000],
];
const ROWS = [
  ["Entries", (stats) => stats.entryCount],
  ["Messages", (stats) => stats.messageCount],
  ["Tool calls", (stats) => stats.toolCalls],
  ["Errors", (stats) => stats.errors],
  ["Models", (stats) => stats.models.join(", ") || "–"],
  ["Files", (stats) => stats.files.join(", ") || "–"],
];
const MAX_COLUMNS = 4; // more columns are too narrow to read
const PAGE = 100;

export class Compare extends Component {
  state = { shown: null, busy: false, error: null, columns: new Map(), files: new Map(), metric: "cost" }; // `shown`: {names, metric, result}

  componentDidMount() {
    this.load();
  }
  componentDidUpdate() {
    if (String(this.names) !== this.loaded) this.load();
  }

  /** The branches in the address, or the shown branch and the newest other one. */
  get names() {
    const { session, names } = this.props;
    const known = session.branches.filter((branch) => branch.head);
    const places = new Set([...known.map(({ name }) => name), ...session.unnamed.map(({ leaf }) => leaf)]);
    const named = names.filter((name) => places.has(name));
    if (named.length) return named;
    const open = known.filter((branch) => !branch.archived).map((branch) => branch.name);
    const first = session.branch ?? session.current;
    const others = [...open.filter((name) => name !== first).reverse(), ...session.unnamed.map(({ leaf }) => leaf)];
    return [first, ...others].slice(0, 2);
  }

  /** Return what to call a place: a leaf without a branch by the beginning of its text. */
  getTitle(place) {
    const unnamed = this.props.session.unnamed.find(({ leaf }) => leaf === place);
    return unnamed ? `“${unnamed.text.slice(0, 40).trim() || unnamed.suggestedName}”` : place;
  }

  choose(name, on) {
    go(linkToComparison(this.props.session.id, on ? [...this.names, name] : this.names.filter((other) => other !== name)));
  }

  /** Load the comparison. Only the newest request counts. */
  async load(metric = this.state.metric) {
    const { names } = this, { session } = this.props;
    const request = (this.request = {});
    const set = (state) => this.request === request && this.setState(state);
    this.loaded = String(names);
    set({ metric, error: null, busy: names.length > 1 });
    if (names.length < 2) return set({ shown: null });
    try {
      const result = await session.compare(names, metric);
      set({ shown: { names, metric, result }, busy: false });
      const columns = result.branches.slice(0, MAX_COLUMNS).map(async (stats) => [stats.name, await this.loadColumn(stats, result.commonAncestor)]);
      set({ columns: new Map(await Promise.all(columns)) });
      return set({ files: await this.loadFiles(result.branches) });
    } catch (error) {
      const { shown } = this.state, kept = String(shown?.names) === String(names) ? shown : null;
      return set({ shown: kept, metric: kept?.metric ?? metric, error: error.message, busy: false });
    }
  }

  /** Load how the files of each branch differ from those of the first one. Without the scope run, nothing. */
  async loadFiles([first, ...others]) {
    const { session, canRun } = this.props;
    if (!canRun) return new Map();
    const load = async ({ name, leaf }) => [name, await session.diffFiles(first.leaf ?? "root", leaf ?? "root")];
    const found = await Promise.all(others.slice(0, MAX_COLUMNS - 1).map(load));
    return new Map(found.filter(([, { paths, missing }]) => paths.length || missing));
  }

  /** Load the entries of a branch after the common ancestor. */
  async loadColumn(stats, ancestor) {
    if (!stats.entryCount) return { entries: [], more: false };
    const { session } = this.props;
    const page = await session.api.get(`${session.base}/path`, { at: stats.leaf, cursor: "end", limit: PAGE, html: 1 });
    const from = page.entries.findIndex((entry) => entry.id === ancestor);
    return { entries: page.entries.slice(from + 1), more: from < 0 && page.previous !== null };
  }

  render({ session }, { shown, error }) {
    const { names } = this;
    const known = session.branches.filter((branch) => branch.head);
    return html`<div class="scroll"><section class="compare" aria-label="Comparison of branches">
      <fieldset class="choose"><legend>Branches to compare</legend>
        ${groupBranches(known).map(({ group, branches }) => {
          const boxes = branches.map(({ name, archived }) => this.renderChoice(name, `${name}${archived ? " (archived)" : ""}`));
          if (!group) return boxes;
          return html`<details open=${branches.some(({ name }) => names.includes(name)) || undefined}>
            <summary>${group} · ${pluralize(branches.length, "branch", "branches")}</summary><div class="choose">${boxes}</div>
          </details>`;
        })}
        ${session.unnamed.length > 0 && html`<details open=${session.unnamed.some(({ leaf }) => names.includes(leaf)) || undefined}>
          <summary>${pluralize(session.unnamed.length, "leaf", "leaves")} without a branch</summary>
          <div class="choose">${session.unnamed.map(({ leaf }) => this.renderChoice(leaf, this.getTitle(leaf)))}</div>
        </details>`}
      </fieldset>
      <${Notice} text=${error} kind="wrong" />
      ${names.length < 2 && html`<${Empty}>${known.length + session.unnamed.length < 2 ? "There is only one branch. Retry or edit a message to get another version, then compare them here." : "Select two or more branches."}<//>`}
      ${shown && names.length > 1 && this.renderResult(shown)}
    </section></div>`;
  }

  renderChoice(name, label) {
    return html`<label class="check" key=${name}>
      <input type="checkbox" checked=${this.names.includes(name)} onChange=${(event) => this.choose(name, event.target.checked)} />
      <span>${label}</span>
    </label>`;
  }

  renderResult({ metric, result: { branches, winner, reason } }) {
    const { unnamed } = this.props.session, getTitle = (name) => this.getTitle(name);
    const why = unnamed.reduce((text, { leaf }) => text.replaceAll(leaf, getTitle(leaf)), reason ?? "");
    const titled = branches.map((stats) => ({ ...stats, name: getTitle(stats.name) }));
    const verdict = winner ? html`<b>${this.getTitle(winner)}</b> has the lowest ${metric}.` : html`No winner by ${metric}: ${why}.`;
    return html`
      <p class="verdict">
        ${this.state.busy ? "Comparing…" : verdict}
        <label>by <select value=${this.state.metric} onChange=${(event) => this.load(event.target.value)}>
          ${["cost", "tokens", "time", "entries"].map((name) => html`<option value=${name}>${name}</option>`)}
        </select></label>
      </p>
      <div class="charts">${CHARTS.map(([name, title, value]) => html`<${Bars} title=${title} items=${buildBars(titled, name, value)} />`)}</div>
      <details><summary>More statistics</summary><div class="wide" tabindex="0" role="region" aria-label="Statistics"><table>
        <thead><tr><th scope="col">After the common ancestor</th>${titled.map(({ name }) => html`<th scope="col">${name}</th>`)}</tr></thead>
        <tbody>${ROWS.map(([label, value]) => html`<tr>
          <th scope="row">${label}</th>${branches.map((stats) => html`<td>${value(stats)}</td>`)}
        </tr>`)}</tbody>
      </table></div></details>
      ${[...this.state.files].map(([name, files]) => html`<${FilesDiff} a=${titled[0].name} b=${getTitle(name)} files=${files} key=${name} />`)}
      <div class="columns">${branches.slice(0, MAX_COLUMNS).map(({ name }) => this.renderColumn(name))}</div>
      ${branches.length > MAX_COLUMNS && html`<p class="more">Showing the messages of the first ${MAX_COLUMNS} branches only.</p>`}`;
  }

  renderColumn(name) {
    const { session, promote } = this.props;
    const { entries = null, more = false } = this.state.columns.get(name) ?? {};
    const isBranch = session.heads.has(name);
    return html`<section class="column" aria-label=${`Branch ${this.getTitle(name)}`} key=${name}>
      <header>
        <h2>${this.getTitle(name)}</h2><span class="gap"></span>
        <a class="button" href=${isBranch ? linkToBranch(session.id, name) : linkToEntry(session.id, name)}>Open</a>
        ${promote && isBranch && name !== session.current && html`<${Button} kind="small" label="Promote" onClick=${() => promote(name)} />`}
      </header>
      ${more && html`<p class="more">Showing only the last ${pluralize(entries.length, "entry", "entries")}.</p>`}
      ${entries?.map((entry) => html`<${Entry} key=${entry.id} entry=${entry} base=${session.base} />`)}
      ${entries?.length === 0 && html`<${Empty}>No entries after the common ancestor.<//>`}
    </section>`;
  }
}

/** Build the bars of a chart. A single lowest value is marked if all values are known. */
const buildBars = (branches, name, value) => {
  const values = branches.map(value);
  const least = Math.min(...values);
  const isUnique = !values.includes(null) && values.filter((one) => one === least).length === 1;
  return branches.map((stats, index) => ({
    name: stats.name,
    value: values[index],
    text: formatMetric(name, values[index]),
    best: isUnique && values[index] === least,
  }));
};
