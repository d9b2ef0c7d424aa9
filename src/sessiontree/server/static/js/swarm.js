// One swarm: its agents, costs and live events. Events are read from the stored log, so a page that opens late shows
// all of them.
import { SWARMS, go, linkToBranch, linkToComparison, linkToSession } from "./addresses.js";
import { joinPath } from "./api.js";
import { Meter } from "./charts.js";
import { FormDialog } from "./dialogs.js";
import { Button, Chip, Component, Empty, Notice, html } from "./html.js";
import { formatClock, formatCost, formatDuration, formatTokens, pluralize } from "./format.js";
import { STATUS, buildRequest, getLevel, getState } from "./swarms.js";
import { Stream } from "./stream.js";

const POLL = 1500, SETTLE = 60; // milliseconds: between polls, and delay to handle events together
const MAX_EVENTS = 400, MAX_SHOWN_EVENTS = 200;
const MAX_TEXT = 2000; // characters of an agent's text
const NOISY = new Set(["text_delta", "thinking"]);
const LIVE = new Set(["created", "running", "paused"]);

const formatPercent = (part) => `${Math.round(part * 100)} %`;

/** Return the text of an event. */
const describeEvent = (event) => {
  switch (event.type) {
    case "agent_start": return `started: ${event.task}`;
    case "agent_complete": return `finished, ${formatCost(event.cost)}, ${formatTokens(event.tokens)} tokens, ${formatDuration(event.seconds)}`;
    case "agent_fail": return `failed after ${pluralize(event.attempts, "attempt")}: ${event.error}`;
    case "turn_start": return `turn ${event.number}`;
    case "turn_end": return `turn ${event.number} ended, ${formatCost(event.cost)}`;
    case "tool_call_start": return `calls ${event.tool} ${JSON.stringify(event.arguments ?? {}).slice(0, 120)}`;
    case "tool_call_end": return `${event.tool} ${event.ok ? "finished" : "failed"}: ${event.text ?? ""}`;
    case "budget": return `budget ${event.level}: ${formatPercent(event.used / (event.limit || 1))} of ${event.kind}`;
    case "branch": return `branch ${event.name}`;
    case "swarm": return [event.status, event.reason].filter(Boolean).join(": ");
    case "error": return event.message;
    default: return "";
  }
};

export class SwarmView extends Component {
  state = { status: null, events: [], streamed: new Map(), error: null, agent: "", dialog: null, connection: "waiting" };

  componentDidMount() {
    this.base = joinPath("swarms", this.props.id);
    this.load();
    this.listen();
  }
  componentWillUnmount() {
    this.isUnmounted = true;
    this.stream.stop();
    clearTimeout(this.timer);
    clearTimeout(this.settleTimer);
  }

  listen() {
    this.pending = [];
    this.stream = new Stream(this.props.api, `${this.base}/events`, {
      after: 0,
      onEvent: ({ data }) => {
        this.pending.push(data);
        this.settleTimer ??= setTimeout(() => this.settle(), SETTLE);
      },
      onResync: () => {
        this.setState({ events: [], streamed: new Map() });
        this.listen();
      },
      onState: (connection) => this.setState({ connection }),
    });
  }

  settle() {
    this.settleTimer = undefined;
    const events = this.pending.splice(0);
    const streamed = new Map(this.state.streamed);
    for (const { type, agent, delta } of events) {
      if (type === "text_delta") streamed.set(agent, ((streamed.get(agent) ?? "") + delta).slice(-MAX_TEXT));
      else if (type === "turn_start") streamed.set(agent, "");
    }
    const shown = events.filter((event) => !NOISY.has(event.type));
    this.setState({ streamed, events: [...this.state.events, ...shown].slice(-MAX_EVENTS) });
    if (shown.length) this.load();
  }

  async load() {
    clearTimeout(this.timer);
    try {
      const status = await this.props.api.get(this.base);
      if (this.isUnmounted) return;
      this.setState({ status, error: null });
      if (status.status === "running" && !status.left) this.timer = setTimeout(() => this.load(), POLL);
    } catch (error) {
      if (this.isUnmounted) return;
      this.setState({ error: error.message });
      if (error.isTemporary) this.timer = setTimeout(() => this.load(), POLL);
    }
  }

