// A/B: a form that starts runs of several arms from one place, their progress, and what they tell. "Not enough data" is
// an answer like any other and is shown as one.
import { at } from "./api.js";
import { Intervals, Meter } from "./charts.js";
import { Button, Chip, Component, Empty, Field, Notice, html, valuesOf } from "./html.js";
import { figure, money, plural } from "./figures.js";

const LOOK = 700; // milliseconds between two looks at a running experiment
const SCORERS = [["exact", "is exactly"], ["matches", "matches the pattern"], ["judge", "judged by a model"]];
const MEASURES = ["cost", "tokens", "time"];
const LETTERS = "ABCDEFGH";

export class Experiments extends Component {
  state = { results: [], running: null, error: null, arms: [{}, {}], scorers: [], busy: false };

  componentDidMount() {
    this.load();
    this.watch();
  }
  componentDidUpdate(before) {
    if (before.chosen !== this.props.chosen) this.watch();
  }
  componentWillUnmount() {
    clearTimeout(this.timer);
    this.gone = true;
  }

  async load() {
    const { session, api } = this.props;
    try {
      const { experiments } = await api.get(`${session.base}/experiments`);
      this.setState({ results: [...experiments].reverse() });
    } catch (error) {
      this.setState({ error: error.message });
    }
  }

  /** Look at the chosen experiment until it has ended. */
  watch = async () => {
    clearTimeout(this.timer);
    const { chosen, api, session } = this.props;
    if (!chosen) return this.setState({ running: null });
    try {
      const running = await api.get(at("experiments", chosen));
      if (this.gone || this.props.chosen !== chosen) return undefined;
      this.setState({ running });
      if (running.status === "running") this.timer = setTimeout(this.watch, LOOK);
      else await Promise.all([this.load(), session.guard(() => session.loadBranches())]);
    } catch (error) {
      if (error.status !== 404) this.setState({ error: error.message });
    }
    return undefined;
  };

  start = async (event) => {
    event.preventDefault();
    const { session, api, go } = this.props;
    const values = valuesOf(event.target);
    const arms = this.state.arms.map((_, index) => {
      const arm = { name: values[`name${index}`] ?? LETTERS[index] };
      for (const key of ["prompt", "model", "thinking", "system"]) if (values[`${key}${index}`]) arm[key] = values[`${key}${index}`];
      return arm;
    });
    const scorers = this.state.scorers.map((kind, index) => ({ kind, ...scorerValue(kind, values[`score${index}`]) }));
    this.setState({ busy: true, error: null });
    try {
      const body = { arms, runs: Number(values.runs ?? 5), metric: values.metric ?? "cost", scorers, ...(session.end ? { at: session.end } : {}) };
      const { id } = await api.post(`${session.base}/experiments`, body);
      this.setState({ busy: false });
      go(`/s/${encodeURIComponent(session.id)}/ab?experiment=${encodeURIComponent(id)}`);
    } catch (error) {
      this.setState({ busy: false, error: error.message });
    }
  };

  stop = async () => {
    try {
      await this.props.api.post(`${at("experiments", this.props.chosen)}/stop`);
    } catch (error) {
      this.setState({ error: error.message });
    }
  };

