// One swarm: its agents, costs and live events. Events are read from the stored log, so a page that opens late shows
// all of them.
import { SWARMS, go, ofBranch, ofComparison, ofSession } from "./addresses.js";
import { at } from "./api.js";
import { Meter } from "./charts.js";
import { Ask } from "./dialogs.js";
import { Button, Chip, Component, Empty, Notice, html } from "./html.js";
import { clock, duration, money, plural, taken } from "./figures.js";
import { STATUS, asked, levelOf, stateOf } from "./swarms.js";
import { Stream } from "./stream.js";

const LOOK = 1500, SETTLE = 60; // milliseconds: between two looks at the figures, and until events are worked out together
const KEPT = 400, SHOWN = 200; // events
const MOST = 2000; // characters of what an agent says
const NOISY = new Set(["text_delta", "thinking"]);
const LIVE = new Set(["created", "running", "paused"]);

const percent = (part) => `${Math.round(part * 100)} %`;

/** What an event says. */
const words = (event) => {
  switch (event.type) {
    case "agent_start": return `started: ${event.task}`;
    case "agent_complete": return `finished, ${money(event.cost)}, ${taken(event.tokens)} tokens, ${duration(event.seconds)}`;
    case "agent_fail": return `failed after ${plural(event.attempts, "attempt")}: ${event.error}`;
    case "turn_start": return `turn ${event.number}`;
    case "turn_end": return `turn ${event.number} ended, ${money(event.cost)}`;
    case "tool_call_start": return `calls ${event.tool} ${JSON.stringify(event.arguments ?? {}).slice(0, 120)}`;
    case "tool_call_end": return `${event.tool} ${event.ok ? "answered" : "failed"}: ${event.text ?? ""}`;
    case "budget": return `budget ${event.level}: ${percent(event.used / (event.limit || 1))} of ${event.kind}`;
    case "branch": return `branch ${event.name}`;
    case "swarm": return [event.status, event.reason].filter(Boolean).join(": ");
    case "error": return event.message;
    default: return "";
  }
};

export class SwarmView extends Component {
  state = { status: null, events: [], saying: new Map(), error: null, agent: "", dialog: null, connection: "waiting" };

  componentDidMount() {
    this.base = at("swarms", this.props.id);
    this.load();
    this.listen();
  }
  componentWillUnmount() {
    this.gone = true;
    this.stream.stop();
    clearTimeout(this.timer);
    clearTimeout(this.soon);
  }

  listen() {
    this.heard = [];
    this.stream = new Stream(this.props.api, `${this.base}/events`, {
      after: 0,
      heard: ({ data }) => {
        this.heard.push(data);
        this.soon ??= setTimeout(() => this.settle(), SETTLE);
      },
      resync: () => {
        this.setState({ events: [], saying: new Map() });
        this.listen();
      },
      state: (connection) => this.setState({ connection }),
    });
  }

  settle() {
    this.soon = undefined;
    const heard = this.heard.splice(0);
    const saying = new Map(this.state.saying);
    for (const { type, agent, delta } of heard) {
      if (type === "text_delta") saying.set(agent, ((saying.get(agent) ?? "") + delta).slice(-MOST));
      else if (type === "turn_start") saying.set(agent, "");
    }
    const told = heard.filter((event) => !NOISY.has(event.type));
    this.setState({ saying, events: [...this.state.events, ...told].slice(-KEPT) });
    if (told.length) this.load();
  }

  async load() {
    clearTimeout(this.timer);
    try {
      const status = await this.props.api.get(this.base);
      if (this.gone) return;
      this.setState({ status, error: null });
      if (status.status === "running" && !status.left) this.timer = setTimeout(() => this.load(), LOOK);
    } catch (error) {
      if (this.gone) return;
      this.setState({ error: error.message });
      if (error.passes) this.timer = setTimeout(() => this.load(), LOOK);
    }
  }

  // Doing

