"""What the command `ab` prints: the progress of an experiment, its outlook and its result."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from sessiontree.cli.app import format_id
from sessiontree.cli.output import ProgressTable, bold, dim, echo, echo_json, escape_line, print_table, warn
from sessiontree.core.number_text import format_dollars, format_metric, pluralize

if TYPE_CHECKING:
    from sessiontree.swarm.experiment.experiment import ExperimentResult, ExperimentRun, RunProgress
    from sessiontree.swarm.experiment.statistics import Estimate


MAX_EARLIER_POINTS = 4


class ExperimentProgress:
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
    return f"{run.branch} {', '.join(f'{name} {format_metric(name, run.get_value(name))}' for name in metrics)}"


def print_outlook(result: ExperimentResult, runs: int) -> None:
    """Print before the start what the experiment can find out, and whether it repeats another one."""
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


def print_result(result: ExperimentResult, *, as_json: bool) -> None:
    from sessiontree.swarm.experiment.results import build_result_json

    if as_json:
        echo_json(build_result_json(result))
        return
    done = f"{len(result.runs)} of {pluralize(result.planned, 'run')}"
    echo(bold(escape_line(result.name)), dim(f"{format_id(result.id)} at {format_id(result.at)}, {done}"))
    print_table(build_result_rows(result))
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
        earlier = _describe_earlier_points(result)
        if earlier:
            echo(dim(earlier))
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
    lead = f"{trend.best} - {trend.second}: {format_metric(result.metric, last.difference)}"
    if last.low is None or last.high is None:
        return f"{lead}; too few pairs of runs ({last.pairs}) for an interval"
    bounds = f"{format_metric(result.metric, last.low)} to {format_metric(result.metric, last.high)}"
    return f"{lead}, 95 % confidence interval {bounds}, after {pluralize(last.pairs, 'pair')} of runs"


def _describe_earlier_points(result: ExperimentResult) -> str:
    """Return how the interval narrowed, at up to `MAX_EARLIER_POINTS` earlier moments; empty if there are none."""
    assert result.trend is not None
    known = [point for point in result.trend.points[:-1] if point.low is not None and point.high is not None]
    count = min(len(known), MAX_EARLIER_POINTS)
    steps = [known[(index + 1) * len(known) // count - 1] for index in range(count)]
    shown = (
        f"{format_metric(result.metric, point.low)} to {format_metric(result.metric, point.high)} after "
        f"{pluralize(point.pairs, 'pair')}"
        for point in steps
    )
    return f"the interval was {', '.join(shown)}" if steps else ""


def build_result_rows(result: ExperimentResult) -> list[list[str]]:
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
        return format_metric(metric, estimate.mean)
    low, high = format_metric(metric, estimate.low), format_metric(metric, estimate.high)
    return f"{format_metric(metric, estimate.mean)} ({low} to {high})"
