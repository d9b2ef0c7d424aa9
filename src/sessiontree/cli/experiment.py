"""Commands that continue one place in several ways: `fan-out` once each, `ab` many times to find the best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, get_args

import click
import msgspec

from sessiontree.cli.agent_setup import (
    AgentFlags,
    RunningController,
    agent_options,
    budget_options,
    build_budget,
    print_denials,
    print_notice,
)
from sessiontree.cli.app import (
    MODEL_FAILED,
    app,
    format_id,
    json_option,
    open_session,
    place_option,
    run_async,
    session_argument,
    warn_set_aside,
)
from sessiontree.cli.file_options import print_merged_files
from sessiontree.cli.output import (
    ProgressTable,
    bold,
    dim,
    echo,
    echo_json,
    escape_line,
    escape_lines,
    print_table,
    warn,
)
from sessiontree.config import ThinkingLevel, load_config
from sessiontree.core.number_text import format_dollars, pluralize
from sessiontree.errors import SessionTreeError

if TYPE_CHECKING:
    from sessiontree.agent.fan_out import Attempt, Variant
    from sessiontree.hooks.bus import Hooks
    from sessiontree.model.base import Model
    from sessiontree.session import Session
    from sessiontree.slash_commands.controller import SessionController
    from sessiontree.swarm.experiment.experiment import (
        Arm,
        Experiment,
        ExperimentOptions,
        ExperimentResult,
        ExperimentRun,
        PlanOptions,
        RunProgress,
    )
    from sessiontree.swarm.experiment.scoring import Scorer
    from sessiontree.swarm.experiment.statistics import Design, Estimate

THINKING_LEVELS = get_args(ThinkingLevel)

EPILOG = """\
\b
Examples:
  sessiontree ab @ --arm short="In one word." --arm long="With reasons." --metric tokens
  sessiontree ab @ --prompt "Fix it." --arm-model small=openai:gpt-5-mini \\
    --arm-model large=openai:gpt-5.5 --runs 10 --score judge
  sessiontree ab @ --resume ab-1 --promote
