"""Experiments from the shell: several ways on from one place, each many times, and which of them is better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, get_args

import click

from sessiontree.cli.app import (
    MODEL_FAILED,
    app,
    json_option,
    opened,
    place_option,
    run_async,
    session_argument,
    short,
    tell_set_aside,
)
from sessiontree.cli.budget import budget_of, budget_options
from sessiontree.cli.desk import PrintedUi, Working, cwd_option, extension_option, tell_notice
from sessiontree.cli.live import Progress
from sessiontree.cli.output import dim, echo, echo_json, safe, strong, table, warn
from sessiontree.cli.permissions import chosen_permissions, permission_options, tell_denials
from sessiontree.config import ThinkingLevel
from sessiontree.core.figures import dollars, pluralize
from sessiontree.errors import SessionTreeError

if TYPE_CHECKING:
    from sessiontree.commands.desk import Desk
    from sessiontree.config import PermissionMode
    from sessiontree.hooks.bus import Hooks
    from sessiontree.model.base import Model
    from sessiontree.session import Session
    from sessiontree.swarm.estimate import Estimate
    from sessiontree.swarm.experiment import Arm, Experiment, ExperimentResult, Options, Run, Step
    from sessiontree.swarm.scoring import Scorer

LEVELS = get_args(ThinkingLevel)

EPILOG = """\
\b
Examples:
  sessiontree ab @ --arm short="In one word." --arm long="With reasons." --metric tokens
  sessiontree ab @ --prompt "Fix it." --arm-model small=openai:gpt-5-mini \\
    --arm-model large=openai:gpt-5.5 --runs 10 --score judge
  sessiontree ab @ --resume ab-1 --promote
"""


def _complete_experiment(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from sessiontree.swarm.findings import experiments_in

    given = ctx.params.get("session") or next(iter(ctx.args), None)
    try:
        found = [] if given is None else experiments_in(opened(given, read_only=True))
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
    if resume is not None and any((named, prompt, model, scores, judge, metric, name, _given("at", "runs", "seed"))):
        planned = "arms, models, prompts, scores, names, places, runs or seeds"
        raise click.UsageError(f"--resume goes on with what was planned: give no {planned}")
    if not named and resume is None:
        if promoted or any((prompt, model, scores, judge, metric, name)):
            raise click.UsageError("there are no arms: --arm or --arm-model names one, and --resume an experiment")
        return _list(session, as_json=as_json)
    from sessiontree import config
    from sessiontree.cli.prompt import chosen_model, chosen_tools
    from sessiontree.commands.desk import Desk
    from sessiontree.hooks.bus import Hooks
    from sessiontree.swarm.experiment import Experiment

    ways = _arms(arms, arm_models, arm_levels, arm_systems, prompt)
    limits = budget_of(max_cost, max_tokens, max_time)
    chosen, settings, hooks = chosen_tools(tools, no_tools), config.load(), Hooks()
    permissions = chosen_permissions(settings, permission_mode, allow)
    with opened(session) as changed:

        def model_of(name: str | None) -> Model:
            return chosen_model(name, changed.head, settings, hooks)

        usual = model_of(model) if resume is None and any(way.model is None for way in ways) else None
        scorers = [_scorer(given, lambda: model_of(judge) if judge else usual or model_of(model)) for given in scores]
        shown = _Shown(quiet=as_json)

        def made(desk: Desk) -> Experiment:
            options: Options = {
                "model": usual,
                "model_of": model_of,
                "tools": desk.tools,
                "hooks": hooks,
                "settings": settings,
                "concurrency": concurrency,
                "budget": limits,
                "watch": shown.take,
                "permissions": permissions,
            }
            if resume is not None:
                return Experiment.open(changed, resume, **options)
            decides = metric or (scorers[0].name if scorers else "cost")
            return Experiment.create(
                changed, at, ways, runs=runs, scorers=scorers, metric=decides, seed=seed, name=name, **options
            )

        desk = Desk(
            changed,
            tools=chosen,
            hooks=hooks,
            settings=settings,
            ui=PrintedUi(),
            cwd=cwd,
            permissions=permissions,
        )
        result = _carry_out(Working(desk, extensions), made, shown, promoted=promoted)
        tell_set_aside(changed)
    tell_denials(permissions)
    _tell(result, as_json=as_json)
    return 0 if all(run.ok for run in result.runs) else MODEL_FAILED


# What is asked for


def _given(*options: str) -> bool:
    """Whether any of these was, though it may have the value that it has by default."""
    source = click.get_current_context().get_parameter_source
    return any(source(option) is not click.core.ParameterSource.DEFAULT for option in options)


def _arms(
    prompts: Sequence[str], models: Sequence[str], levels: Sequence[str], systems: Sequence[str], prompt: str | None
) -> list[Arm]:
    """The arms, in the order in which they are first named."""
    from sessiontree.swarm.experiment import Arm

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
        if level is not None and level not in LEVELS:
            raise click.UsageError(
                f"there is no thinking level {level!r} for {name!r}: choose one of {', '.join(LEVELS)}"
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


def _scorer(given: str, judge: Callable[[], Model]) -> Scorer:
    from sessiontree.swarm.scoring import RUBRIC, exact, judged_by, matches

    kind, sign, value = given.partition("=")
    match kind:
        case "exact" if sign:
            return exact(value)
        case "matches" if sign:
            return matches(value)
        case "judge":
            return judged_by(judge(), value or RUBRIC)
        case _:
            raise click.UsageError(f"--score takes exact=TEXT, matches=PATTERN, judge or judge=RUBRIC, not {given!r}")


# Carrying it out


class _Shown:
    """How far the experiment is, for those who wait."""

    def __init__(self, *, quiet: bool) -> None:
        self.progress = Progress(self._rows, quiet=quiet)
        self._running = Counter[str]()
        self._done: dict[str, list[Run]] = {}

    def take(self, step: Step) -> None:
        runs = self._done.setdefault(step.arm, [])
        if step.state == "started":
            self._running[step.arm] += 1
        elif step.run is not None:
            self._running[step.arm] = max(self._running[step.arm] - 1, 0)
            runs.append(step.run)
            self.progress.tell(f"{step.done} of {step.planned}: {safe(_line(step.run))}")

    def _rows(self) -> list[list[str]]:
        rows = [["arm", "running", "done", "failed", "last"]]
        for arm, runs in self._done.items():
            failed = sum(not run.ok for run in runs)
            last = safe(_line(runs[-1])) if runs else ""
            rows.append([safe(arm), str(self._running[arm]), str(len(runs)), str(failed), last])
        return rows


def _line(run: Run) -> str:
    """A run in a few words."""
    if not run.ok:
        return f"{run.branch} failed: {run.error}"
    metrics = [*(name for name in ("cost", "tokens") if name in run.measured), "time", *run.scores]
    return f"{run.branch} {', '.join(f'{name} {_spelled(name, run.value(name))}' for name in metrics)}"


def _carry_out(
    working: Working, made: Callable[[Desk], Experiment], shown: _Shown, *, promoted: bool
) -> ExperimentResult:
    import asyncio

    async def run() -> ExperimentResult:
        async with working as desk:
            experiment = made(desk)
            try:
                async with shown.progress:
                    result = await experiment.run()
            except asyncio.CancelledError:
                warn(f"`sessiontree ab … --resume {experiment.name}` goes on with what is left")
                raise
            if promoted and result.best is not None:
                await _promote(desk.session, result, desk.hooks)
            return result

    working.desk.hooks.listen(tell_notice)
    return run_async(run())


async def _promote(session: Session, result: ExperimentResult, hooks: Hooks) -> None:
    """Go on from the winner's best run; what is said of the others is what the experiment found."""
    from sessiontree.ops.merge import promote

    assert result.best is not None
    others = [session.branch(run.branch) for run in result.runs]
    rows = "\n".join("  ".join(row) for row in _rows(result))
    summary = f"Experiment {result.name}: {result.winner} won, {result.reason}.\n\n{rows}"
    await promote(
        session.branch(result.best), session.head, [*others, session.branch(result.name)], hooks=hooks, summary=summary
    )


