// The list of swarms, and the form that starts one.
import { go, ofSwarm } from "./addresses.js";
import { Meter } from "./charts.js";
import { Button, Chip, Component, Empty, Field, Models, Notice, NoRuns, html, valuesOf } from "./html.js";
import { ago, money, plural, taken } from "./figures.js";

const LOOK = 2000;
const STRATEGIES = [
  ["parallel", "agents work on the same task in parallel"],
  ["map-reduce", "split into parts, then combine the results"],
  ["pipeline", "one after another"],
  ["tree", "agents split their task further"],
];

/** What a swarm is called that is to run and that nobody works on. */
export const stateOf = ({ status, left }) => (left ? "interrupted" : status);

export const STATUS = { running: "busy", completed: "branch", failed: "wrong", cancelled: "wrong", paused: "label", interrupted: "label" };

/** How near a budget is to its end. */
export const levelOf = (used) => (used >= 0.9 ? "critical" : used >= 0.75 ? "warning" : "");

export class Swarms extends Component {
  state = { swarms: null, lost: null, refused: null, opens: null, busy: false, sessions: [] };

  componentDidMount() {
    this.load();
    this.timer = setInterval(() => document.visibilityState === "visible" && this.load(), LOOK);
    this.props.api.get("/sessions", { limit: 50 }).then(({ sessions }) => this.setState({ sessions }), () => {});
  }
  componentWillUnmount() {
    this.gone = true;
    clearInterval(this.timer);
  }

  /** A slow answer is waited for. The form stands open where there was no swarm at first, and stays as one leaves it. */
  async load() {
    if (this.asked) return;
    this.asked = true;
    try {
      const { swarms } = await this.props.api.all("/swarms", "swarms");
      this.setState({ swarms, lost: null, opens: this.state.opens ?? swarms.length === 0 });
    } catch (error) {
      this.setState({ lost: error.message });
    }
    this.asked = false;
  }

  create = async (event) => {
    event.preventDefault();
    this.setState({ busy: true, refused: null });
    try {
      const { id } = await this.props.api.post("/swarms", asked(valuesOf(event.target)));
      if (!this.gone) go(ofSwarm(id));
    } catch (error) {
      if (this.gone) this.props.tell(`New swarm: ${error.message}`, "wrong");
      else this.setState({ busy: false, refused: error.message });
    }
  };

  render({ allowed, me, models }, { swarms, lost, refused, opens, busy, sessions }) {
    return html`<main class="scroll"><section class="swarms" aria-label="Swarms">
      <h1>Swarms</h1>
      <${Notice} text=${refused ?? lost} kind="wrong" />
      ${allowed && html`<details class="card" open=${opens || undefined}>
        <summary><h2>New swarm</h2></summary>
        <${New} create=${this.create} busy=${busy} sessions=${sessions} models=${models} />
      </details>`}
      ${swarms === null && !lost && html`<${Empty}>Loading…<//>`}
      ${swarms?.length === 0 && html`<${Empty}>No swarms yet.<//>`}
      ${swarms?.length > 0 && html`<ul class="list">${swarms.map((swarm) => html`<${Listed} key=${swarm.id} swarm=${swarm} />`)}</ul>`}
      ${!allowed && html`<${NoRuns} me=${me} />`}
    </section></main>`;
  }
}

const Listed = ({ swarm }) => html`<li><a href=${ofSwarm(swarm.id)}>
  <span class="row">
    <span class="name">${swarm.name}</span><${Chip} kind=${STATUS[stateOf(swarm)] ?? ""}>${stateOf(swarm)}<//>
    <span class="gap"></span><span class="fact">${swarm.strategy}</span>
  </span>
  <span class="first">${swarm.task}</span>
  <${Meter} part=${swarm.progress} label=${`Progress of ${swarm.name}`} />
  <span class="facts">
    <span>${Math.round(swarm.progress * 100)} %</span>
    <span>${plural(swarm.agentCount, "agent")}</span>
    <span>${money(swarm.cost)}</span>
    <span>${taken(swarm.tokens)} tokens</span>
    <span>${ago(swarm.createdAt, Date.now())}</span>
  </span>
</a></li>`;

const New = ({ create, busy, sessions, models }) => html`<form onSubmit=${create}>
  <div class="row fields">
    <${Field} label="Name"><input name="name" required autocomplete="off" /><//>
    <${Field} label="Strategy"><select name="strategy">
      ${STRATEGIES.map(([name, words]) => html`<option value=${name}>${name}: ${words}</option>`)}
    </select><//>
    <${Field} label="Agents"><input name="agents" type="number" min="1" max="64" defaultValue="3" required /><//>
    <${Field} label="At most"><input name="maxAgents" type="number" min="1" max="64" placeholder="no limit" /><//>
  </div>
  <${Field} wide label="Task"><textarea name="task" rows="3" required></textarea><//>
  <div class="row fields">
    <${Field} label="Session"><select name="session">
      <option value="">New session</option>
      ${sessions.map(({ id, name, firstMessage }) => html`<option value=${id}>${(name || firstMessage || id).slice(0, 60)}</option>`)}
    </select><//>
    <${Field} label="Model"><${Models} name="model" models=${models} placeholder="default" /><//>
  </div>
  <fieldset class="row fields"><legend>Total budget, and budget of each agent</legend>
    <${Field} label="Dollars"><input name="budget.cost" type="number" min="0" step="any" /><//>
    <${Field} label="Tokens"><input name="budget.tokens" type="number" min="0" /><//>
    <${Field} label="Seconds"><input name="budget.seconds" type="number" min="0" step="any" /><//>
    <${Field} label="Dollars each"><input name="agentBudget.cost" type="number" min="0" step="any" /><//>
    <${Field} label="Tokens each"><input name="agentBudget.tokens" type="number" min="0" /><//>
  </fieldset>
  <div class="row end"><${Button} type="submit" kind="primary" label=${busy ? "…" : "Start"} disabled=${busy} /></div>
</form>`;

const NUMBERS = new Set(["agents", "maxAgents", "cost", "tokens", "seconds"]);

/** What the form says, as the server takes it: `budget.cost` is the cost of the budget, and `null` none. */
export const asked = (values) => {
  const body = {};
  for (const [path, value] of Object.entries(values)) {
    const [name, inner] = path.split(".");
    const said = NUMBERS.has(inner ?? name) && value !== null ? Number(value) : value;
    if (inner) body[name] = { ...body[name], [inner]: said };
    else body[name] = said;
  }
  return body;
};