  // Actions

  runAction = async (action) => {
    try {
      await this.props.api.post(`${this.base}/${action}`);
      await this.load();
    } catch (error) {
      this.props.notify(error.message, "wrong"); // the next poll clears `error`
    }
  };

  ask = (dialog) => this.setState({ dialog });

  buildScaleDialog() {
    const now = String(this.state.status.wanted);
    return {
      title: "Change the number of agents",
      action: "Scale",
      fields: [{ name: "agents", label: "Agents", kind: "number", min: 1, value: now, required: true }],
      submit: async ({ agents }) => {
        await this.props.api.post(`${this.base}/scale`, { agents: Number(agents) });
        await this.load();
      },
    };
  }

  /** Build the dialog for a swarm that paused with a reason: it may need a larger budget. */
  buildResumeDialog({ budget, agentBudget }) {
    const buildField = (name, label, value) => ({ name, label, kind: "number", min: 0, step: "any", value: String(value ?? "") });
    const fields = [
      buildField("budget.cost", "Dollars", budget?.cost),
      buildField("budget.tokens", "Tokens", budget?.tokens),
      buildField("budget.seconds", "Seconds", budget?.seconds),
      buildField("agentBudget.cost", "Dollars per agent", agentBudget?.cost),
      buildField("agentBudget.tokens", "Tokens per agent", agentBudget?.tokens),
      buildField("agentBudget.seconds", "Seconds per agent", agentBudget?.seconds),
    ];
    return {
      title: "Resume",
      action: "Resume",
      note: "Changed values replace the current limits. Leave a field empty for no limit.",
      fields,
      submit: async (values) => {
        const changed = fields.filter(({ name, value }) => (values[name] ?? "") !== value);
        const request = Object.fromEntries(changed.map(({ name }) => [name, values[name] ?? null]));
        await this.props.api.post(`${this.base}/resume`, buildRequest(request));
        await this.load();
      },
    };
  }

  resume = () => {
    const { status } = this.state;
    if (status.status === "paused" && status.reason) this.ask(this.buildResumeDialog(status));
    else this.runAction("resume");
  };

  buildSteerDialog(agent) {
    return {
      title: `Message ${agent}`,
      action: "Send",
      fields: [{ name: "text", label: "Message", kind: "text", required: true }],
      submit: ({ text }) => this.props.api.post(`${this.base}/steer`, { agent, text }),
    };
  }

  buildDestroyDialog() {
    return {
      title: "Destroy this swarm?",
      note: "Its agents stop. Their entries stay in the session.",
      action: "Destroy",
      danger: true,
      submit: () => this.props.api.send("DELETE", this.base),
      after: () => go(SWARMS),
    };
  }

  // Rendering

