// Branches side by side from their common ancestor: their costs as bars, their messages as columns.
import { go, ofBranch, ofComparison } from "./addresses.js";
import { Bars } from "./charts.js";
import { Entry } from "./conversation.js";
import { Button, Component, Empty, Notice, html } from "./html.js";
import { figure, measured, plural } from "./figures.js";

const CHARTS = [
  ["cost", "Cost", (stats) => measured(stats, "cost", stats.totalCost)],
  ["tokens", "Tokens", (stats) => measured(stats, "tokens", stats.totalTokens)],
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
const MOST = 4; // columns that can be read beside each other
const PAGE = 100;

export class Compare extends Component {
  state = { shown: null, busy: false, error: null, columns: new Map(), metric: "cost" }; // `shown`: {names, metric, result}

  componentDidMount() {
    this.load();
  }
  componentDidUpdate() {
    if (String(this.names) !== this.loaded) this.load();
  }

  /** The branches that the address names, or the one that is read and the newest beside it. */
  get names() {
    const { session, names } = this.props;
    const known = session.branches.filter((branch) => branch.head);
    const asked = names.filter((name) => known.some((branch) => branch.name === name));
    if (asked.length) return asked;
    const open = known.filter((branch) => !branch.archived).map((branch) => branch.name);
    const first = session.branch ?? session.current;
    return [first, ...open.filter((name) => name !== first).reverse()].slice(0, 2);
  }

  choose(name, on) {
    go(ofComparison(this.props.session.id, on ? [...this.names, name] : this.names.filter((other) => other !== name)));
  }

  /** Compare anew; of several answers only the one that was asked for last counts. */
  async load(metric = this.state.metric) {
    const { names } = this, { session } = this.props;
    const asked = (this.asked = {});
    const set = (state) => this.asked === asked && this.setState(state);
    this.loaded = String(names);
    set({ metric, error: null, busy: names.length > 1 });
    if (names.length < 2) return set({ shown: null });
    try {
      const result = await session.compare(names, metric);
      set({ shown: { names, metric, result }, busy: false });
      const read = result.branches.slice(0, MOST).map(async (stats) => [stats.name, await this.column(stats, result.commonAncestor)]);
      return set({ columns: new Map(await Promise.all(read)) });
    } catch (error) {
      const { shown } = this.state, kept = String(shown?.names) === String(names) ? shown : null;
      return set({ shown: kept, metric: kept?.metric ?? metric, error: error.message, busy: false });
    }
  }

  /** The end of a branch behind the place where all part. */
  async column(stats, ancestor) {
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
        ${known.map(({ name, archived }) => html`<label class="check">
          <input type="checkbox" checked=${names.includes(name)} onChange=${(event) => this.choose(name, event.target.checked)} />
          <span>${name}${archived ? " (archived)" : ""}</span>
        </label>`)}
      </fieldset>
      <${Notice} text=${error} kind="wrong" />
      ${names.length < 2 && html`<${Empty}>Select two or more branches.<//>`}
      ${shown && names.length > 1 && this.compared(shown)}
    </section></div>`;
  }

  compared({ metric, result: { branches, winner, reason } }) {
    const said = winner ? html`<b>${winner}</b> has the lowest ${metric}.` : html`No winner by ${metric}: ${reason}.`;
    return html`
      <p class="verdict">
        ${this.state.busy ? "Comparing…" : said}
        <label>by <select value=${this.state.metric} onChange=${(event) => this.load(event.target.value)}>
          ${["cost", "tokens", "time", "entries"].map((name) => html`<option value=${name}>${name}</option>`)}
        </select></label>
      </p>
      <div class="charts">${CHARTS.map(([name, title, value]) => html`<${Bars} title=${title} items=${bars(branches, name, value)} />`)}</div>
      <details><summary>More figures</summary><div class="wide" tabindex="0" role="region" aria-label="Figures"><table>
        <thead><tr><th scope="col">From the common ancestor</th>${branches.map(({ name }) => html`<th scope="col">${name}</th>`)}</tr></thead>
        <tbody>${ROWS.map(([label, value]) => html`<tr>
          <th scope="row">${label}</th>${branches.map((stats) => html`<td>${value(stats)}</td>`)}
        </tr>`)}</tbody>
      </table></div></details>
      <div class="columns">${branches.slice(0, MOST).map(({ name }) => this.text(name))}</div>
      ${branches.length > MOST && html`<p class="more">The texts of the first ${MOST} are shown.</p>`}`;
  }

  text(name) {
    const { session, promote } = this.props;
    const { entries = null, more = false } = this.state.columns.get(name) ?? {};
    return html`<section class="column" aria-label=${`Branch ${name}`} key=${name}>
      <header>
        <h2>${name}</h2><span class="gap"></span>
        <a class="button" href=${ofBranch(session.id, name)}>Open</a>
        ${promote && name !== session.current && html`<${Button} kind="small" label="Promote" onClick=${() => promote(name)} />`}
      </header>
      ${more && html`<p class="more">Only the last ${plural(entries.length, "entry", "entries")} are shown.</p>`}
      ${entries?.map((entry) => html`<${Entry} key=${entry.id} entry=${entry} />`)}
      ${entries?.length === 0 && html`<${Empty}>No entries of its own.<//>`}
    </section>`;
  }
}

/** What a chart shows of each branch; the lowest is marked if all are known and it is alone. */
const bars = (branches, name, value) => {
  const values = branches.map(value);
  const least = Math.min(...values);
  const alone = !values.includes(null) && values.filter((one) => one === least).length === 1;
  return branches.map((stats, index) => ({
    name: stats.name,
    value: values[index],
    text: figure(name, values[index]),
    best: alone && values[index] === least,
  }));
};