# Telling


def _list(session: str, *, as_json: bool) -> int:
    from sessiontree.swarm.findings import experiments_in

    found = experiments_in(opened(session, read_only=True))
    for result in found:
        _tell(result, as_json=as_json)
    if not found and not as_json:
        echo(dim("no experiments"))
    return 0


def _tokens(count: float) -> str:
    return pluralize(count, "token", shown=f"{count:,.0f}")


def _tell(result: ExperimentResult, *, as_json: bool) -> None:
    from sessiontree.swarm.findings import result_to_wire

    if as_json:
        echo_json(result_to_wire(result))
        return
    done = f"{len(result.runs)} of {pluralize(result.planned, 'run')}"
    echo(strong(safe(result.name)), dim(f"{short(result.id)} at {short(result.at)}, {done}"))
    table(_rows(result))
    for run in result.runs:
        if not run.ok:
            echo("failed:", safe(f"{run.branch}: {run.error}"))
    for arm in result.arms:
        if arm.failed_tokens or arm.failed_cost:
            took = f"{_tokens(arm.failed_tokens)}, {dollars(arm.failed_cost)}"
            echo(dim(safe(f"failed runs of {arm.arm} took {took}, not counted above")))
    if result.judging_tokens:
        took = f"{_tokens(result.judging_tokens)}, {dollars(result.judging_cost)}"
        echo(dim(f"scoring took {took}, not counted above"))
    if result.winner is None:
        echo(strong("no winner:"), safe(result.reason))
    else:
        echo(strong(f"winner: {safe(result.winner)}"), dim(safe(f"({result.reason})")))
        echo(dim(safe(f"its best run is {result.best}")))


def _rows(result: ExperimentResult) -> list[list[str]]:
    metrics = list(result.arms[0].metrics) if result.arms else []
    rows = [["arm", "runs", "failed", *map(safe, metrics)]]
    for arm in result.arms:
        figures = [_estimated(name, arm.metrics[name]) for name in metrics]
        rows.append([safe(arm.arm), str(arm.n), str(arm.failed), *figures])
    return rows


def _estimated(metric: str, found: Estimate) -> str:
    """A mean and its interval."""
    if found.mean is None:
        return "-"
    if found.low is None or found.high is None:
        return _spelled(metric, found.mean)
    return f"{_spelled(metric, found.mean)} ({_spelled(metric, found.low)} to {_spelled(metric, found.high)})"


def _spelled(metric: str, value: float | None) -> str:
    if value is None:
        return "-"
    match metric:
        case "cost":
            return dollars(value)
        case "tokens":
            return f"{value:,.0f}"
        case "time":
            return f"{round(value, 1) + 0:.1f}s"  # not -0.0
        case _:
            return f"{value:.3g}"