"""


def _complete_experiment(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from sessiontree.swarm.experiment.results import list_experiments

    name = ctx.params.get("session") or next(iter(ctx.args), None)
    try:
        found = [] if name is None else list_experiments(open_session(name, read_only=True))
    except (SessionTreeError, OSError):
        return []
    return [result.name for result in found if result.name.startswith(incomplete)]


@app.command(epilog=EPILOG)
@session_argument
@place_option("--at", default="HEAD", show_default=True, help="Place that every run starts from.")
@click.option("--arm", "arms", metavar="NAME=PROMPT", multiple=True, help="Arm and its prompt; repeatable.")
@click.option("--arm-model", "arm_models", metavar="NAME=MODEL", multiple=True, help="Model of an arm.")
@click.option("--arm-thinking", "arm_levels", metavar="NAME=LEVEL", multiple=True, help="Thinking level of an arm.")
@click.option("--arm-system", "arm_systems", metavar="NAME=TEXT", multiple=True, help="System prompt of an arm.")
@click.option("--prompt", metavar="TEXT", help="Default prompt of the arms.")
@click.option("--model", metavar="NAME", help="Default model of the arms.")
@click.option("--places", metavar="PLACE", multiple=True, help="Another place that runs start from; repeatable.")
@click.option("--runs", type=click.IntRange(1), default=20, show_default=True, help="Maximum number of runs per arm.")
@click.option("--all-runs", is_flag=True, help="Make all runs, even after a winner is found.")
@click.option(
    "--design",
    type=click.Choice(["sequential", "fixed"]),
    default="sequential",
    show_default=True,
    help="Look at any time and add runs, or decide once after a fixed number of runs.",
)
@click.option("--failed-score", type=float, help="Value of the metric that a failed run counts with.")
@click.option(
    "--score",
    "scores",
    metavar="KIND",
    multiple=True,
    help="Score answers: exact=TEXT, matches=PATTERN, judge, or judge=RUBRIC; repeatable.",
)
@click.option("--judge", metavar="NAME", help="Model that judges. Default: the model of the arms.")
@click.option(
    "--metric",
    metavar="NAME",
    help="Metric that decides: cost, tokens, time or a score. Default: the first score, else cost.",
)
@click.option("--name", metavar="NAME", help="Name of the experiment and its branches. Default: ab-1, ab-2, …")
@click.option(
    "--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Maximum number of runs at a time."
)
@budget_options
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for the order of the runs.")
@agent_options
@click.option(
    "--resume",
    metavar="NAME",
    shell_complete=_complete_experiment,
    help="Resume an experiment: make the missing runs.",
)
@click.option("--more", type=click.IntRange(1), metavar="N", help="With --resume: add N runs of every arm.")
@click.option("--retry-failed", is_flag=True, help="With --resume: repeat failed runs.")
@click.option("--promote", "promoted", is_flag=True, help="If there is a winner, continue from its best run.")
@json_option
def ab(
    session: str,
    at: str,
    arms: tuple[str, ...],
    arm_models: tuple[str, ...],
    arm_levels: tuple[str, ...],
    arm_systems: tuple[str, ...],
    prompt: str | None,
    model: str | None,
    places: tuple[str, ...],
    runs: int,
    all_runs: bool,
    design: Design,
    failed_score: float | None,
    scores: tuple[str, ...],
    judge: str | None,
    metric: str | None,
    name: str | None,
    concurrency: int,
    max_cost: float | None,
    max_tokens: int | None,
    max_time: float | None,
    seed: int,
    agents: AgentFlags,
    resume: str | None,
    more: int | None,
    retry_failed: bool,
    promoted: bool,
    as_json: bool,
) -> int:
    """Compare several variants ("arms") from one place by running each many times.

    Every run has its own branch; the current branch does not move. Runs stop as soon as one arm is significantly better
    than the others. You can look at the result at any time and add runs later. Without an arm, list the experiments of
    the session.
    """
    named = any((arms, arm_models, arm_levels, arm_systems))
    if resume is not None and any(
        (named, prompt, model, scores, judge, metric, name, places, _is_any_given("at", "runs", "seed", "design"))
    ):
        fixed = "arms, models, prompts, scores, names, places, designs, runs or seeds"
        raise click.UsageError(f"--resume uses the plan of the experiment: remove options for {fixed}")
    if resume is None and (more is not None or retry_failed):
        raise click.UsageError("--more and --retry-failed need --resume")
    if not named and resume is None:
        if promoted or any((prompt, model, scores, judge, metric, name)):
            raise click.UsageError("no arms: add one with --arm or --arm-model, or resume an experiment with --resume")
        return _list_experiments(session, as_json=as_json)
    from sessiontree.swarm.experiment.experiment import Experiment

    parsed_arms = _parse_arms(arms, arm_models, arm_levels, arm_systems, prompt)
    limits = build_budget(max_cost, max_tokens, max_time)
    setup = agents.set_up()
    setup.hooks.listen(print_notice)
    with open_session(session) as opened:

        def resolve_model(name: str | None) -> Model:
            return setup.select_model(name, opened.head)

        default = resolve_model(model) if resume is None and any(arm.model is None for arm in parsed_arms) else None
        scorers = [
            _parse_scorer(score, lambda: resolve_model(judge) if judge else default or resolve_model(model))
            for score in scores
        ]
        display = _ExperimentProgress(quiet=as_json)

        def build_experiment(controller: SessionController) -> Experiment:
            options: ExperimentOptions = {
                "model": default,
                "model_of": resolve_model,
                "tools": controller.tools,
                "hooks": setup.hooks,
                "settings": setup.settings,
                "concurrency": concurrency,
                "budget": limits,
                "watch": display.update,
                "permissions": setup.permissions,
                "retry_failed": retry_failed,
                "stop_early": not all_runs,
            }
            if resume is not None:
                resumed = Experiment.open(opened, resume, **options)
                if more is not None:
                    resumed.add_runs(more)
                return resumed
            plan: PlanOptions = {
                "runs": runs,
                "scorers": scorers,
                "metric": metric or (scorers[0].name if scorers else "cost"),
                "design": design,
                "failed_score": failed_score,
                "places": places,
                "seed": seed,
                "name": name,
            }
            created = Experiment.create(opened, at, parsed_arms, **plan, **options)
            if not as_json:
                _print_outlook(created.result(), runs)
            return created

        result = _run_experiment(setup.attach(opened), build_experiment, display, promoted=promoted)
        warn_set_aside(opened)
    print_denials(setup.permissions)
    _print_result(result, as_json=as_json)
    return 0 if all(run.ok for run in result.runs) else MODEL_FAILED


# Options


def _is_any_given(*options: str) -> bool:
    """Return whether any of these options was given, even with its default value."""
    source = click.get_current_context().get_parameter_source
    return any(source(option) is not click.core.ParameterSource.DEFAULT for option in options)


def _parse_arms(
    prompts: Sequence[str], models: Sequence[str], levels: Sequence[str], systems: Sequence[str], prompt: str | None
) -> list[Arm]:
    """Return the arms in the order in which the options name them first."""
    from sessiontree.swarm.experiment.experiment import Arm

    named: dict[str, dict[str, str]] = {}
    for field, option, values in (
        ("prompt", "--arm", prompts),
        ("model", "--arm-model", models),
        ("thinking", "--arm-thinking", levels),
        ("system", "--arm-system", systems),
    ):
        for item in values:
            name, sign, value = item.partition("=")
            if not (name and sign and value):
                raise click.UsageError(f"{option}: expected NAME=VALUE, not {item!r}")
            if field in named.setdefault(name, {}):
                raise click.UsageError(f"{option}: arm {name!r} has two values")
            named[name][field] = value
    for name, fields in named.items():
        level = fields.get("thinking")
        if level is not None and level not in THINKING_LEVELS:
            raise click.UsageError(
                f"--arm-thinking: unknown level {level!r} for arm {name!r}; levels: {', '.join(THINKING_LEVELS)}"
            )
    return [
        Arm(
            name=name,
            prompt=fields.get("prompt", prompt),
            model=fields.get("model"),
            thinking=fields.get("thinking"),
            system=fields.get("system"),
        )
        for name, fields in named.items()
    ]


def _parse_scorer(score: str, judge: Callable[[], Model]) -> Scorer:
    from sessiontree.swarm.experiment.scoring import RUBRIC, exact, judge_with, matches

    kind, sign, value = score.partition("=")
    match kind:
        case "exact" if sign:
            return exact(value)
        case "matches" if sign:
            return matches(value)
        case "judge":
            return judge_with(judge(), value or RUBRIC)
        case _:
            raise click.UsageError(
                f"--score: expected exact=TEXT, matches=PATTERN, judge or judge=RUBRIC, not {score!r}"
            )


# Run


class _ExperimentProgress:
    """Shows the progress of an experiment."""

    def __init__(self, *, quiet: bool) -> None:
        self.progress = ProgressTable(self._build_rows, quiet=quiet)
        self._running = Counter[str]()
        self._done: dict[str, list[ExperimentRun]] = {}

    def update(self, step: RunProgress) -> None:
        runs = self._done.setdefault(step.arm, [])
        if step.state == "started":
            self._running[step.arm] += 1
        elif step.run is not None:
            self._running[step.arm] = max(self._running[step.arm] - 1, 0)
            runs.append(step.run)
            self.progress.print_line(f"{step.done} of {step.planned}: {escape_line(_format_run(step.run))}")

    def _build_rows(self) -> list[list[str]]:
        rows = [["arm", "running", "done", "failed", "last"]]
        for arm, runs in self._done.items():
            failed = sum(not run.ok for run in runs)
            last = escape_line(_format_run(runs[-1])) if runs else ""
            rows.append([escape_line(arm), str(self._running[arm]), str(len(runs)), str(failed), last])
        return rows


def _format_run(run: ExperimentRun) -> str:
    """Return one line about a run."""
    if not run.ok:
        return f"{run.branch} failed: {run.error}"
    metrics = [*(name for name in ("cost", "tokens") if name in run.measured), "time", *run.scores]
    return f"{run.branch} {', '.join(f'{name} {_format_metric(name, run.get_value(name))}' for name in metrics)}"


def _run_experiment(
    running: RunningController,
    build_experiment: Callable[[SessionController], Experiment],
    display: _ExperimentProgress,
    *,
    promoted: bool,
) -> ExperimentResult:
    import asyncio

    async def run() -> ExperimentResult:
        async with running as controller:
            experiment = build_experiment(controller)
            try:
                async with display.progress:
                    result = await experiment.run()
            except asyncio.CancelledError:
                warn(f"interrupted; resume with `sessiontree ab … --resume {experiment.name}`")
                raise
            if promoted and result.best is not None:
                await _promote(controller.session, result, controller.hooks)
            return result

    return run_async(run())


async def _promote(session: Session, result: ExperimentResult, hooks: Hooks) -> None:
    """Continue from the winner's best run, with the results of the experiment as the summary."""
    from sessiontree.ops.merge import promote

    assert result.best is not None
    others = [session.branch(run.branch) for run in result.runs]
    rows = "\n".join("  ".join(row) for row in _build_result_rows(result))
    summary = f"Experiment {result.name}: {result.winner} won, {result.reason}.\n\n{rows}"
    outcome = await promote(
        session.branch(result.best),
        session.head,
        [*others, session.branch(result.name)],
        hooks=hooks,
        summary=summary,
        file_settings=load_config().files,
    )
    print_merged_files(outcome)


