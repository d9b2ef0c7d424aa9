// Experiments: the form that starts one, its progress and its results. "Not enough data" is a valid result.
import { go, ofBranch, ofComparison, ofExperiment } from "./addresses.js";
import { at } from "./api.js";
import { Intervals, Meter } from "./charts.js";
import { Button, Chip, Component, Empty, Field, Models, Notice, NoRuns, html, valuesOf } from "./html.js";
import { figure, measured, plural } from "./figures.js";
import { own } from "./rows.js";

const LOOK = 700; // milliseconds between two looks at a running experiment
const SCORERS = { exact: "is exactly", matches: "matches the pattern", judge: "is judged by the model" };
const MEASURES = ["cost", "tokens", "time"];
const LEVELS = ["off", "minimal", "low", "medium", "high", "xhigh"];
const LETTERS = [..."ABCDEFGH"];

export class Experiments extends Component {
  state = { results: [], running: null, error: null, lost: null, arms: 2, scorers: [], busy: false };

  componentDidMount() {
    this.load();
    this.watch();
  }
  componentDidUpdate(before) {
    if (before.chosen === this.props.chosen) return;
    this.setState({ running: null, lost: null });
    this.watch();
  }
  componentWillUnmount() {
    clearTimeout(this.timer);
    this.gone = true;
  }

  async load() {
    const { session, api } = this.props;
    try {
      const { experiments } = await api.all(`${session.base}/experiments`, "experiments");
      this.setState({ results: [...experiments].reverse() });
    } catch (error) {
      this.setState({ error: error.message });
    }
  }

  /** Look at the chosen experiment until it has ended; a look that fails is followed by another. */
  watch = async () => {
    clearTimeout(this.timer);
    const { chosen, api, session } = this.props;
    const look = (this.look = {});
    if (!chosen) return undefined;
    let running, lost = null;
    try {
      running = await api.get(at("experiments", chosen));
    } catch (error) {
      lost = error;
    }
    if (this.gone || this.look !== look) return undefined;
    const ours = running?.sessionId === session.info.id; // a fork tells of what goes on elsewhere as it was then
    this.setState(lost ? { lost } : { running: ours ? running : null, lost });
    if (lost ? lost.passes : ours && running.status === "running") this.timer = setTimeout(this.watch, LOOK);
    else if (running) await Promise.all([this.load(), session.guard(() => session.loadBranches())]);
    return undefined;
  };

  start = async (event) => {
    event.preventDefault();
    const { session, api } = this.props;
    this.setState({ busy: true, error: null });
    try {
      const body = { ...asked(valuesOf(event.target), this.state), ...(session.end ? { at: session.end } : {}) };
      const { id } = await api.post(`${session.base}/experiments`, body);
      this.setState({ busy: false });
      if (!this.gone) go(ofExperiment(session.id, id));
    } catch (error) {
      if (this.gone) this.props.tell(`New A/B run: ${error.message}`, "wrong");
      else this.setState({ busy: false, error: error.message });
    }
  };

  stop = async () => {
    try {
      await this.props.api.post(`${at("experiments", this.props.chosen)}/stop`);
    } catch (error) {
      this.props.tell(error.message, "wrong");
    }
  };