  do = async (action) => {
    try {
      await this.props.api.post(`${this.base}/${action}`);
      await this.load();
    } catch (error) {
      this.props.tell(error.message, "wrong"); // the next look takes away what looks tell
    }
  };

  ask = (dialog) => this.setState({ dialog });

  scaling() {
    const now = String(this.state.status.wanted);
    return {
      title: "Scale",
      action: "Scale",
      fields: [{ name: "agents", label: "Agents", kind: "number", min: 1, value: now, required: true }],
      submit: async ({ agents }) => {
        await this.props.api.post(`${this.base}/scale`, { agents: Number(agents) });
        await this.load();
      },
    };
  }

  /** Where it was paused for a reason, that may be its budget. */
  resuming({ budget, agentBudget }) {
    const field = (name, label, value) => ({ name, label, kind: "number", min: 0, step: "any", value: String(value ?? "") });
    const fields = [
      field("budget.cost", "Dollars", budget?.cost),
      field("budget.tokens", "Tokens", budget?.tokens),
      field("budget.seconds", "Seconds", budget?.seconds),
      field("agentBudget.cost", "Dollars each", agentBudget?.cost),
      field("agentBudget.tokens", "Tokens each", agentBudget?.tokens),
      field("agentBudget.seconds", "Seconds each", agentBudget?.seconds),
    ];
    return {
      title: "Resume",
      action: "Resume",
      note: "Changed values replace the current limits. An empty field means no limit.",
      fields,
      submit: async (values) => {
        const changed = fields.filter(({ name, value }) => (values[name] ?? "") !== value);
        const said = Object.fromEntries(changed.map(({ name }) => [name, values[name] ?? null]));
        await this.props.api.post(`${this.base}/resume`, asked(said));
        await this.load();
      },
    };
  }

  resume = () => {
    const { status } = this.state;
    if (status.status === "paused" && status.reason) this.ask(this.resuming(status));
    else this.do("resume");
  };

  steering(agent) {
    return {
      title: `Message ${agent}`,
      action: "Send",
      fields: [{ name: "text", label: "Message", kind: "text", required: true }],
      submit: ({ text }) => this.props.api.post(`${this.base}/steer`, { agent, text }),
    };
  }

  destroying() {
    return {
      title: "Destroy the swarm",
      note: "Its agents stop. What they wrote stays in the session.",
      action: "Destroy",
      danger: true,
      submit: () => this.props.api.send("DELETE", this.base),
      after: () => go(SWARMS),
    };
  }

  // Showing

