// What models did over all sessions: cost, tokens, answers, failures and latency over time; and what tokens did.
import { describeAction } from "./activity.js";
import { SESSIONS, linkToSession } from "./addresses.js";
import { Columns } from "./charts.js";
import { formatCost, formatCount, formatDay, formatClock, formatDuration, formatTokens, pluralize } from "./format.js";
import { Button, Chip, Component, Empty, Notice, html } from "./html.js";

const PERIODS = [[7, "7 days"], [30, "30 days"], [90, "90 days"], [365, "1 year"]];
const DAY = 24 * 3600 * 1000;
const CHARTS = [
  ["Cost", ({ cost }) => cost, formatCost],
  ["Tokens", ({ tokens }) => tokens, formatTokens],
  ["Answers", ({ answers }) => answers, formatCount],
  ["Failures", ({ failures }) => failures, formatCount],
  ["Median time of an answer", ({ medianSeconds }) => medianSeconds ?? 0, formatDuration],
];
const COLUMNS = ["Answers", "Failures", "Tokens", "Cost", "Median time"];

/** Return a row for each day up to today, also for those without answers. */
const fillDays = (days, count) => {
  const known = new Map(days.map((day) => [day.day, day]));
  const today = Date.now();
  return Array.from({ length: count }, (_, index) => {
    const day = new Date(today - (count - 1 - index) * DAY).toISOString().slice(0, 10);
    return known.get(day) ?? { day, cost: 0, tokens: 0, answers: 0, failures: 0, medianSeconds: null };
  });
};

