// Swarms: the list, and the form that starts one.
import { Meter } from "./charts.js";
import { Button, Chip, Component, Empty, Field, Notice, html, valuesOf } from "./html.js";
import { ago, money, plural, short } from "./figures.js";

const STRATEGIES = [["parallel", "all at once on the same task"], ["map-reduce", "parts, then one answer of them"], ["pipeline", "one after another"], ["tree", "agents that split their task"]];
const LOOK = 2000;

export const STATUS = { running: "busy", completed: "branch", failed: "wrong", cancelled: "wrong", paused: "label" };

/** How near a budget is to its end. */
export const levelOf = (used) => (used === null || used === undefined ? "" : used >= 0.9 ? "critical" : used >= 0.75 ? "warning" : "");

/** `{cost, tokens, seconds}` of the fields of a form; nothing when all are empty. */
const budgetOf = (values, prefix) => {
  const budget = {};
  for (const name of ["cost", "tokens", "seconds"]) if (values[`${prefix}-${name}`]) budget[name] = Number(values[`${prefix}-${name}`]);
  return Object.keys(budget).length ? budget : undefined;
};

export class Swarms extends Component {
  state = { swarms: null, error: null, busy: false, sessions: [] };

  componentDidMount() {
    this.load();
    this.timer = setInterval(() => document.visibilityState === "visible" && this.load(), LOOK);
    this.props.api.get("/sessions", { limit: 50 }).then(({ sessions }) => this.setState({ sessions }), () => {});
  }
  componentWillUnmount() {
    clearInterval(this.timer);
  }

  async load() {
    try {
      this.setState({ swarms: (await this.props.api.get("/swarms")).swarms, error: null });
    } catch (error) {
      this.setState({ error: error.message, swarms: this.state.swarms ?? [] });
    }
  }

  create = async (event) => {
    event.preventDefault();
    const values = valuesOf(event.target);
    const body = { name: values.name, task: values.task, agents: Number(values.agents ?? 2), strategy: values.strategy };
    if (values.session) body.session = values.session;
    if (values.model) body.model = values.model;
    if (values["max-agents"]) body.maxAgents = Number(values["max-agents"]);
    const budget = budgetOf(values, "all"), each = budgetOf(values, "each");
    if (budget) body.budget = budget;
    if (each) body.agentBudget = each;
    this.setState({ busy: true, error: null });
    try {
      const { id } = await this.props.api.post("/swarms", body);
      this.props.go(`/swarms/${encodeURIComponent(id)}`);
    } catch (error) {
      this.setState({ busy: false, error: error.message });
    }
  };

  render({ allowed, models }, { swarms, error, busy, sessions }) {
    return html`<main class="scroll"><section class="swarms" aria-label="Swarms">
      <h1>Swarms</h1>
      <${Notice} text=${error} kind="wrong" />
      ${swarms === null && html`<${Empty}>Loading…<//>`}
      ${swarms?.length === 0 && html`<${Empty}>No swarm has been started yet.<//>`}
      ${swarms?.length > 0 && html`<ul class="list cards">
        ${swarms.map((swarm) => html`<li key=${swarm.id}><a href=${`#/swarms/${encodeURIComponent(swarm.id)}`}>
          <span class="row"><span class="name">${swarm.name}</span><${Chip} kind=${STATUS[swarm.status] ?? ""}>${swarm.status}<//><span class="gap"></span><span class="fact">${swarm.strategy}</span></span>
          <span class="first">${swarm.task}</span>
          <${Meter} part=${swarm.progress} label=${`Progress of ${swarm.name}`} />
          <span class="facts"><span>${Math.round(swarm.progress * 100)} %</span><span>${money(swarm.cost)}</span><span>${short(swarm.tokens)} tokens</span><span>${plural(swarm.branchCount, "branch", "branches")}</span><span>${ago(swarm.createdAt, Date.now())}</span></span>
        </a></li>`)}
      </ul>`}
      ${allowed
        ? html`<details class="card" open=${swarms?.length === 0}><summary><h2>New swarm</h2></summary>
          <form onSubmit=${this.create}>
            <div class="row fields">
              <${Field} label="Name"><input name="name" required autocomplete="off" /><//>
              <${Field} label="Strategy"><select name="strategy">${STRATEGIES.map(([name, words]) => html`<option value=${name}>${name}: ${words}</option>`)}</select><//>
              <${Field} label="Agents"><input name="agents" type="number" min="1" max="64" defaultValue="3" required /><//>
              <${Field} label="At most"><input name="max-agents" type="number" min="1" max="64" placeholder="no limit" /><//>
            </div>
            <${Field} wide label="Task"><textarea name="task" rows="3" required></textarea><//>
            <div class="row fields">
              <${Field} label="Session"><select name="session"><option value="">a new one</option>${sessions.map((session) => html`<option value=${session.id}>${(session.name || session.firstMessage || session.id).slice(0, 60)}</option>`)}</select><//>
              <${Field} label="Model"><input name="model" list="swarm-models" placeholder="the default" autocomplete="off" spellcheck=${false} /><//>
              <datalist id="swarm-models">${models.map((name) => html`<option value=${name}></option>`)}</datalist>
            </div>
            <fieldset class="row fields"><legend>Budget of all, and of each agent</legend>
              <${Field} label="Dollars"><input name="all-cost" type="number" min="0" step="any" /><//>
              <${Field} label="Tokens"><input name="all-tokens" type="number" min="0" /><//>
              <${Field} label="Seconds"><input name="all-seconds" type="number" min="0" step="any" /><//>
              <${Field} label="Dollars each"><input name="each-cost" type="number" min="0" step="any" /><//>
              <${Field} label="Tokens each"><input name="each-tokens" type="number" min="0" /><//>
            </fieldset>
            <div class="row end"><${Button} type="submit" kind="primary" label=${busy ? "…" : "Start"} disabled=${busy} /></div>
          </form></details>`
        : html`<${Empty}>This server runs no agents; <code>sessiontree serve --allow-run</code> does.<//>`}
    </section></main>`;
  }
}