# Output


def _list_experiments(session: str, *, as_json: bool) -> int:
    from sessiontree.swarm.experiment.results import list_experiments

    found = list_experiments(open_session(session, read_only=True))
    for result in found:
        _print_result(result, as_json=as_json)
    if not found and not as_json:
        echo(dim("no experiments"))
    return 0


def _print_outlook(result: ExperimentResult, runs: int) -> None:
    """Say before the start what the experiment can find out, and whether it repeats another one."""
    from sessiontree.swarm.experiment.statistics import predict_pairs

    if result.design == "sequential":
        examples = [
            f"{share:.0%} against {other:.0%} of right answers needs about {pluralize(needed, 'run')} of each arm"
            for share, other in ((1.0, 0.4), (0.9, 0.5), (0.9, 0.7))
            if (needed := predict_pairs(share, other, arms=len(result.arms))) is not None
        ]
        click.echo(dim(f"up to {pluralize(runs, 'run')} of each arm; for comparison, {'; '.join(examples)}"), err=True)
    if result.repeats:
        warn(
            f"this repeats {', '.join(map(escape_line, result.repeats))}; repeating an experiment until there is a "
            f"winner makes false winners likely: add runs with --resume {escape_line(result.repeats[-1])} --more N"
        )


def _format_spending(tokens: float, cost: float) -> str:
    """Return tokens and cost. A cost of 0 is left out, because it may be unknown."""
    shown = pluralize(tokens, "token", shown=f"{tokens:,.0f}")
    return f"{shown}, {format_dollars(cost)}" if cost else shown


