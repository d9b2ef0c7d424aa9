// Experiments: the form that starts one, its progress and its results. "Not enough data" is a valid result.
import { go, linkToBranch, linkToComparison, linkToExperiment } from "./addresses.js";
import { joinPath } from "./api.js";
import { Intervals, Meter, Trend } from "./charts.js";
import { Button, Chip, Component, Empty, Field, ModelInput, RunsUnavailable, Notice, html, readForm } from "./html.js";
import { formatMetric, getMeasured, pluralize } from "./format.js";
import { getOwn } from "./rows.js";

const POLL = 700; // milliseconds
const SCORERS = { exact: "is exactly", matches: "matches the pattern", judge: "is judged by the model" };
const MEASURES = ["cost", "tokens", "time"];
const LEVELS = ["off", "minimal", "low", "medium", "high", "xhigh"];
const LETTERS = [..."ABCDEFGH"];

export class Experiments extends Component {
  state = { results: [], running: null, error: null, loadError: null, arms: 2, scorers: [], busy: false };

  componentDidMount() {
    this.load();
    this.watch();
  }
  componentDidUpdate(before) {
    if (before.chosen === this.props.chosen) return;
    this.setState({ running: null, loadError: null });
    this.watch();
  }
  componentWillUnmount() {
    clearTimeout(this.timer);
    this.isUnmounted = true;
  }

  async load() {
    const { session, api } = this.props;
    try {
      const { experiments } = await api.getAll(`${session.base}/experiments`, "experiments");
      this.setState({ results: [...experiments].reverse() });
    } catch (error) {
      this.setState({ error: error.message });
    }
  }

  /** Poll the chosen experiment until it ends, also after temporary errors. */
  watch = async () => {
    clearTimeout(this.timer);
    const { chosen, api, session } = this.props;
    const poll = (this.poll = {});
    if (!chosen) return undefined;
    let running, loadError = null;
    try {
      running = await api.get(joinPath("experiments", chosen));
    } catch (error) {
      loadError = error;
    }
    if (this.isUnmounted || this.poll !== poll) return undefined;
    const isOurs = running?.sessionId === session.info.id; // a fork also contains the records of the original's experiment
    this.setState(loadError ? { loadError } : { running: isOurs ? running : null, loadError });
    if (loadError ? loadError.isTemporary : isOurs && running.status === "running") this.timer = setTimeout(this.watch, POLL);
    else if (running) await Promise.all([this.load(), session.guard(() => session.loadBranches())]);
    return undefined;
  };

  start = async (event) => {
    event.preventDefault();
    const { session, api } = this.props;
    this.setState({ busy: true, error: null });
    try {
      const body = { ...buildRequest(readForm(event.target), this.state), ...(session.end ? { at: session.end } : {}) };
      const { id } = await api.post(`${session.base}/experiments`, body);
      this.setState({ busy: false });
      if (!this.isUnmounted) go(linkToExperiment(session.id, id));
    } catch (error) {
      if (this.isUnmounted) this.props.notify(`New A/B run: ${error.message}`, "wrong");
      else this.setState({ busy: false, error: error.message });
    }
  };

  stop = async () => {
    try {
      await this.props.api.post(`${joinPath("experiments", this.props.chosen)}/stop`);
    } catch (error) {
      this.props.notify(error.message, "wrong");
    }
  };

