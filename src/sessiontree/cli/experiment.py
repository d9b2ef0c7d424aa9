"""Experiments from the shell: several ways on from one place, each many times, and which of them is better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, get_args

import click

from sessiontree.cli.agent_setup import RunningController, StderrUi, cwd_option, extension_option, print_notice
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
from sessiontree.cli.budget import budget_options, build_budget
from sessiontree.cli.live import ProgressTable
from sessiontree.cli.output import bold, dim, echo, echo_json, escape_line, print_table, warn
from sessiontree.cli.permissions import load_options, permission_options, print_denials
from sessiontree.config import ThinkingLevel
from sessiontree.core.number_text import format_dollars, pluralize
from sessiontree.errors import SessionTreeError

if TYPE_CHECKING:
    from sessiontree.commands.controller import SessionController
    from sessiontree.config import PermissionMode
    from sessiontree.hooks.bus import Hooks
    from sessiontree.model.base import Model
    from sessiontree.session import Session
    from sessiontree.swarm.experiment.experiment import (
        Arm,
        Experiment,
        ExperimentOptions,
        ExperimentResult,
        ExperimentRun,
        RunProgress,
    )
    from sessiontree.swarm.experiment.scoring import Scorer
    from sessiontree.swarm.experiment.statistics import Estimate

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

    given = ctx.params.get("session") or next(iter(ctx.args), None)
    try:
        found = [] if given is None else list_experiments(open_session(given, read_only=True))
    except (SessionTreeError, OSError):
        return []
    return [result.name for result in found if result.name.startswith(incomplete)]


@app.command(epilog=EPILOG)
@session_argument
@place_option("--at", default="HEAD", show_default=True, help="The place that every run goes on from.")
@click.option("--arm", "arms", metavar="NAME=PROMPT", multiple=True, help="An arm, and what is said there.")
@click.option("--arm-model", "arm_models", metavar="NAME=MODEL", multiple=True, help="The model of an arm.")
@click.option("--arm-thinking", "arm_levels", metavar="NAME=LEVEL", multiple=True, help="The thinking level of an arm.")
@click.option("--arm-system", "arm_systems", metavar="NAME=TEXT", multiple=True, help="The system prompt of an arm.")
@click.option("--prompt", metavar="TEXT", help="What is said in arms that say nothing else.")
@click.option("--model", metavar="NAME", help="The model of arms that name none.")
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True, help="How many of each arm.")
@click.option(
    "--score",
    "scores",
    metavar="KIND",
    multiple=True,
    help="Score answers: exact=TEXT, matches=PATTERN, judge, or judge=RUBRIC; may be given again.",
)
@click.option("--judge", metavar="NAME", help="The model that judges; the one of the arms by default.")
@click.option("--metric", metavar="NAME", help="What decides: cost, tokens, time or a score; the first score, or cost.")
@click.option("--name", metavar="NAME", help="A name for the experiment and its branches; ab-1 and so on by default.")
@click.option("--concurrency", type=click.IntRange(1), default=4, show_default=True, help="How many runs at once.")
@budget_options
@click.option("--seed", type=int, default=0, show_default=True, help="Decides the order of the runs.")
@click.option(
    "--tools", metavar="NAMES", help="Which built-in tools they may use, with commas between; all by default."
)
@click.option("--no-tools", is_flag=True, help="They may use none of them.")
@cwd_option
@permission_options
@extension_option
@click.option(
    "--resume",
    metavar="NAME",
    shell_complete=_complete_experiment,
    help="Go on with an experiment: make what is missing or failed.",
)
@click.option("--promote", "promoted", is_flag=True, help="If there is a winner, go on from its best run.")
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
    runs: int,
    scores: tuple[str, ...],
    judge: str | None,
    metric: str | None,
    name: str | None,
    concurrency: int,
    max_cost: float | None,
    max_tokens: int | None,
    max_time: float | None,
    seed: int,
    tools: str | None,
    no_tools: bool,
    cwd: str | None,
    permission_mode: PermissionMode | None,
    allow: tuple[str, ...],
    extensions: tuple[str, ...],
    resume: str | None,
    promoted: bool,
    as_json: bool,
) -> int:
    """Find out which of several ways on is better, by many runs of each.

    Every run is on a branch of its own; the current branch stays where it is. A winner is named only when the runs
    tell one. Without an arm, the experiments that the session has are shown.
    """
    named = any((arms, arm_models, arm_levels, arm_systems))
    if resume is not None and any(
        (named, prompt, model, scores, judge, metric, name, _is_any_given("at", "runs", "seed"))
    ):
        planned = "arms, models, prompts, scores, names, places, runs or seeds"
        raise click.UsageError(f"--resume goes on with what was planned: give no {planned}")
    if not named and resume is None:
        if promoted or any((prompt, model, scores, judge, metric, name)):
            raise click.UsageError("there are no arms: --arm or --arm-model names one, and --resume an experiment")
        return _list_experiments(session, as_json=as_json)
    from sessiontree import config
    from sessiontree.cli.prompt import select_model, select_tools
    from sessiontree.commands.controller import SessionController
    from sessiontree.hooks.bus import Hooks
    from sessiontree.swarm.experiment.experiment import Experiment

    ways = _parse_arms(arms, arm_models, arm_levels, arm_systems, prompt)
    limits = build_budget(max_cost, max_tokens, max_time)
    chosen, settings, hooks = select_tools(tools, no_tools), config.load(), Hooks()
    options = load_options(settings, permission_mode, allow, tools=chosen, cwd=cwd)
    with open_session(session) as changed:

        def resolve_model(name: str | None) -> Model:
            return select_model(name, changed.head, settings, hooks)

        usual = resolve_model(model) if resume is None and any(way.model is None for way in ways) else None
        scorers = [
            _parse_scorer(given, lambda: resolve_model(judge) if judge else usual or resolve_model(model))
            for given in scores
        ]
        shown = _ExperimentProgress(quiet=as_json)

        def build_experiment(desk: SessionController) -> Experiment:
            given: ExperimentOptions = {
                "model": usual,
                "model_of": resolve_model,
                "tools": desk.tools,
                "hooks": hooks,
                "settings": settings,
                "concurrency": concurrency,
                "budget": limits,
                "watch": shown.update,
                "permissions": options.permissions,
            }
            if resume is not None:
                return Experiment.open(changed, resume, **given)
            decides = metric or (scorers[0].name if scorers else "cost")
            return Experiment.create(
                changed, at, ways, runs=runs, scorers=scorers, metric=decides, seed=seed, name=name, **given
            )

        desk = SessionController(
            changed,
            options=options,
            hooks=hooks,
            ui=StderrUi(),
        )
        result = _run_experiment(RunningController(desk, extensions), build_experiment, shown, promoted=promoted)
        warn_set_aside(changed)
    print_denials(options.permissions)
    _print_result(result, as_json=as_json)
    return 0 if all(run.ok for run in result.runs) else MODEL_FAILED


# What is asked for


def _is_any_given(*options: str) -> bool:
    """Whether any of these was, though it may have the value that it has by default."""
    source = click.get_current_context().get_parameter_source
    return any(source(option) is not click.core.ParameterSource.DEFAULT for option in options)


def _parse_arms(
    prompts: Sequence[str], models: Sequence[str], levels: Sequence[str], systems: Sequence[str], prompt: str | None
) -> list[Arm]:
    """The arms, in the order in which they are first named."""
    from sessiontree.swarm.experiment.experiment import Arm

    said: dict[str, dict[str, str]] = {}
    for field, option, given in (
        ("prompt", "--arm", prompts),
        ("model", "--arm-model", models),
        ("thinking", "--arm-thinking", levels),
        ("system", "--arm-system", systems),
    ):
        for one in given:
            name, sign, value = one.partition("=")
            if not (name and sign and value):
                raise click.UsageError(f"{option} takes NAME=VALUE, not {one!r}")
            if field in said.setdefault(name, {}):
                raise click.UsageError(f"{option} is given twice for {name!r}")
            said[name][field] = value
    for name, fields in said.items():
        level = fields.get("thinking")
        if level is not None and level not in THINKING_LEVELS:
            raise click.UsageError(
                f"there is no thinking level {level!r} for {name!r}: choose one of {', '.join(THINKING_LEVELS)}"
            )
    return [
        Arm(
            name=name,
            prompt=fields.get("prompt", prompt),
            model=fields.get("model"),
            thinking=fields.get("thinking"),
            system=fields.get("system"),
        )
        for name, fields in said.items()
    ]


def _parse_scorer(given: str, judge: Callable[[], Model]) -> Scorer:
    from sessiontree.swarm.experiment.scoring import RUBRIC, exact, judge_with, matches

    kind, sign, value = given.partition("=")
    match kind:
        case "exact" if sign:
            return exact(value)
        case "matches" if sign:
            return matches(value)
        case "judge":
            return judge_with(judge(), value or RUBRIC)
        case _:
            raise click.UsageError(f"--score takes exact=TEXT, matches=PATTERN, judge or judge=RUBRIC, not {given!r}")


# Carrying it out


class _ExperimentProgress:
    """How far the experiment is, for those who wait."""

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
    """A run in a few words."""
    if not run.ok:
        return f"{run.branch} failed: {run.error}"
    metrics = [*(name for name in ("cost", "tokens") if name in run.measured), "time", *run.scores]
    return f"{run.branch} {', '.join(f'{name} {_format_metric(name, run.get_value(name))}' for name in metrics)}"


def _run_experiment(
    working: RunningController,
    build_experiment: Callable[[SessionController], Experiment],
    display: _ExperimentProgress,
    *,
    promoted: bool,
) -> ExperimentResult:
    import asyncio

    async def run() -> ExperimentResult:
        async with working as desk:
            experiment = build_experiment(desk)
            try:
                async with display.progress:
                    result = await experiment.run()
            except asyncio.CancelledError:
                warn(f"`sessiontree ab … --resume {experiment.name}` goes on with what is left")
                raise
            if promoted and result.best is not None:
                await _promote(desk.session, result, desk.hooks)
            return result

    working.controller.hooks.listen(print_notice)
    return run_async(run())


async def _promote(session: Session, result: ExperimentResult, hooks: Hooks) -> None:
    """Go on from the winner's best run; what is said of the others is what the experiment found."""
    from sessiontree.ops.merge import promote

    assert result.best is not None
    others = [session.branch(run.branch) for run in result.runs]
    rows = "\n".join("  ".join(row) for row in _build_result_rows(result))
    summary = f"Experiment {result.name}: {result.winner} won, {result.reason}.\n\n{rows}"
    await promote(
        session.branch(result.best),
        session.head,
        [*others, session.branch(result.name)],
        hooks=hooks,
        summary=summary,
    )