const UsageCells = ({ row }) => html`
  <td>${formatCount(row.answers)}</td>
  <td>${row.failures ? html`<${Chip} kind="wrong">${formatCount(row.failures)}<//>` : "0"}</td>
  <td>${formatTokens(row.tokens)}</td><td>${formatCost(row.cost)}</td>
  <td>${row.medianSeconds === null ? "–" : formatDuration(row.medianSeconds)}</td>`;

const UsageTable = ({ title, column, rows, name }) => html`<h2>${title}</h2>
  <div class="wide" tabindex="0" role="region" aria-label=${title}><table>
    <thead><tr>${[column, ...COLUMNS].map((one) => html`<th scope="col">${one}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr><th scope="row">${name(row)}</th><${UsageCells} row=${row} /></tr>`)}</tbody>
  </table></div>`;

export class Overview extends Component {
  state = { found: null, error: null, days: 30, model: "", project: "", events: null, next: null, token: "", auditError: null };

  componentDidMount() {
    this.load();
    this.loadEvents();
  }
  componentWillUnmount() {
    this.request = null;
  }

  async load() {
    const request = (this.request = {});
    const { days, model, project } = this.state;
    try {
      const found = await this.props.api.get("/overview", { days, model, project });
      if (this.request === request) this.setState({ found, error: null });
    } catch (error) {
      if (this.request === request) this.setState({ error: error.message });
    }
  }

  async loadEvents(more = false) {
    if (this.props.me.projects !== null) return;
    try {
      const { token, next, events } = this.state;
      const page = await this.props.api.get("/audit", { token, limit: 50, cursor: more ? next : undefined });
      this.setState({ events: more ? [...events, ...page.events] : page.events, next: page.next, auditError: null });
    } catch (error) {
      this.setState({ auditError: error.message });
    }
  }

  choose = (values) => this.setState(values, () => this.load());

  render(_, state) {
    const { found, error, days, model, project } = state;
    const select = (label, name, value, options) => html`<label class="field"><span>${label}</span>
      <select onChange=${(event) => this.choose({ [name]: name === "days" ? Number(event.target.value) : event.target.value })}>
        ${options.map(([one, text]) => html`<option value=${one} selected=${one === value}>${text}</option>`)}
      </select></label>`;
    return html`<main class="scroll"><section class="overview" aria-label="Overview">
      <h1>Overview</h1>
      <div class="row fields">
        ${select("Period", "days", days, PERIODS)}
        ${select("Model", "model", model, [["", "All models"], ...(found?.allModels ?? []).map((name) => [name, name])])}
        ${select("Folder", "project", project, [["", "All folders"], ...(found?.allProjects ?? []).filter(Boolean).map((name) => [name, name])])}
      </div>
      <${Notice} text=${error} kind="wrong" />
      <${Notice} text=${found?.unread > 0 && `${pluralize(found.unread, "session")} could not be read.`} />
      ${!found && !error && html`<${Empty}>Loading…<//>`}
      ${found && this.renderUsage(found, days)}
      ${this.renderEvents(state)}
    </section></main>`;
  }

  renderUsage({ total, days, models, sessions, sessionCount }, period) {
    if (!total.answers) {
      return html`<${Empty}>No answers of models in this period. Choose a longer one, or prompt an agent in <a href=${SESSIONS}>a session</a>.<//>`;
    }
    const filled = fillDays(days, period);
    return html`
      <p class="facts total">
        <span>${pluralize(sessionCount, "session")}</span><span>${pluralize(total.answers, "answer")}</span>
        <span>${pluralize(total.failures, "failure")}</span><span>${formatTokens(total.tokens)} tokens</span>
        <span>cost ${formatCost(total.cost)}</span>
        ${total.medianSeconds !== null && html`<span>median ${formatDuration(total.medianSeconds)}</span>`}
      </p>
      <div class="charts">${CHARTS.map(([title, value, format]) => html`<${Columns} title=${title} format=${format}
        items=${filled.map((day) => ({ name: day.day, value: value(day) }))} />`)}</div>
      <${UsageTable} title="Models" column="Model" rows=${models} name=${({ model }) => model} />
      <${UsageTable} title="Sessions" column="Session" rows=${sessions} name=${({ id, name }) => html`<a href=${linkToSession(id)}>${name || "Unnamed session"}</a>`} />
      ${sessionCount > sessions.length && html`<p class="more">Showing the ${sessions.length} most expensive sessions.</p>`}`;
  }

  /** Return the name of a session, or the end of its id if the overview does not list it. */
  getName(id) {
    const known = this.state.found?.sessions?.find((session) => session.id === id);
    return known ? known.name || "Unnamed session" : `…${id.slice(-8)}`;
  }

  renderEvents({ events, next, token, auditError }) {
    if (this.props.me.projects !== null) return null;
    return html`<h2>Activity</h2>
      <${Notice} text=${auditError} kind="wrong" />
      ${token && html`<p class="row"><span class="note">Only token ${token}</span><${Button} kind="small" label="Show all"
        onClick=${() => this.setState({ token: "" }, () => this.loadEvents())} /></p>`}
      ${events?.length === 0 && html`<${Empty}>No changes yet. Changes, exports, sign-ins and opened share links appear here.<//>`}
      ${events?.length > 0 && html`<div class="wide" tabindex="0" role="region" aria-label="Activity"><table>
        <thead><tr>${["Time", "Who", "What", "Session", "Status"].map((column) => html`<th scope="col">${column}</th>`)}</tr></thead>
        <tbody>${events.map((event) => html`<tr>
          <td class="when">${formatDay(event.time)} ${formatClock(event.time)}</td>
          <td><button type="button" class="quiet small" title="Show only this token" onClick=${() => this.setState({ token: event.token }, () => this.loadEvents())}>
            ${event.name || event.kind} · ${event.token}</button></td>
          <td title=${event.action}>${describeAction(event.action)}</td>
          <td>${event.session && html`<a href=${linkToSession(event.session)}>${this.getName(event.session)}</a>`}</td>
          <td>${event.status >= 400 ? html`<${Chip} kind="wrong">${event.status}<//>` : event.status}</td>
        </tr>`)}</tbody>
      </table></div>`}
      ${next && html`<p class="row"><${Button} label="Load more" onClick=${() => this.loadEvents(true)} /></p>`}`;
  }
}