def _print_result(result: ExperimentResult, *, as_json: bool) -> None:
    from sessiontree.swarm.experiment.results import build_result_json

    if as_json:
        echo_json(build_result_json(result))
        return
    done = f"{len(result.runs)} of {pluralize(result.planned, 'run')}"
    echo(bold(escape_line(result.name)), dim(f"{format_id(result.id)} at {format_id(result.at)}, {done}"))
    print_table(_build_result_rows(result))
    for run in result.runs:
        if not run.ok:
            echo("failed:", escape_line(f"{run.branch}: {run.error}"))
    for arm in result.arms:
        if arm.failed_tokens or arm.failed_cost:
            used = _format_spending(arm.failed_tokens, arm.failed_cost)
            echo(dim(escape_line(f"failed runs of {arm.arm} used {used}, not counted above")))
    if result.judging_tokens:
        used = _format_spending(result.judging_tokens, result.judging_cost)
        echo(dim(f"scoring used {used}, not counted above"))
    if result.trend is not None and result.trend.points:
        echo(dim(escape_line(_describe_trend(result))))
    if len(result.places) == 1:
        echo(dim("all runs start from one place; the result says nothing about other tasks"))
    if result.winner is None:
        echo(bold("no winner:"), escape_line(result.reason))
    else:
        echo(bold(f"winner: {escape_line(result.winner)}"), dim(escape_line(f"({result.reason})")))
        echo(dim(escape_line(f"best run: {result.best}")))


def _describe_trend(result: ExperimentResult) -> str:
    """Return the difference between the two best arms with its interval, in words."""
    trend = result.trend
    assert trend is not None
    last = trend.points[-1]
    lead = f"{trend.best} - {trend.second}: {_format_metric(result.metric, last.difference)}"
    if last.low is None or last.high is None:
        return f"{lead}; too few pairs of runs ({last.pairs}) for an interval"
    bounds = f"{_format_metric(result.metric, last.low)} to {_format_metric(result.metric, last.high)}"
    return f"{lead}, 95 % confidence interval {bounds}, after {pluralize(last.pairs, 'pair')} of runs"


def _build_result_rows(result: ExperimentResult) -> list[list[str]]:
    metrics = list(result.arms[0].metrics) if result.arms else []
    rows = [["arm", "runs", "failed", *map(escape_line, metrics)]]
    for arm in result.arms:
        figures = [_format_estimate(name, arm.metrics[name]) for name in metrics]
        rows.append([escape_line(arm.arm), str(arm.n), str(arm.failed), *figures])
    return rows