  render(_, { status, error, dialog }) {
    if (!status) {
      return html`<main class="scroll"><section class="swarm">
        <${Notice} text=${error} kind="wrong" />${!error && html`<${Empty}>Loading…<//>`}
      </section></main>`;
    }
    return html`<main class="scroll"><section class="swarm" aria-label=${`Swarm ${status.name}`}>
      ${this.renderHead(status)}
      <${Notice} text=${error} kind="wrong" />
      <${Notice} text=${status.reason} />
      ${this.renderGauges(status)}
      <h2>Agents</h2>
      <ul class="agents">${status.agents.map((agent) => this.renderAgent(agent))}</ul>
      ${status.result && html`<h2>Result</h2><pre class="plain card outcome" tabindex="0">${status.result}</pre>`}
      ${this.renderEvents(status)}
      ${dialog && html`<${FormDialog} ...${dialog} close=${() => this.ask(null)} notify=${this.props.notify} />`}
    </section></main>`;
  }

  renderHead({ name, status, left, task, agents, sessionId, branch }) {
    const { connection } = this.state;
    const state = getState({ status, left });
    const isIdle = status === "paused" || status === "created" || left;
    return html`<header class="head">
      <div class="title">
        <h1>${name} <${Chip} kind=${STATUS[state] ?? ""}>${state}<//></h1>
        <p class="task">${task}</p>
      </div>
      <div class="row">
        <span class="link ${connection}" role="status">${connection === "waiting" ? "connecting" : connection}</span>
        ${this.props.allowed && LIVE.has(status) && html`
          ${isIdle && html`<${Button} kind="primary" label=${status === "created" ? "Start" : "Resume"} onClick=${this.resume} />`}
          ${!isIdle && html`<${Button} label="Pause" onClick=${() => this.runAction("pause")} />`}
          <${Button} label="Scale" onClick=${() => this.ask(this.buildScaleDialog())} />
          <${Button} kind="danger" label="Stop" onClick=${() => this.runAction("stop")} />`}
        ${agents.length > 1 && html`<a class="button" href=${linkToComparison(sessionId, agents.map(({ branch }) => branch))}>Compare</a>`}
        <a class="button" href=${linkToSession(sessionId, "tree", [["branch", branch]])}>Session</a>
        ${this.props.allowed && !LIVE.has(status) && html`
          <${Button} kind="danger" label="Destroy" onClick=${() => this.ask(this.buildDestroyDialog())} />`}
      </div>
    </header>`;
  }

  renderGauges({ progress, budget, budgetUsed, cost, tokens, seconds, strategy }) {
    const limited = Object.values(budget ?? {}).some((limit) => limit !== null);
    const facts = [["Cost", formatCost(cost)], ["Tokens", formatTokens(tokens)], ["Time", formatDuration(seconds)], ["Strategy", strategy]];
    return html`<div class="gauges">
      <div class="card">
        <div class="row"><b>Progress</b><span class="gap"></span><span>${formatPercent(progress)}</span></div>
        <${Meter} part=${progress} label="Progress" />
      </div>
      <div class="card">
        <div class="row"><b>Budget</b><span class="gap"></span><span>${!limited ? "none" : budgetUsed === null ? "–" : formatPercent(budgetUsed)}</span></div>
        <${Meter} part=${budgetUsed} level=${getLevel(budgetUsed)} label="Budget used" />
      </div>
      <dl class="card facts-list">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    </div>`;
  }

  renderAgent({ id, branch, role, task, status, text, error, cost, tokens, seconds, attempts, model }) {
    const streamed = text === null && this.state.streamed.get(id);
    return html`<li class="card" key=${id}>
      <div class="row">
        <b>${id}</b><${Chip} kind=${STATUS[status] ?? ""}>${status}<//><span class="fact">${role}</span>
        <span class="gap"></span><a href=${linkToBranch(this.state.status.sessionId, branch)}>${branch}</a>
      </div>
      <p class="first">${task}</p>
      ${streamed && html`<div class="agent-text live" tabindex="0"><pre class="plain">${streamed}</pre></div>`}
      ${text && html`<pre class="plain agent-text" tabindex="0">${text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}…` : text}</pre>`}
      ${error && html`<p class="wrong-text">${error}</p>`}
      <div class="row">
        <span class="facts">
          <span>${formatCost(cost)}</span><span>${formatTokens(tokens)} tokens</span><span>${formatDuration(seconds)}</span>
          ${attempts > 1 && html`<span>${attempts} attempts</span>`}
          ${model && html`<span>${model}</span>`}
        </span>
        <span class="gap"></span>
        ${this.props.allowed && this.state.status.here && status === "running" && html`
          <${Button} kind="small" label="Steer" onClick=${() => this.ask(this.buildSteerDialog(id))} />`}
      </div>
    </li>`;
  }

  renderEvents({ agents }) {
    const { events, agent } = this.state;
    const shown = events.filter((event) => !agent || event.agent === agent).slice(-MAX_SHOWN_EVENTS).reverse();
    return html`
      <div class="row"><h2>Events</h2><span class="gap"></span>
        <select aria-label="Filter by agent" value=${agent} onChange=${(event) => this.setState({ agent: event.target.value })}>
          <option value="">All agents</option>
          ${agents.map(({ id }) => html`<option value=${id}>${id}</option>`)}
        </select>
      </div>
      <ol class="events card" tabindex="0" aria-label="Events, newest first">
        ${shown.map((event) => html`<li class=${event.type} key=${event.seq}>
          <time>${formatClock(event.time)}</time><b>${event.agent ?? "swarm"}</b><span>${describeEvent(event)}</span>
        </li>`)}
        ${!shown.length && html`<li><span>No events yet.</span></li>`}
      </ol>`;
  }
}