  render({ session, allowed, promote, chosen, models, go }, { results, running, error, arms, scorers, busy }) {
    const shown = running?.result ?? results.find((result) => result.id === chosen) ?? null;
    const others = results.filter((result) => result.id !== shown?.id);
    return html`<div class="scroll"><section class="experiments" aria-label="A/B">
      <${Notice} text=${error} kind="wrong" />
      ${running?.status === "running" && html`<div class="card progress" role="status">
        <div class="row"><b>${running.done} of ${plural(running.total, "run")}</b><span class="gap"></span><${Button} kind="small danger" label="Stop" onClick=${this.stop} /></div>
        <${Meter} part=${running.total ? running.done / running.total : 0} label="Progress" />
      </div>`}
      ${running?.status === "failed" && html`<${Notice} text=${running.error ?? "the experiment failed"} kind="wrong" />`}
      ${shown && html`<${Result} result=${shown} running=${running?.status === "running"} session=${session} promote=${promote} go=${go} />`}
      ${running?.status !== "running" && (allowed
        ? html`<details class="card" open=${!shown}><summary><h2>New A/B run</h2></summary>${this.form(session, arms, scorers, models, busy)}</details>`
        : html`<${Empty}>This server runs no agents; <code>sessiontree serve --allow-run</code> does.<//>`)}
      ${others.length > 0 && html`<section class="card"><h2>${shown ? "Others" : "Results"}</h2>
        <ul class="plainlist">${others.map((result) => html`<li><a href=${`#/s/${encodeURIComponent(session.id)}/ab?experiment=${encodeURIComponent(result.id)}`}>${result.arms.map(({ arm }) => nameOf(arm)).join(" and ")}</a>
          <span class="fact">${plural(result.runs.length, "run")}, by ${result.metric}</span>${verdict(result)}</li>`)}</ul></section>`}
    </section></div>`;
  }

  form(session, arms, scorers, models, busy) {
    const metrics = [...MEASURES, ...new Set(scorers)];
    return html`<form class="ab" onSubmit=${this.start}>
      <p class="note">Each arm runs several times from the end of the path that is shown${session.branch ? ` (${session.branch})` : ""}, every run on a branch of its own.</p>
      <div class="arms">${arms.map((arm, index) => html`<fieldset class="arm" key=${index}><legend>Arm ${LETTERS[index]}</legend>
        <${Field} label="Name"><input name=${`name${index}`} defaultValue=${LETTERS[index]} required autocomplete="off" /><//>
        <${Field} label="Prompt"><textarea name=${`prompt${index}`} rows="3" placeholder="What is asked"></textarea><//>
        <${Field} label="Model"><input name=${`model${index}`} list="models" placeholder="the session's" autocomplete="off" spellcheck=${false} /><//>
        <details><summary>Thinking and system prompt</summary>
        <${Field} label="Thinking"><select name=${`thinking${index}`}><option value="">the session's</option>${["off", "minimal", "low", "medium", "high", "xhigh"].map((level) => html`<option>${level}</option>`)}</select><//>
        <${Field} label="System prompt"><textarea name=${`system${index}`} rows="2" placeholder="the session's"></textarea><//></details>
      </fieldset>`)}</div>
      <datalist id="models">${models.map((name) => html`<option value=${name}></option>`)}</datalist>
      <div class="row">
        <${Button} kind="small" label="Add an arm" disabled=${arms.length >= LETTERS.length} onClick=${() => this.setState({ arms: [...arms, {}] })} />
        ${arms.length > 2 && html`<${Button} kind="small" label="Take the last away" onClick=${() => this.setState({ arms: arms.slice(0, -1) })} />`}
      </div>
      <div class="row fields">
        <${Field} label="Runs of each arm"><input name="runs" type="number" min="1" max="100" defaultValue="5" required /><//>
        <${Field} label="Metric"><select name="metric">${metrics.map((name) => html`<option value=${name}>${name}</option>`)}</select><//>
        <${Field} label="Add a scorer"><select aria-label="Add a scorer" value="" onChange=${(event) => { const kind = event.target.value; event.target.value = ""; if (kind) this.setState({ scorers: [...scorers, kind] }); }}>
          <option value="">…</option>${SCORERS.filter(([kind]) => !scorers.includes(kind)).map(([kind, words]) => html`<option value=${kind}>${words}</option>`)}</select><//>
      </div>
      ${scorers.map((kind, index) => html`<div class="row fields" key=${kind}>
        <${Field} label=${`The answer ${SCORERS.find(([one]) => one === kind)[1]}`}><input name=${`score${index}`} required placeholder=${kind === "judge" ? "a model, and a rubric if you like: model | rubric" : ""} /><//>
        <${Button} kind="small" label="Remove" onClick=${() => this.setState({ scorers: scorers.filter((one) => one !== kind) })} />
      </div>`)}
      <div class="row end"><${Button} type="submit" kind="primary" label=${busy ? "…" : "Run"} disabled=${busy} /></div>
    </form>`;
  }
}

const scorerValue = (kind, value) => {
  if (kind === "exact") return { text: value };
  if (kind === "matches") return { pattern: value };
  const [model, rubric] = value.split("|").map((part) => part.trim());
  return { model, ...(rubric ? { rubric } : {}) };
};

/** A reason as a sentence, its numbers as short as they may be. */
const sentence = (reason) => {
  const words = reason.replace(/\d+\.\d{3,}/g, (number) => String(Number(Number(number).toPrecision(3))));
  return words && `${words[0].toUpperCase()}${words.slice(1)}${/[.!?]$/.test(words) ? "" : "."}`;
};

const nameOf = (arm) => (typeof arm === "string" ? arm : arm.name);

const verdict = (result) => (result.winner ? html`<${Chip} kind="branch">${result.winner} is best<//>` : html`<${Chip} kind="label">not enough data<//>`);

/** The run of an arm that is best by the metric of the experiment. */
const bestRun = (result, arm) => {
  const value = (run) => ({ cost: run.cost, tokens: run.tokens, time: run.seconds })[result.metric] ?? run.scores?.[result.metric];
  const runs = result.runs.filter((run) => run.arm === arm && run.ok && value(run) !== null && value(run) !== undefined);
  return runs.sort((a, b) => (result.better === "higher" ? value(b) - value(a) : value(a) - value(b)))[0] ?? result.runs.find((run) => run.arm === arm && run.ok);
};

const Result = ({ result, running, session, promote, go }) => {
  const metrics = [...new Set(result.arms.flatMap(({ metrics: known }) => Object.keys(known)))];
  metrics.sort((a, b) => (b === result.metric) - (a === result.metric));
  const scores = [...new Set(result.runs.flatMap((run) => Object.keys(run.scores ?? {})))];
  return html`<section class="card result" aria-label="Result">
    <header class="row"><h2>${result.arms.map(({ arm }) => nameOf(arm)).join(" and ")}</h2><span class="fact">by ${result.metric}, ${result.better} is better</span></header>
    ${!running && (result.winner
      ? html`<p class="verdict won"><b>${result.winner}</b> is best. <span>${sentence(result.reason)}</span>
          ${promote && result.best && html`<${Button} kind="primary" label=${`Promote the best run of ${result.winner}`} onClick=${() => promote(result.best)} />`}</p>`
      : html`<p class="verdict undecided"><b>Not enough data.</b> <span>${sentence(result.reason.replace(/^not enough data:?\s*/i, ""))}</span></p>`)}
    <div class="charts">
      ${metrics.map((metric) => html`<${Intervals} title=${metric} items=${result.arms.map(({ arm, metrics: known }) => {
        const { mean, low, high, n } = known[metric] ?? {};
        const range = low === null || low === undefined ? "too few runs for an interval" : `${figure(metric, low)} to ${figure(metric, high)}`;
        return { name: nameOf(arm), mean, low, high, text: figure(metric, mean), range: `n = ${n ?? 0}, ${range}`, best: nameOf(arm) === result.winner && metric === result.metric };
      })} />`)}
    </div>
    <p class="more">A dot is the mean, a line the interval that holds the true mean with 95 % confidence.</p>
    <details><summary>${plural(result.runs.length, "run")}</summary><div class="wide" tabindex="0" role="region" aria-label="Runs"><table>
      <thead><tr>${["Arm", "Branch", "Cost", "Tokens", "Time", ...scores, "Answer", ""].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${result.runs.map((run) => html`<tr class=${run.ok ? "" : "failed"}>
        <th scope="row">${run.arm}</th>
        <td>${run.branch ? html`<a href=${`#/s/${encodeURIComponent(session.id)}/talk?branch=${encodeURIComponent(run.branch)}`}>${run.branch}</a>` : "–"}</td>
        <td>${money(run.cost)}</td><td>${figure("tokens", run.tokens)}</td><td>${figure("time", run.seconds)}</td>
        ${scores.map((name) => html`<td>${figure(name, run.scores?.[name])}</td>`)}
        <td class="answer">${run.ok ? (run.text ?? "").slice(0, 160) : run.error}</td>
        <td>${promote && run.ok && run.branch && html`<${Button} kind="small" label="Promote" onClick=${() => promote(run.branch)} />`}</td>
      </tr>`)}</tbody>
    </table></div></details>
    <div class="row"><${Button} kind="small" label="Compare the branches" onClick=${() => go(`/s/${encodeURIComponent(session.id)}/compare?${new URLSearchParams(result.arms.map(({ arm }) => ["branch", bestRun(result, nameOf(arm))?.branch]).filter(([, name]) => name))}`)} /></div>
  </section>`;
};