  render({ session, me, allowed, promote, chosen }, { results, running, error, lost }) {
    const runs = running?.status === "running";
    const shown = running?.result ?? results.find((result) => result.id === chosen);
    const others = results.filter((result) => result.id !== shown?.id);
    const failed = running?.status === "failed" && (running.error ?? "the experiment did not finish");
    return html`<div class="scroll"><section class="experiments" aria-label="A/B">
      <${Notice} text=${error ?? lost?.message} kind="wrong" />
      ${runs && html`<div class="card progress" role="status">
        <div class="row">
          <b>${running.done} of ${plural(running.total, "run")}</b><span class="gap"></span>
          <${Button} kind="small danger" label="Stop" onClick=${this.stop} />
        </div>
        <${Meter} part=${running.total ? running.done / running.total : 0} label="Progress" />
      </div>`}
      <${Notice} text=${failed} kind="wrong" />
      ${shown && html`<${Result} result=${shown} running=${runs} session=${session} promote=${promote} />`}
      ${!allowed && (session.info.readOnly ? html`<${Empty}>${session.info.readOnly}<//>` : html`<${NoRuns} me=${me} />`)}
      ${allowed && !runs && html`<details class="card" open=${!shown}><summary><h2>New A/B run</h2></summary>${this.form()}</details>`}
      ${others.length > 0 && html`<section class="card" aria-label="Results">
        <h2>${shown ? "Others" : "Results"}</h2>
        <ul class="plainlist">${others.map((result) => html`<${Listed} session=${session} result=${result} />`)}</ul>
      </section>`}
    </section></div>`;
  }

  form() {
    const { session, models } = this.props, { arms, scorers, busy } = this.state;
    const from = session.branch ? ` (${session.branch})` : "";
    const change = (state) => () => this.setState(state);
    const addScorer = (event) => {
      this.setState({ scorers: [...scorers, event.target.value] });
      event.target.value = "";
    };
    return html`<form class="ab" onSubmit=${this.start}>
      <p class="note">Each arm runs several times from the end of the shown path${from}, every run on a branch of its own.</p>
      <div class="arms">
        ${LETTERS.slice(0, arms).map((letter) => html`<${ArmFields} key=${letter} letter=${letter} models=${models} />`)}
      </div>
      <div class="row">
        <${Button} kind="small" label="Add an arm" disabled=${arms >= LETTERS.length} onClick=${change({ arms: arms + 1 })} />
        ${arms > 2 && html`<${Button} kind="small" label="Remove the last arm" onClick=${change({ arms: arms - 1 })} />`}
      </div>
      <div class="row fields">
        <${Field} label="Runs of each arm"><input name="runs" type="number" min="1" max="100" defaultValue="5" required /><//>
        <${Field} label="Metric"><select name="metric">
          ${[...MEASURES, ...scorers].map((name) => html`<option value=${name}>${name}</option>`)}
        </select><//>
        <${Field} label="Add a scorer"><select value="" onChange=${addScorer}>
          <option value="">…</option>
          ${Object.keys(SCORERS).filter((kind) => !scorers.includes(kind)).map((kind) => html`<option value=${kind}>The answer ${SCORERS[kind]}</option>`)}
        </select><//>
      </div>
      ${scorers.map((kind) => html`<div class="row fields" key=${kind}>
        <${Field} label=${`The answer ${SCORERS[kind]}`}>
          ${kind === "judge"
            ? html`<${Models} name="by.judge" models=${models} placeholder="session default" />`
            : html`<input name=${`by.${kind}`} required autocomplete="off" />`}
        <//>
        ${kind === "judge" && html`<${Field} label="By the rubric"><input name="by.rubric" placeholder="default rubric" autocomplete="off" /><//>`}
        <${Button} kind="small" label="Remove" onClick=${change({ scorers: scorers.filter((one) => one !== kind) })} />
      </div>`)}
      <div class="row end"><${Button} type="submit" kind="primary" label=${busy ? "…" : "Run"} disabled=${busy} /></div>
    </form>`;
  }
}

const ArmFields = ({ letter, models }) => html`<fieldset class="arm"><legend>Arm ${letter}</legend>
  <${Field} label="Name"><input name=${`${letter}.name`} defaultValue=${letter} required autocomplete="off" /><//>
  <${Field} label="Prompt"><textarea name=${`${letter}.prompt`} rows="3" placeholder="Prompt text"></textarea><//>
  <${Field} label="Model"><${Models} name=${`${letter}.model`} models=${models} placeholder="session default" /><//>
  <details><summary>Thinking and system prompt</summary>
    <${Field} label="Thinking"><select name=${`${letter}.thinking`}>
      <option value="">Session default</option>${LEVELS.map((level) => html`<option>${level}</option>`)}
    </select><//>
    <${Field} label="System prompt"><textarea name=${`${letter}.system`} rows="2" placeholder="session default"></textarea><//>
  </details>
</fieldset>`;

/** What the form says, as the server takes it. */
const asked = (values, { arms, scorers }) => {
  const scored = {
    exact: { text: values["by.exact"] },
    matches: { pattern: values["by.matches"] },
    judge: { model: values["by.judge"], rubric: values["by.rubric"] },
  };
  return {
    arms: LETTERS.slice(0, arms).map((letter) => {
      const own = Object.entries(values).filter(([name]) => name.startsWith(`${letter}.`));
      return Object.fromEntries(own.map(([name, value]) => [name.slice(2), value]));
    }),
    runs: Number(values.runs),
    metric: values.metric,
    scorers: scorers.map((kind) => ({ kind, ...scored[kind] })),
  };
};

/** A reason as a sentence, its numbers as short as they may be. */
const sentence = (reason) => {
  const words = reason
    .replace(/^not enough data:?\s*/i, "")
    .replace(/\d+\.\d{3,}/g, (number) => String(Number(Number(number).toPrecision(3))));
  return words && `${words[0].toUpperCase()}${words.slice(1)}${/[.!?]$/.test(words) ? "" : "."}`;
};

const Listed = ({ session, result }) => html`<li>
  <a href=${ofExperiment(session.id, result.id)}>${result.arms.map(({ arm }) => arm).join(" and ")}</a>
  <span class="fact">${plural(result.runs.length, "run")}, by ${result.metric}</span>
  ${result.winner ? html`<${Chip} kind="branch">${result.winner} is best<//>` : html`<${Chip} kind="label">not enough data<//>`}
</li>`;

const Verdict = ({ result, promote }) =>
  result.winner
    ? html`<p class="verdict won">
        <b>${result.winner}</b> is best. <span>${sentence(result.reason)}</span>
        ${promote && result.best && html`
          <${Button} kind="primary" label=${`Promote the best run of ${result.winner}`} onClick=${() => promote(result.best)} />`}
      </p>`
    : html`<p class="verdict undecided"><b>Not enough data.</b> <span>${sentence(result.reason)}</span></p>`;

/** An arm's estimate as the chart takes it. */
const interval = (result, metric) => ({ arm, metrics }) => {
  const { mean, low, high, n = 0 } = own(metrics, metric) ?? {};
  const range = low === null || low === undefined ? "too few runs for an interval" : `${figure(metric, low)} to ${figure(metric, high)}`;
  const best = arm === result.winner && metric === result.metric;
  return { name: arm, mean, low, high, text: figure(metric, mean), range: `n = ${n}, ${range}`, best };
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
      ${metrics.map((metric) => html`<${Intervals} title=${metric} items=${result.arms.map(interval(result, metric))} />`)}
    </div>
    <p class="more">A dot is the mean, a line the interval that holds the true mean with 95 % confidence.</p>
    <details>
      <summary>${plural(result.runs.length, "run")}</summary>
      <${Runs} result=${result} session=${session} promote=${promote} />
    </details>
    ${compared.length > 1 && html`<p><a href=${ofComparison(session.id, compared)}>Compare what they wrote</a></p>`}
  </section>`;
};

const Runs = ({ result, session, promote }) => {
  const scores = [...new Set(result.runs.flatMap((run) => Object.keys(run.scores)))];
  const titles = ["Arm", "Branch", "Cost", "Tokens", "Time", ...scores, "Answer", ""];
  return html`<div class="wide" tabindex="0" role="region" aria-label="Runs"><table>
    <thead><tr>${titles.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${result.runs.map((run) => html`<tr class=${run.ok ? "" : "failed"}>
      <th scope="row">${run.arm}</th>
      <td><a href=${ofBranch(session.id, run.branch)}>${run.branch}</a></td>
      ${["cost", "tokens"].map((name) => html`<td>${figure(name, measured(run, name, run[name]))}</td>`)}
      <td>${figure("time", run.seconds)}</td>
      ${scores.map((name) => html`<td>${figure(name, own(run.scores, name))}</td>`)}
      <td class="answer">${run.ok ? (run.text ?? "").slice(0, 160) : run.error}</td>
      <td>${promote && run.ok && html`<${Button} kind="small" label="Promote" onClick=${() => promote(run.branch)} />`}</td>
    </tr>`)}</tbody>
  </table></div>`;
};