  render(_, { status, error, dialog }) {
    if (!status) {
      return html`<main class="scroll"><section class="swarm">
        <${Notice} text=${error} kind="wrong" />${!error && html`<${Empty}>Loading…<//>`}
      </section></main>`;
    }
    return html`<main class="scroll"><section class="swarm" aria-label=${`Swarm ${status.name}`}>
      ${this.head(status)}
      <${Notice} text=${error} kind="wrong" />
      <${Notice} text=${status.reason} />
      ${this.gauges(status)}
      <h2>Agents</h2>
      <ul class="agents">${status.agents.map((agent) => this.agent(agent))}</ul>
      ${status.result && html`<h2>Result</h2><pre class="plain card outcome" tabindex="0">${status.result}</pre>`}
      ${this.events(status)}
      ${dialog && html`<${Ask} ...${dialog} close=${() => this.ask(null)} tell=${this.props.tell} />`}
    </section></main>`;
  }

  head({ name, status, left, task, agents, sessionId, branch }) {
    const { connection } = this.state;
    const state = stateOf({ status, left });
    const stands = status === "paused" || status === "created" || left;
    return html`<header class="head">
      <div class="title">
        <h1>${name} <${Chip} kind=${STATUS[state] ?? ""}>${state}<//></h1>
        <p class="task">${task}</p>
      </div>
      <div class="row">
        <span class="link ${connection}" role="status">${connection}</span>
        ${this.props.allowed && LIVE.has(status) && html`
          ${stands && html`<${Button} kind="primary" label=${status === "created" ? "Start" : "Resume"} onClick=${this.resume} />`}
          ${!stands && html`<${Button} label="Pause" onClick=${() => this.do("pause")} />`}
          <${Button} label="Scale" onClick=${() => this.ask(this.scaling())} />
          <${Button} kind="danger" label="Stop" onClick=${() => this.do("stop")} />`}
        ${agents.length > 1 && html`<a class="button" href=${ofComparison(sessionId, agents.map(({ branch }) => branch))}>Compare</a>`}
        <a class="button" href=${ofSession(sessionId, "tree", [["branch", branch]])}>Session</a>
        ${this.props.allowed && !LIVE.has(status) && html`
          <${Button} kind="danger" label="Destroy" onClick=${() => this.ask(this.destroying())} />`}
      </div>
    </header>`;
  }

  gauges({ progress, budget, budgetUsed, cost, tokens, seconds, strategy }) {
    const limited = Object.values(budget ?? {}).some((limit) => limit !== null);
    const facts = [["Cost", money(cost)], ["Tokens", taken(tokens)], ["Time", duration(seconds)], ["Strategy", strategy]];
    return html`<div class="gauges">
      <div class="card">
        <div class="row"><b>Progress</b><span class="gap"></span><span>${percent(progress)}</span></div>
        <${Meter} part=${progress} label="Progress" />
      </div>
      <div class="card">
        <div class="row"><b>Budget</b><span class="gap"></span><span>${!limited ? "none" : budgetUsed === null ? "–" : percent(budgetUsed)}</span></div>
        <${Meter} part=${budgetUsed} level=${levelOf(budgetUsed)} label="Budget used" />
      </div>
      <dl class="card facts-list">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    </div>`;
  }

  agent({ id, branch, role, task, status, text, error, cost, tokens, seconds, attempts, model }) {
    const saying = text === null && this.state.saying.get(id);
    return html`<li class="card" key=${id}>
      <div class="row">
        <b>${id}</b><${Chip} kind=${STATUS[status] ?? ""}>${status}<//><span class="fact">${role}</span>
        <span class="gap"></span><a href=${ofBranch(this.state.status.sessionId, branch)}>${branch}</a>
      </div>
      <p class="first">${task}</p>
      ${saying && html`<div class="says live" tabindex="0"><pre class="plain">${saying}</pre></div>`}
      ${text && html`<pre class="plain says" tabindex="0">${text.length > MOST ? `${text.slice(0, MOST)}…` : text}</pre>`}
      ${error && html`<p class="wrong-text">${error}</p>`}
      <div class="row">
        <span class="facts">
          <span>${money(cost)}</span><span>${taken(tokens)} tokens</span><span>${duration(seconds)}</span>
          ${attempts > 1 && html`<span>${attempts} attempts</span>`}
          ${model && html`<span>${model}</span>`}
        </span>
        <span class="gap"></span>
        ${this.props.allowed && this.state.status.here && status === "running" && html`
          <${Button} kind="small" label="Steer" onClick=${() => this.ask(this.steering(id))} />`}
      </div>
    </li>`;
  }

  events({ agents }) {
    const { events, agent } = this.state;
    const shown = events.filter((event) => !agent || event.agent === agent).slice(-SHOWN).reverse();
    return html`
      <div class="row"><h2>Events</h2><span class="gap"></span>
        <select aria-label="Filter by agent" value=${agent} onChange=${(event) => this.setState({ agent: event.target.value })}>
          <option value="">all agents</option>
          ${agents.map(({ id }) => html`<option value=${id}>${id}</option>`)}
        </select>
      </div>
      <ol class="events card" tabindex="0" aria-label="Events, newest first">
        ${shown.map((event) => html`<li class=${event.type} key=${event.seq}>
          <time>${clock(event.time)}</time><b>${event.agent ?? "swarm"}</b><span>${words(event)}</span>
        </li>`)}
        ${!shown.length && html`<li><span>No events yet.</span></li>`}
      </ol>`;
  }
}
