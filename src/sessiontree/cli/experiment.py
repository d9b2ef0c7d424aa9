"""The command `ab`, which continues one place in several ways many times, and finds the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, get_args

import click

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
    json_option,
    open_session,
    place_option,
    run_async,
    session_argument,
    warn_set_aside,
)
from sessiontree.cli.experiment_output import ExperimentProgress, build_result_rows, print_outlook, print_result
from sessiontree.cli.file_options import print_merged_files
from sessiontree.cli.output import (
    dim,
    echo,
    warn,
)
from sessiontree.config import ThinkingLevel, load_config
from sessiontree.errors import SessionTreeError

if TYPE_CHECKING:
    from sessiontree.hooks.bus import Hooks
    from sessiontree.model.base import Model
    from sessiontree.session import Session
    from sessiontree.slash_commands.controller import SessionController
    from sessiontree.swarm.experiment.experiment import (
        Arm,
        Experiment,
        ExperimentOptions,
        ExperimentResult,
        PlanOptions,
    )
    from sessiontree.swarm.experiment.scoring import Scorer
    from sessiontree.swarm.experiment.statistics import Design

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
@click.option(
    "--also",
    "others",
    metavar="SESSION",
    multiple=True,
    help="Another session: runs start from a copy of its current branch, too; repeatable.",
)
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
    others: tuple[str, ...],
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
        (
            named,
            prompt,
            model,
            scores,
            judge,
            metric,
            name,
            places,
            others,
            _is_any_given("at", "runs", "seed", "design"),
        )
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
        display = ExperimentProgress(quiet=as_json)

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
            from sessiontree.library import catalog

            also = [catalog.open(other, read_only=True) for other in others]
            plan: PlanOptions = {
                "runs": runs,
                "scorers": scorers,
                "metric": metric or (scorers[0].name if scorers else "cost"),
                "design": design,
                "failed_score": failed_score,
                "places": [*places, *(other.head for other in also)],
                "seed": seed,
                "name": name,
            }
            created = Experiment.create(opened, at, parsed_arms, **plan, **options)
            for other in also:
                other.close()
            if not as_json:
                print_outlook(created.result(), runs)
            return created

        result = _run_experiment(setup.attach(opened), build_experiment, display, promoted=promoted)
        warn_set_aside(opened)
    print_denials(setup.permissions)
    print_result(result, as_json=as_json)
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


def _run_experiment(
    running: RunningController,
    build_experiment: Callable[[SessionController], Experiment],
    display: ExperimentProgress,
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
    rows = "\n".join("  ".join(row) for row in build_result_rows(result))
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


def _list_experiments(session: str, *, as_json: bool) -> int:
    from sessiontree.swarm.experiment.results import list_experiments

    found = list_experiments(open_session(session, read_only=True))
    for result in found:
        print_result(result, as_json=as_json)
    if not found and not as_json:
        echo(dim("no experiments"))
    return 0
