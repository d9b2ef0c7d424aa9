// One swarm: its agents, what they have spent, and what they are doing, live. Its events are read from where they are
// kept, so a page that comes late sees the whole story.
import { at } from "./api.js";
import { Meter } from "./charts.js";
import { Ask } from "./dialogs.js";
import { Button, Chip, Component, Empty, Notice, html } from "./html.js";
import { clock, duration, money, plural, short } from "./figures.js";
import { STATUS, levelOf } from "./swarms.js";
import { Stream } from "./stream.js";

const LOOK = 1500, MOST = 400; // events that are kept in sight
const NOISY = new Set(["text_delta", "thinking"]);

const words = (event) => {
  switch (event.type) {
    case "agent_start": return `begins: ${event.task}`;
    case "agent_complete": return `is done, ${money(event.cost)}, ${short(event.tokens)} tokens, ${duration(event.seconds)}`;
    case "agent_fail": return `failed after ${plural(event.attempts, "attempt")}: ${event.error}`;
    case "turn_start": return `turn ${event.number}`;
    case "turn_end": return `turn ${event.number} ended, ${money(event.cost)}`;
    case "tool_call_start": return `calls ${event.tool} ${JSON.stringify(event.arguments ?? {}).slice(0, 120)}`;
    case "tool_call_end": return `${event.tool} ${event.ok ? "answered" : "failed"}: ${event.text ?? ""}`;
    case "budget": return `budget ${event.level}: ${Math.round((event.used / (event.limit || 1)) * 100)} % of ${event.kind}${event.scope === "swarm" ? "" : `, ${event.scope}`}`;
    case "branch": return `branch ${event.name}`;
    case "swarm": return [event.status, event.reason].filter(Boolean).join(": ");
    case "error": return event.message;
    default: return event.delta ?? "";
  }
};

export class SwarmView extends Component {
  state = { status: null, events: [], saying: {}, error: null, agent: "", dialog: null, connection: "waiting" };

  componentDidMount() {
    this.base = at("swarms", this.props.id);
    this.load();
    this.listen();
  }
  componentWillUnmount() {
    this.gone = true;
    this.stream?.stop();
    clearTimeout(this.timer);
    clearTimeout(this.soon);
  }

  listen() {
    this.heard = [];
    this.stream?.stop();
    this.stream = new Stream(this.props.api, `${this.base}/events`, {
      heard: (event) => {
        this.heard.push(event.data);
        this.soon ??= setTimeout(() => this.settle(), 60);
      },
      resync: () => {
        this.setState({ events: [], saying: {} });
        this.listen();
      },
      state: (connection) => this.setState({ connection }),
      after: 0,
    });
  }

  settle() {
    this.soon = undefined;
    const heard = this.heard.splice(0);
    const saying = { ...this.state.saying };
    for (const event of heard) {
      if (event.type === "text_delta") saying[event.agent] = ((saying[event.agent] ?? "") + event.delta).slice(-2000);
      else if (event.type === "turn_start") saying[event.agent] = "";
    }
    const told = heard.filter((event) => !NOISY.has(event.type));
    this.setState({ saying, events: [...this.state.events, ...told].slice(-MOST) });
    if (told.length) this.load();
  }

  async load() {
    clearTimeout(this.timer);
    try {
      const status = await this.props.api.get(this.base);
      if (this.gone) return;
      this.setState({ status, error: null });
      if (status.status === "running") this.timer = setTimeout(() => this.load(), LOOK);
    } catch (error) {
      if (!this.gone) this.setState({ error: error.message });
    }
  }

  do = async (action, body) => {
    try {
      await this.props.api.post(`${this.base}/${action}`, body);
      await this.load();
    } catch (error) {
      this.setState({ error: error.message });
    }
  };

  askScale = () =>
    this.setState({ dialog: {
      title: "Scale", action: "Scale",
      fields: [{ name: "agents", label: "Agents", kind: "number", min: 1, value: String(this.state.status.agents.length), required: true }],
      submit: async ({ agents }) => { await this.props.api.post(`${this.base}/scale`, { agents: Number(agents) }); await this.load(); },
    } });

  askSteer = (agent) =>
    this.setState({ dialog: {
      title: `Say something to ${agent.id}`, action: "Say",
      fields: [{ name: "text", label: "What", kind: "text", required: true }],
      submit: ({ text }) => this.props.api.post(`${this.base}/steer`, { agent: agent.id, text }),
    } });

  askDestroy = () =>
    this.setState({ dialog: {
      title: "Destroy the swarm", action: "Destroy", danger: true, note: "Its agents stop. What they wrote stays in the session.",
      submit: async () => { await this.props.api.send("DELETE", this.base); this.props.go("/swarms"); },
    } });