  render({ session, me, allowed, promote, chosen }, { results, running, error, loadError }) {
    const isRunning = running?.status === "running";
    const shown = running?.result ?? results.find((result) => result.id === chosen);
    const others = results.filter((result) => result.id !== shown?.id);
    const failed = running?.status === "failed" && (running.error ?? "the experiment did not finish");
    return html`<div class="scroll"><section class="experiments" aria-label="A/B">
      <${Notice} text=${error ?? loadError?.message} kind="wrong" />
      ${isRunning && html`<div class="card progress" role="status">
        <div class="row">
          <b>${running.done} of ${pluralize(running.total, "run")}</b><span class="gap"></span>
          <${Button} kind="small danger" label="Stop" onClick=${this.stop} />
        </div>
        <${Meter} part=${running.total ? running.done / running.total : 0} label="Progress" />
      </div>`}
      <${Notice} text=${failed} kind="wrong" />
      ${shown && html`<${Result} result=${shown} running=${isRunning} session=${session} promote=${promote} />`}
      ${!allowed && (session.info.readOnly ? html`<${Empty}>${session.info.readOnly}<//>` : html`<${RunsUnavailable} me=${me} />`)}
      ${allowed && !isRunning && html`<details class="card" open=${!shown}><summary><h2>New A/B run</h2></summary>${this.renderForm()}</details>`}
      ${others.length > 0 && html`<section class="card" aria-label="Results">
        <h2>${shown ? "Other results" : "Results"}</h2>
        <ul class="plainlist">${others.map((result) => html`<${ResultItem} session=${session} result=${result} />`)}</ul>
      </section>`}
    </section></div>`;
  }

  renderForm() {
    const { session, models } = this.props, { arms, scorers, busy } = this.state;
    const from = session.branch ? ` (${session.branch})` : "";
    const change = (state) => () => this.setState(state);
    const addScorer = (event) => {
      this.setState({ scorers: [...scorers, event.target.value] });
      event.target.value = "";
    };
    return html`<form class="ab" onSubmit=${this.start}>
      <p class="note">Each arm runs several times from the end of the shown path${from}, each run on its own branch.</p>
      <div class="arms">
        ${LETTERS.slice(0, arms).map((letter) => html`<${ArmFields} key=${letter} letter=${letter} models=${models} />`)}
      </div>
      <div class="row">
        <${Button} kind="small" label="Add arm" disabled=${arms >= LETTERS.length} onClick=${change({ arms: arms + 1 })} />
        ${arms > 2 && html`<${Button} kind="small" label="Remove last arm" onClick=${change({ arms: arms - 1 })} />`}
      </div>
      <div class="row fields">
        <${Field} label="Runs per arm, at most"><input name="runs" type="number" min="1" max="1000" defaultValue="20" required /><//>
        <${Field} label="Metric"><select name="metric">
          ${[...MEASURES, ...scorers].map((name) => html`<option value=${name}>${name}</option>`)}
        </select><//>
        <${Field} label="Add scorer"><select value="" onChange=${addScorer}>
          <option value="">Choose…</option>
          ${Object.keys(SCORERS).filter((kind) => !scorers.includes(kind)).map((kind) => html`<option value=${kind}>The answer ${SCORERS[kind]}</option>`)}
        </select><//>
      </div>
      ${scorers.map((kind) => html`<div class="row fields" key=${kind}>
        <${Field} label=${`The answer ${SCORERS[kind]}`}>
          ${kind === "judge"
            ? html`<${ModelInput} name="by.judge" models=${models} placeholder="Session default" />`
            : html`<input name=${`by.${kind}`} required autocomplete="off" />`}
        <//>
        ${kind === "judge" && html`<${Field} label="Rubric"><input name="by.rubric" placeholder="Default rubric" autocomplete="off" /><//>`}
        <${Button} kind="small" label="Remove" onClick=${change({ scorers: scorers.filter((one) => one !== kind) })} />
      </div>`)}
      <div class="row end"><${Button} type="submit" kind="primary" label=${busy ? "…" : "Run"} disabled=${busy} /></div>
    </form>`;
  }
}

const ArmFields = ({ letter, models }) => html`<fieldset class="arm"><legend>Arm ${letter}</legend>
  <${Field} label="Name"><input name=${`${letter}.name`} defaultValue=${letter} required autocomplete="off" /><//>
  <${Field} label="Prompt"><textarea name=${`${letter}.prompt`} rows="3" placeholder="Prompt text"></textarea><//>
  <${Field} label="Model"><${ModelInput} name=${`${letter}.model`} models=${models} placeholder="Session default" /><//>
  <details><summary>Thinking and system prompt</summary>
    <${Field} label="Thinking"><select name=${`${letter}.thinking`}>
      <option value="">Session default</option>${LEVELS.map((level) => html`<option>${level}</option>`)}
    </select><//>
    <${Field} label="System prompt"><textarea name=${`${letter}.system`} rows="2" placeholder="Session default"></textarea><//>
  </details>
</fieldset>`;

/** Build the request from form values. */
const buildRequest = (values, { arms, scorers }) => {
  const scored = {
    exact: { text: values["by.exact"] },
    matches: { pattern: values["by.matches"] },
    judge: { model: values["by.judge"], rubric: values["by.rubric"] },
  };
  return {
    arms: LETTERS.slice(0, arms).map((letter) => {
      const fields = Object.entries(values).filter(([name]) => name.startsWith(`${letter}.`));
      return Object.fromEntries(fields.map(([name, value]) => [name.slice(2), value]));
    }),
    runs: Number(values.runs),
    metric: values.metric,
    scorers: scorers.map((kind) => ({ kind, ...scored[kind] })),
  };
};

/** Format a reason as a sentence with short numbers. */
const formatReason = (reason) => {
  const text = reason
    .replace(/^not enough data:?\s*/i, "")
    .replace(/\d+\.\d{3,}/g, (number) => String(Number(Number(number).toPrecision(3))));
  return text && `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
};

const ResultItem = ({ session, result }) => html`<li>
  <a href=${linkToExperiment(session.id, result.id)}>${result.arms.map(({ arm }) => arm).join(" and ")}</a>
  <span class="fact">${pluralize(result.runs.length, "run")}, by ${result.metric}</span>
  ${result.winner ? html`<${Chip} kind="branch">${result.winner} is best<//>` : html`<${Chip} kind="label">not enough data<//>`}
</li>`;

const Verdict = ({ result, promote }) =>
  result.winner
    ? html`<p class="verdict won">
        <b>${result.winner}</b> is best. <span>${formatReason(result.reason)}</span>
        ${promote && result.best && html`
          <${Button} kind="primary" label=${`Promote the best run of ${result.winner}`} onClick=${() => promote(result.best)} />`}
      </p>`
    : html`<p class="verdict undecided"><b>Not enough data.</b> <span>${formatReason(result.reason)}</span></p>`;

/** Build the chart item of an arm. */
const buildInterval = (result, metric) => ({ arm, metrics }) => {
  const { mean, low, high, n = 0 } = getOwn(metrics, metric) ?? {};
  const range = low === null || low === undefined ? "too few runs for an interval" : `${formatMetric(metric, low)} to ${formatMetric(metric, high)}`;
  const best = arm === result.winner && metric === result.metric;
  return { name: arm, mean, low, high, text: formatMetric(metric, mean), range: `n = ${n}, ${range}`, best };
};

const Result = ({ result, running, session, promote }) => {
  const metrics = [...new Set(result.arms.flatMap(({ metrics: known }) => Object.keys(known)))];
  metrics.sort((a, b) => (b === result.metric) - (a === result.metric));
  const firsts = result.arms.map(({ arm }) => result.runs.find((run) => run.arm === arm && run.ok)?.branch).filter(Boolean);
  const compared = result.best ? [result.best, ...firsts.filter((_, index) => result.arms[index].arm !== result.winner)] : firsts;
  return html`<section class="card result" aria-label="Result">
    <header class="row">
      <h2>${result.arms.map(({ arm }) => arm).join(" and ")}</h2>
      <span class="fact">by ${result.metric}, ${result.better} is better</span>
    </header>
    ${!running && html`<${Verdict} result=${result} promote=${promote} />`}
    <div class="charts">
      ${metrics.map((metric) => html`<${Intervals} title=${metric} items=${result.arms.map(buildInterval(result, metric))} />`)}
    </div>
    <p class="more">Dots are means, lines are 95 % confidence intervals.</p>
    <${ResultTrend} result=${result} />
    ${result.repeats?.length > 0 && html`<${Notice} text=${`This repeats ${result.repeats.join(", ")}. Repeating an experiment until it has a winner makes false winners likely: add runs instead.`} />`}
    ${result.places?.length === 1 && html`<p class="more">All runs start from one place. The result says nothing about other tasks.</p>`}
    <details>
      <summary>${pluralize(result.runs.length, "run")}</summary>
      <${Runs} result=${result} session=${session} promote=${promote} />
    </details>
    ${compared.length > 1 && html`<p><a href=${linkToComparison(session.id, compared)}>Compare the answers</a></p>`}
  </section>`;
};

/** How the difference between the two best arms developed, in a picture and in words. */
const ResultTrend = ({ result }) => {
  const { best, second, points } = result.trend ?? { points: [] };
  if (points.length < 2) return null;
  const { pairs, difference, low, high } = points[points.length - 1];
  const interval = low === null ? "too few for an interval" : `95 % confidence interval ${formatMetric(result.metric, low)} to ${formatMetric(result.metric, high)}`;
  const text = `After ${pluralize(pairs, "pair")} of runs: ${formatMetric(result.metric, difference)}, ${interval}. There is a winner when the band no longer contains 0.`;
  return html`<${Trend} title=${`${result.metric}: ${best} minus ${second}`} points=${points} text=${text} />`;
};

const Runs = ({ result, session, promote }) => {
  const scores = [...new Set(result.runs.flatMap((run) => Object.keys(run.scores)))];
  const titles = ["Arm", "Branch", "Cost", "Tokens", "Time", ...scores, "Answer", ""];
  return html`<div class="wide" tabindex="0" role="region" aria-label="Runs"><table>
    <thead><tr>${titles.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${result.runs.map((run) => html`<tr class=${run.ok ? "" : "failed"}>
      <th scope="row">${run.arm}</th>
      <td><a href=${linkToBranch(session.id, run.branch)}>${run.branch}</a></td>
      ${["cost", "tokens"].map((name) => html`<td>${formatMetric(name, getMeasured(run, name, run[name]))}</td>`)}
      <td>${formatMetric("time", run.seconds)}</td>
      ${scores.map((name) => html`<td>${formatMetric(name, getOwn(run.scores, name))}</td>`)}
      <td class="answer">${run.ok ? (run.text ?? "").slice(0, 160) : run.error}</td>
      <td>${promote && run.ok && html`<${Button} kind="small" label="Promote" onClick=${() => promote(run.branch)} />`}</td>
    </tr>`)}</tbody>
  </table></div>`;
};
