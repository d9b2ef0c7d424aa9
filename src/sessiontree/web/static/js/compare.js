// Branches side by side from where they part: what each cost, in bars, and what each says, in columns.
import { Bars } from "./charts.js";
import { Entry } from "./conversation.js";
import { Button, Component, Empty, Notice, html } from "./html.js";
import { figure, plural } from "./figures.js";

const METRICS = [["cost", "Cost", "totalCost"], ["tokens", "Tokens", "totalTokens"], ["time", "Time", "durationMs"]];
const ROWS = [
  ["Entries", (stats) => stats.entryCount], ["Messages", (stats) => stats.messageCount], ["Tool calls", (stats) => stats.toolCalls],
  ["Errors", (stats) => stats.errors], ["Models", (stats) => stats.models.join(", ") || "–"], ["Files", (stats) => stats.files.join(", ") || "–"],
];
const MOST = 4; // columns that can be read beside each other
const PAGE = 100;

const valueOf = (stats, field) => (field === "durationMs" ? stats.durationMs / 1000 : stats[field]);

export class Compare extends Component {
  state = { result: null, error: null, columns: {}, metric: "cost" };

  componentDidMount() {
    this.load();
  }
  componentDidUpdate() {
    if (String(this.names) !== this.loaded) this.load();
  }

  /** The branches that the address names, or the current one and those that part from it. */
  get names() {
    const { session, names } = this.props;
    const known = session.branches.filter((branch) => branch.head);
    const asked = (names ?? []).filter((name) => known.some((branch) => branch.name === name));
    if (asked.length) return asked;
    const open = known.filter((branch) => !branch.archived).map((branch) => branch.name);
    const first = session.branch ?? session.current;
    return [first, ...open.filter((name) => name !== first).reverse()].slice(0, 2);
  }

  choose(name, on) {
    const { session, go } = this.props;
    const names = on ? [...this.names, name] : this.names.filter((other) => other !== name);
    const words = new URLSearchParams(names.map((one) => ["branch", one]));
    go(`/s/${encodeURIComponent(session.id)}/compare?${words}`);
  }

  async load(metric = this.state.metric) {
    const { names } = this, { session } = this.props;
    this.loaded = String(names);
    this.setState({ metric, error: null });
    if (names.length < 2) return this.setState({ result: null });
    try {
      const result = await session.compare(names, metric);
      this.setState({ result });
      const columns = {};
      for (const stats of result.branches.slice(0, MOST)) columns[stats.name] = await this.column(stats, result.commonAncestor);
      return this.setState({ columns });
    } catch (error) {
      return this.setState({ error: error.message });
    }
  }

  /** The end of a branch behind the place where all part. */
  async column(stats, ancestor) {
    if (!stats.leaf || !stats.entryCount) return { entries: [], more: false };
    const { session } = this.props;
    const page = await session.api.get(`${session.base}/path`, { at: stats.leaf, cursor: "end", limit: PAGE, html: 1 });
    const from = page.entries.findIndex((entry) => entry.id === ancestor);
    return { entries: page.entries.slice(from + 1), more: from < 0 && page.previous !== null };
  }

  render({ session, promote, go }, { result, error, columns, metric }) {
    const { names } = this;
    const known = session.branches.filter((branch) => branch.head);
    return html`<div class="scroll"><section class="compare" aria-label="Comparison of branches">
      <fieldset class="choose"><legend>Branches to compare</legend>
        ${known.map(({ name, archived }) => html`<label class="check"><input type="checkbox" checked=${names.includes(name)} onChange=${(event) => this.choose(name, event.target.checked)} /><span>${name}${archived ? " (archived)" : ""}</span></label>`)}
      </fieldset>
      <${Notice} text=${error} kind="wrong" />
      ${names.length < 2 && html`<${Empty}>Comparing takes two branches or more.<//>`}
      ${result && names.length > 1 && html`
        <p class="verdict">${result.winner ? html`<b>${result.winner}</b> has the lowest ${metric}.` : html`No winner by ${metric}: ${result.reason}.`}
          <label>by <select value=${metric} onChange=${(event) => this.load(event.target.value)}>${["cost", "tokens", "time", "entries"].map((name) => html`<option value=${name}>${name}</option>`)}</select></label></p>
        <div class="charts">
          ${METRICS.map(([name, title, field]) => {
            const values = result.branches.map((stats) => valueOf(stats, field));
            const least = Math.min(...values);
            return html`<${Bars} title=${title} items=${result.branches.map((stats, index) => ({
              name: stats.name, value: values[index], text: figure(name, values[index]), best: values[index] === least && values.filter((value) => value === least).length === 1,
            }))} />`;
          })}
        </div>
        <details><summary>More figures</summary><div class="wide" tabindex="0" role="region" aria-label="Figures"><table>
          <thead><tr><th scope="col">From where they part</th>${result.branches.map((stats) => html`<th scope="col">${stats.name}</th>`)}</tr></thead>
          <tbody>${ROWS.map(([label, value]) => html`<tr><th scope="row">${label}</th>${result.branches.map((stats) => html`<td>${value(stats)}</td>`)}</tr>`)}</tbody>
        </table></div></details>
        <div class="columns">
          ${result.branches.slice(0, MOST).map((stats) => {
            const column = columns[stats.name];
            return html`<section class="column" aria-label=${`Branch ${stats.name}`} key=${stats.name}>
              <header><h2>${stats.name}</h2><span class="gap"></span>
                <${Button} kind="small" label="Open" onClick=${() => go(`/s/${encodeURIComponent(session.id)}/talk?branch=${encodeURIComponent(stats.name)}`)} />
                ${promote && stats.name !== session.current && html`<${Button} kind="small" label="Promote" onClick=${() => promote(stats.name)} />`}</header>
              ${column?.more && html`<p class="more">Only the last ${plural(column.entries.length, "entry", "entries")} are shown.</p>`}
              ${column?.entries.map((entry) => html`<${Entry} key=${entry.id} entry=${entry} />`)}
              ${column && !column.entries.length && html`<${Empty}>Nothing of its own.<//>`}
            </section>`;
          })}
        </div>
        ${result.branches.length > MOST && html`<p class="more">The texts of the first ${MOST} are shown.</p>`}`}
    </section></div>`;
  }
}