  render({ allowed }, { status, events, saying, error, agent, dialog, connection }) {
    if (!status) return html`<main class="scroll"><section class="swarms"><${Notice} text=${error} kind="wrong" />${!error && html`<${Empty}>Loading…<//>`}</section></main>`;
    const here = (branch) => `#/s/${encodeURIComponent(status.sessionId)}/talk?branch=${encodeURIComponent(branch)}`;
    const shown = events.filter((event) => !agent || event.agent === agent);
    const live = status.status === "running" || status.status === "paused" || status.status === "created";
    return html`<main class="scroll"><section class="swarm" aria-label=${`Swarm ${status.name}`}>
      <header class="head"><div class="title"><h1>${status.name} <${Chip} kind=${STATUS[status.status] ?? ""}>${status.status}<//></h1><p class="task">${status.task}</p></div>
        <div class="row"><span class="link ${connection}" role="status">${connection === "live" ? "live" : connection === "ended" ? "ended" : "waiting"}</span>
        ${allowed && live && html`
          ${status.status === "paused" || status.status === "created" ? html`<${Button} kind="primary" label="Resume" onClick=${() => this.do("resume")} />` : html`<${Button} label="Pause" onClick=${() => this.do("pause")} />`}
          <${Button} label="Scale" onClick=${this.askScale} />
          <${Button} kind="danger" label="Stop" onClick=${() => this.do("stop")} />`}
        ${status.agents.length > 1 && html`<a class="button" href=${`#/s/${encodeURIComponent(status.sessionId)}/compare?${new URLSearchParams(status.agents.map((one) => ["branch", one.branch]))}`}>Compare</a>`}
        <a class="button" href=${`#/s/${encodeURIComponent(status.sessionId)}/tree`}>Session</a>
        ${allowed && !live && html`<${Button} kind="danger" label="Destroy" onClick=${this.askDestroy} />`}</div>
      </header>
      <${Notice} text=${error} kind="wrong" />
      <${Notice} text=${status.reason} />
      <div class="gauges">
        <div class="card"><div class="row"><b>Progress</b><span class="gap"></span><span>${Math.round(status.progress * 100)} %</span></div><${Meter} part=${status.progress} label="Progress" /></div>
        <div class="card"><div class="row"><b>Budget</b><span class="gap"></span><span>${status.budgetUsed === null ? "none" : `${Math.round(status.budgetUsed * 100)} %`}</span></div><${Meter} part=${status.budgetUsed} level=${levelOf(status.budgetUsed)} label="Budget used" /></div>
        <dl class="card facts-list"><div><dt>Cost</dt><dd>${money(status.cost)}</dd></div><div><dt>Tokens</dt><dd>${short(status.tokens)}</dd></div><div><dt>Time</dt><dd>${duration(status.seconds)}</dd></div><div><dt>Strategy</dt><dd>${status.strategy}</dd></div></dl>
      </div>
      <h2>Agents</h2>
      <ul class="agents">
        ${status.agents.map((one) => html`<li class="card ${one.status}" key=${one.id}>
          <div class="row"><b>${one.id}</b><${Chip} kind=${STATUS[one.status] ?? ""}>${one.status}<//><span class="fact">${one.role}</span><span class="gap"></span><a href=${here(one.branch)}>${one.branch}</a></div>
          <p class="first">${one.task}</p>
          ${(one.text || saying[one.id] || saying[one.branch]) && html`<pre class="plain says">${(one.text ?? saying[one.id] ?? saying[one.branch]).slice(-600)}</pre>`}
          ${one.error && html`<p class="wrong-text">${one.error}</p>`}
          <div class="row"><span class="facts"><span>${money(one.cost)}</span><span>${short(one.tokens)} tokens</span><span>${duration(one.seconds)}</span>${one.attempts > 1 && html`<span>${one.attempts} attempts</span>`}${one.model && html`<span>${one.model}</span>`}</span><span class="gap"></span>
            ${allowed && one.status === "running" && html`<${Button} kind="small" label="Steer" onClick=${() => this.askSteer(one)} />`}</div>
        </li>`)}
      </ul>
      ${status.result && html`<h2>Result</h2><pre class="plain card outcome" tabindex="0">${status.result}</pre>`}
      <div class="row"><h2>Events</h2><span class="gap"></span>
        <select aria-label="Agent whose events are shown" value=${agent} onChange=${(event) => this.setState({ agent: event.target.value })}><option value="">all agents</option>${status.agents.map((one) => html`<option value=${one.id}>${one.id}</option>`)}</select></div>
      <ol class="events card" tabindex="0" aria-label="Events, newest first">
        ${shown.slice(-200).reverse().map((event) => html`<li class=${event.type} key=${event.seq}><time>${clock(event.time)}</time><b>${event.agent ?? "swarm"}</b><span>${words(event)}</span></li>`)}
        ${!shown.length && html`<li><span>Nothing has happened yet.</span></li>`}
      </ol>
      ${dialog && html`<${Ask} ...${dialog} close=${() => this.setState({ dialog: null })} />`}
    </section></main>`;
  }
}
