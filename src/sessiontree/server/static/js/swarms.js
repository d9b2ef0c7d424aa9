// The list of swarms, and the form that starts one.
import { go, linkToSwarm } from "./addresses.js";
import { Meter } from "./charts.js";
import { Button, Chip, Component, Empty, Field, ModelInput, RunsUnavailable, Notice, html, readForm } from "./html.js";
import { formatAge, formatCost, formatTokens, pluralize } from "./format.js";

const POLL = 2000; // milliseconds
const STRATEGIES = [
  ["parallel", "agents work on the same task in parallel"],
  ["map-reduce", "agents work on parts, then one combines the results"],
  ["pipeline", "agents work one after another"],
  ["tree", "agents split their task further"],
];

/** Return the status of a swarm, or `interrupted` if its process died. */
export const getState = ({ status, left }) => (left ? "interrupted" : status);

export const STATUS = { running: "busy", completed: "branch", failed: "wrong", cancelled: "wrong", paused: "label", interrupted: "label" };

/** Return the warning level of a budget. */
export const getLevel = (used) => (used >= 0.9 ? "critical" : used >= 0.75 ? "warning" : "");

export class Swarms extends Component {
  state = { swarms: null, loadError: null, createError: null, isFormOpen: null, busy: false, sessions: [] };

  componentDidMount() {
    this.load();
    this.timer = setInterval(() => document.visibilityState === "visible" && this.load(), POLL);
    this.props.api.get("/sessions", { limit: 50 }).then(({ sessions }) => this.setState({ sessions }), () => {});
  }
  componentWillUnmount() {
    this.isUnmounted = true;
    clearInterval(this.timer);
  }

  /** Load the list, one request at a time. The form is open at first if there are no swarms. */
  async load() {
    if (this.isLoading) return;
    this.isLoading = true;
    try {
      const { swarms } = await this.props.api.getAll("/swarms", "swarms");
      this.setState({ swarms, loadError: null, isFormOpen: this.state.isFormOpen ?? swarms.length === 0 });
    } catch (error) {
      this.setState({ loadError: error.message });
    }
    this.isLoading = false;
  }

  create = async (event) => {
    event.preventDefault();
    this.setState({ busy: true, createError: null });
    try {
      const { id } = await this.props.api.post("/swarms", buildRequest(readForm(event.target)));
      if (!this.isUnmounted) go(linkToSwarm(id));
    } catch (error) {
      if (this.isUnmounted) this.props.notify(`New swarm: ${error.message}`, "wrong");
      else this.setState({ busy: false, createError: error.message });
    }
  };

  render({ allowed, me, models }, { swarms, loadError, createError, isFormOpen, busy, sessions }) {
    return html`<main class="scroll"><section class="swarms" aria-label="Swarms">
      <h1>Swarms</h1>
      <${Notice} text=${createError ?? loadError} kind="wrong" />
      ${allowed && html`<details class="card" open=${isFormOpen || undefined}>
        <summary><h2>New swarm</h2></summary>
        <${NewSwarmForm} create=${this.create} busy=${busy} sessions=${sessions} models=${models} />
      </details>`}
      ${swarms === null && !loadError && html`<${Empty}>Loading…<//>`}
      ${swarms?.length === 0 && html`<${Empty}>No swarms yet. ${allowed ? "Fill in the form above to start several agents on one task." : "A swarm is several agents on one task."}<//>`}
      ${swarms?.length > 0 && html`<ul class="list">${swarms.map((swarm) => html`<${SwarmItem} key=${swarm.id} swarm=${swarm} />`)}</ul>`}
      ${!allowed && html`<${RunsUnavailable} me=${me} />`}
    </section></main>`;
  }
}

const SwarmItem = ({ swarm }) => html`<li><a href=${linkToSwarm(swarm.id)}>
  <span class="row">
    <span class="name">${swarm.name}</span><${Chip} kind=${STATUS[getState(swarm)] ?? ""}>${getState(swarm)}<//>
    <span class="gap"></span><span class="fact">${swarm.strategy}</span>
  </span>
  <span class="first">${swarm.task}</span>
  <${Meter} part=${swarm.progress} label=${`Progress of ${swarm.name}`} />
  <span class="facts">
    <span>${Math.round(swarm.progress * 100)} %</span>
    <span>${pluralize(swarm.agentCount, "agent")}</span>
    <span>${formatCost(swarm.cost)}</span>
    <span>${formatTokens(swarm.tokens)} tokens</span>
    <span>${formatAge(swarm.createdAt, Date.now())}</span>
  </span>
</a></li>`;

const NewSwarmForm = ({ create, busy, sessions, models }) => html`<form onSubmit=${create}>
  <div class="row fields">
    <${Field} label="Name"><input name="name" required autocomplete="off" /><//>
    <${Field} label="Strategy"><select name="strategy">
      ${STRATEGIES.map(([name, description]) => html`<option value=${name}>${name}: ${description}</option>`)}
    </select><//>
    <${Field} label="Agents"><input name="agents" type="number" min="1" max="64" defaultValue="3" required /><//>
    <${Field} label="Maximum agents"><input name="maxAgents" type="number" min="1" max="64" placeholder="No limit" /><//>
  </div>
  <${Field} wide label="Task"><textarea name="task" rows="3" required></textarea><//>
  <div class="row fields">
    <${Field} label="Session"><select name="session">
      <option value="">New session</option>
      ${sessions.map(({ id, name, firstMessage }) => html`<option value=${id}>${(name || firstMessage || id).slice(0, 60)}</option>`)}
    </select><//>
    <${Field} label="Model"><${ModelInput} name="model" models=${models} placeholder="Default" /><//>
  </div>
  <fieldset class="row fields"><legend>Budget of the swarm, and of each agent</legend>
    <${Field} label="Dollars"><input name="budget.cost" type="number" min="0" step="any" /><//>
    <${Field} label="Tokens"><input name="budget.tokens" type="number" min="0" /><//>
    <${Field} label="Seconds"><input name="budget.seconds" type="number" min="0" step="any" /><//>
    <${Field} label="Dollars per agent"><input name="agentBudget.cost" type="number" min="0" step="any" /><//>
    <${Field} label="Tokens per agent"><input name="agentBudget.tokens" type="number" min="0" /><//>
  </fieldset>
  <div class="row end"><${Button} type="submit" kind="primary" label=${busy ? "…" : "Start"} disabled=${busy} /></div>
</form>`;

const NUMBERS = new Set(["agents", "maxAgents", "cost", "tokens", "seconds"]);

/** Build the request from form values. `budget.cost` becomes a field of `budget`; `null` means no limit. */
export const buildRequest = (values) => {
  const body = {};
  for (const [path, value] of Object.entries(values)) {
    const [name, inner] = path.split(".");
    const parsed = NUMBERS.has(inner ?? name) && value !== null ? Number(value) : value;
    if (inner) body[name] = { ...body[name], [inner]: parsed };
    else body[name] = parsed;
  }
  return body;
};