# Telling


def _list_experiments(session: str, *, as_json: bool) -> int:
    from sessiontree.swarm.experiment.results import list_experiments

    found = list_experiments(open_session(session, read_only=True))
    for result in found:
        _print_result(result, as_json=as_json)
    if not found and not as_json:
        echo(dim("no experiments"))
    return 0


def _format_tokens(count: float) -> str:
    return pluralize(count, "token", shown=f"{count:,.0f}")


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
            took = f"{_format_tokens(arm.failed_tokens)}, {format_dollars(arm.failed_cost)}"
            echo(dim(escape_line(f"failed runs of {arm.arm} took {took}, not counted above")))
    if result.judging_tokens:
        took = f"{_format_tokens(result.judging_tokens)}, {format_dollars(result.judging_cost)}"
        echo(dim(f"scoring took {took}, not counted above"))
    if result.winner is None:
        echo(bold("no winner:"), escape_line(result.reason))
    else:
        echo(bold(f"winner: {escape_line(result.winner)}"), dim(escape_line(f"({result.reason})")))
        echo(dim(escape_line(f"its best run is {result.best}")))


def _build_result_rows(result: ExperimentResult) -> list[list[str]]:
    metrics = list(result.arms[0].metrics) if result.arms else []
    rows = [["arm", "runs", "failed", *map(escape_line, metrics)]]
    for arm in result.arms:
        figures = [_format_estimate(name, arm.metrics[name]) for name in metrics]
        rows.append([escape_line(arm.arm), str(arm.n), str(arm.failed), *figures])
    return rows


def _format_estimate(metric: str, found: Estimate) -> str:
    """A mean and its interval."""
    if found.mean is None:
        return "-"
    if found.low is None or found.high is None:
        return _format_metric(metric, found.mean)
    low, high = _format_metric(metric, found.low), _format_metric(metric, found.high)
    return f"{_format_metric(metric, found.mean)} ({low} to {high})"


def _format_metric(metric: str, value: float | None) -> str:
    if value is None:
        return "-"
    match metric:
        case "cost":
            return format_dollars(value)
        case "tokens":
            return f"{value:,.0f}"
        case "time":
            return f"{round(value, 1) + 0:.1f}s"  # not -0.0
        case _:
            return f"{value:.3g}"