def _format_estimate(metric: str, estimate: Estimate) -> str:
    """Return the mean and its confidence interval."""
    if estimate.mean is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return _format_metric(metric, estimate.mean)
    low, high = _format_metric(metric, estimate.low), _format_metric(metric, estimate.high)
    return f"{_format_metric(metric, estimate.mean)} ({low} to {high})"


def _format_metric(metric: str, value: float | None) -> str:
    if value is None:
        return "-"
    match metric:
        case "cost":
            return format_dollars(value)
        case "tokens":
            return f"{value:,.0f}"
        case "time":
            return f"{round(value, 1) + 0:.1f}s"  # avoid -0.0
        case _:
            return f"{value:.3g}"


# Fan out


@app.command(
    "fan-out",
    epilog='\b\nExamples:\n  sessiontree fan-out @ --prompt "Try a cache." --prompt "Try a table."\n'
    "  sessiontree fan-out @ --at HEAD~1 --model openai:gpt-5.5 --model anthropic:claude-sonnet-5",
)
@session_argument
@place_option("--at", default="HEAD", show_default=True, help="Place to continue from.")
@click.option("--prompt", "prompts", metavar="TEXT", multiple=True, help="User message to send there; repeatable.")
@click.option("--model", "models", metavar="NAME", multiple=True, help="Model to continue with; repeatable.")
@click.option("--name", "names", metavar="NAME", multiple=True, help="Name of a branch; give one for each, in order.")
@agent_options
@json_option
def fan_out(
    session: str,
    at: str,
    prompts: tuple[str, ...],
    models: tuple[str, ...],
    names: tuple[str, ...],
    agents: AgentFlags,
    as_json: bool,
) -> int:
    """Continue one place in several ways at once, each on its own branch.

    Every prompt goes to every model. Without a prompt, the models answer the last message. The current branch does not
    move; use `promote` to continue from one of the others.
    """
    from sessiontree.agent.fan_out import Variant

    pairs = list(product(prompts or (None,), models or (None,)))
    if names and len(names) != len(pairs):
        raise click.UsageError(f"--name: expected {len(pairs)}, one for each branch, not {len(names)}")
    setup = agents.set_up()
    setup.hooks.listen(print_notice)
    with open_session(session) as opened:
        selected = {name: setup.select_model(name, opened.head) for _, name in pairs}
        variants = [
            Variant(prompt=prompt, model=selected[name], name=branch)
            for (prompt, name), branch in zip(pairs, names or [None] * len(pairs), strict=True)
        ]
        attempts = run_async(_run_variants(setup.attach(opened, model=selected[pairs[0][1]]), at, variants))
        warn_set_aside(opened)
        for attempt, variant in zip(attempts, variants, strict=True):
            _print_attempt(attempt, variant, as_json=as_json)
        print_denials(setup.permissions)
    return 0 if all(attempt.outcome.ok for attempt in attempts) else MODEL_FAILED


async def _run_variants(running: RunningController, at: str, variants: list[Variant]) -> list[Attempt]:
    from sessiontree.agent.fan_out import fan_out as run_fan_out
    from sessiontree.hooks.events import Event, Notice

    def watch(branch: str, event: Event) -> None:
        if isinstance(event, Notice):
            warn(f"{branch}: {event.text}")

    async with running as controller:
        return await run_fan_out(
            controller.session,
            at,
            variants,
            options=msgspec.structs.replace(controller.options, tools=controller.tools, cwd=controller.cwd),
            hooks=controller.hooks,
            watch=watch,
        )


def _print_attempt(attempt: Attempt, variant: Variant, *, as_json: bool) -> None:
    outcome, branch = attempt.outcome, attempt.branch
    model = variant.model if variant.model is None or isinstance(variant.model, str) else variant.model.info.name
    error = str(outcome.error) if outcome.error else "cancelled" if outcome.cancelled else None
    if as_json:
        wire = {"branch": branch.name, "head": branch.leaf, "prompt": variant.prompt, "model": model}
        echo_json({**wire, "text": outcome.text, "error": error})
        return
    echo(bold(escape_line(branch.name)), escape_line(f"{format_id(branch.leaf)}  {model}"))
    click.echo(escape_lines(outcome.text if error is None else f"failed: {error}"))
