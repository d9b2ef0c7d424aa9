"""The results of experiments, computed from their records in a session."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sessiontree.core.entries import EXPERIMENT_RECORD, AgentAction, Entry, EntryId, JsonObject
from sessiontree.core.heads import read_rename
from sessiontree.core.messages import UsageSum, coerce_string, is_object
from sessiontree.core.number_text import format_metric
from sessiontree.session import Session
from sessiontree.swarm.experiment.run_records import (
    MAX_RUNS,
    AddedRuns,
    ExperimentPlan,
    ExperimentRecord,
    ExperimentRun,
    FinishedRun,
    PlannedArm,
    RunKey,
    ScoredRun,
    Scores,
    StopRecord,
    compute_run_stats,
    convert_record,
    read_record,
)
from sessiontree.swarm.experiment.scoring import MAX_GRADE, MEASURES
from sessiontree.swarm.experiment.statistics import (
    Better,
    Design,
    DifferenceTrend,
    Estimate,
    ExperimentVerdict,
    choose_winner,
    estimate_mean,
    estimate_proportion,
    rank_arms,
    report_no_winner,
    trace_difference,
)


class ArmResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """The combined results of one arm's runs."""

    arm: str
    n: int
    """Number of successful runs."""
    failed: int
    """Number of failed attempts, including attempts of runs that succeeded later."""
    failure_rate: Estimate
    """The share of runs that failed."""
    failed_cost: float
    """Cost of the failed attempts, in US dollars. It is not part of the metrics."""
    failed_tokens: float
    metrics: dict[str, Estimate]


class ExperimentResult(Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    name: str
    session_id: str
    """The session that the experiment was created in. It differs in a fork."""
    at: EntryId | None
    """The entry that all runs continue from."""
    metric: str
    """The metric that decides."""
    better: Better
    design: Design
    """`sequential`: the result holds at any time. `fixed`: only when all runs are done."""
    places: tuple[EntryId | None, ...]
    """The entries that runs continue from, in turns. The first one is `at`."""
    planned: int
    """The total number of planned runs."""
    arms: tuple[ArmResult, ...]
    runs: tuple[ExperimentRun, ...]
    winner: str | None
    reason: str
    """Why the winner won, or `not enough data: …`."""
    trend: DifferenceTrend | None
    """How the difference between the two best arms developed. `None` without runs of two arms."""
    repeats: tuple[str, ...]
    """Names of earlier experiments in the session with the same arms, place and metric."""
    judging_cost: float
    """Cost of scoring the runs, in US dollars. It is not part of the runs' cost."""
    judging_tokens: float

    @property
    def best(self) -> str | None:
        """The branch of the winner's best run by the metric."""
        own = {run.branch: run.get_value(self.metric) for run in self.runs if run.arm == self.winner}
        known = {branch: value for branch, value in own.items() if value is not None}
        pick = min if self.better == "lower" else max
        return pick(known, key=lambda branch: known[branch]) if known else None


# Reading


class PendingRun(NamedTuple):
    """A run that is not done, or not completely scored."""

    arm: PlannedArm
    number: int
    finished: FinishedRun | None
    """The finished run, if only scores are missing."""
    scores: Scores
    """The known scores."""
    abandoned: tuple[str, ...]
    """Branches of earlier attempts that failed or were interrupted."""


class ExperimentLog:
    """All experiment records of a session. Invalid entries are ignored."""

    def __init__(self, session: Session) -> None:
        self._session_id = session.id
        self._tree = session.tree
        self.plans: dict[str, ExperimentPlan] = {}
        """Plans by experiment id, oldest first."""
        self._scored: dict[tuple[str, str, int], ScoredRun] = {}
        """The last scored record of each run."""
        self._finished: dict[tuple[str, str, int], FinishedRun] = {}
        self._failures: dict[tuple[str, str], list[EntryId]] = {}
        """The entries of failed attempts, by experiment and arm."""
        self._started_branches: dict[tuple[str, str, int], list[str]] = {}
        self._stop_reasons: dict[str, str] = {}
        self._judging_usage: dict[str, UsageSum] = {}
        with session.hold_lock():
            for entry in self._tree:
                if entry.custom_type == EXPERIMENT_RECORD:
                    self._apply_record(read_record(entry))
                elif entry.type == "agent_action":
                    self._apply_action(entry)
                elif self.plans and (renamed := read_rename(entry)) is not None:
                    self._rename_branch(*renamed)

    def _apply_record(self, record: ExperimentRecord | None) -> None:
        match record:
            case ExperimentPlan() if (
                record.experiment not in self.plans and 0 < record.runs * len(record.arms) <= MAX_RUNS
            ):
                self.plans[record.experiment] = record
            case ScoredRun(made=finished):
                self._scored[finished.experiment, finished.arm, finished.number] = record
                before = self._judging_usage.get(finished.experiment, UsageSum(0.0, 0.0))
                self._judging_usage[finished.experiment] = UsageSum(
                    before.tokens + record.judging_tokens, before.cost + record.judging_cost
                )
            case AddedRuns(experiment=id, runs=runs) if (plan := self.plans.get(id)) is not None:
                if runs > 0 and (plan.runs + runs) * len(plan.arms) <= MAX_RUNS:
                    self.plans[id] = replace(plan, runs=plan.runs + runs)
            case StopRecord():
                self._stop_reasons[record.experiment] = record.reason
            case _:
                pass

    def _apply_action(self, entry: Entry) -> None:
        body = entry.body
        if not isinstance(body, AgentAction) or not is_object(body.data) or "experiment" not in body.data:
            return
        if body.action == "spawn":
            key = convert_record(body.data, RunKey)
            if key is not None:
                self._started_branches.setdefault((key.experiment, key.arm, key.number), []).append(key.branch)
                self._stop_reasons.pop(key.experiment, None)
        else:
            finished = convert_record(body.data, FinishedRun)
            if finished is not None:
                self._finished[finished.experiment, finished.arm, finished.number] = finished
                if not finished.ok:
                    self._failures.setdefault((finished.experiment, finished.arm), []).append(entry.id)

    def _rename_branch(self, old: str, new: str) -> None:
        """Apply the new name of a branch."""
        for id, plan in self.plans.items():
            if plan.name == old:
                self.plans[id] = replace(plan, name=new)
        for key, names in self._started_branches.items():
            self._started_branches[key] = [new if name == old else name for name in names]
        for key, finished in self._finished.items():
            if finished.branch == old:
                self._finished[key] = replace(finished, branch=new)
        for key, scored in self._scored.items():
            if scored.made.branch == old:
                self._scored[key] = replace(scored, made=replace(scored.made, branch=new))

    def list_pending(self, plan: ExperimentPlan, *, retry_failed: bool = False) -> list[PendingRun]:
        """Return the remaining runs in order. Failed runs are repeated only if `retry_failed` is true."""
        pending: list[PendingRun] = []
        for arm, number in plan.build_run_order():
            key = plan.experiment, arm.name, number
            finished, scored = self._finished.get(key), self._scored.get(key)
            if finished is None or (retry_failed and not finished.ok):
                pending.append(PendingRun(arm, number, None, {}, tuple(self._started_branches.get(key, ()))))
            elif scored is None or scored.made != finished:
                pending.append(PendingRun(arm, number, finished, {}, ()))
            elif None in scored.scores.values():
                known: Scores = {name: value for name, value in scored.scores.items() if value is not None}
                pending.append(PendingRun(arm, number, finished, known, ()))
        return pending

    def compute_spent(self, plan: ExperimentPlan, heads: Mapping[str, EntryId | None]) -> UsageSum:
        """Return the usage of all started runs and of scoring them."""
        judging = self._judging_usage.get(plan.experiment, UsageSum(0.0, 0.0))
        branches = [
            name for key, names in self._started_branches.items() if key[0] == plan.experiment for name in names
        ]
        known = [compute_run_stats(self._tree, name, heads[name], plan) for name in branches if name in heads]
        return UsageSum(
            judging.tokens + sum(stats.tokens for stats in known), judging.cost + sum(stats.cost for stats in known)
        )

    def _list_runs(self, plan: ExperimentPlan) -> list[ExperimentRun]:
        keys = [(plan.experiment, arm.name, number) for number in range(1, plan.runs + 1) for arm in plan.arms]
        return [self._scored[key].build_run(self._tree) for key in keys if key in self._scored]

    def build_verdict(self, plan: ExperimentPlan) -> ExperimentVerdict:
        """Return the winner so far, without the rest of the result."""
        runs = self._list_runs(plan)
        stopped = self._stop_reasons.get(plan.experiment)
        return _choose_winner(plan, runs, stopped, proportions=_is_proportion(plan.metric, plan, runs))

    def build_result(self, plan: ExperimentPlan) -> ExperimentResult:
        runs = self._list_runs(plan)
        judging = self._judging_usage.get(plan.experiment, UsageSum(0.0, 0.0))
        metrics = [*MEASURES, *(coerce_string(scorer.get("name")) for scorer in plan.scorers)]
        proportions = {metric for metric in metrics if _is_proportion(metric, plan, runs)}
        arms = tuple(self._build_arm_result(plan, arm.name, runs, metrics, proportions) for arm in plan.arms)
        found = self.build_verdict(plan)
        before = itertools.takewhile(lambda other: other.experiment != plan.experiment, self.plans.values())
        return ExperimentResult(
            id=plan.experiment,
            name=plan.name,
            session_id=plan.session or self._session_id,
            at=plan.at,
            metric=plan.metric,
            better=plan.better,
            design=plan.design,
            places=tuple(plan.places or [plan.at]),
            planned=plan.total,
            arms=arms,
            runs=tuple(runs),
            winner=found.winner,
            reason=found.reason,
            trend=_trace_trend(plan, runs, proportions=plan.metric in proportions),
            repeats=tuple(other.name for other in before if plan.is_repeat_of(other)),
            judging_cost=judging.cost,
            judging_tokens=judging.tokens,
        )

    def _build_arm_result(
        self,
        plan: ExperimentPlan,
        arm: str,
        runs: Sequence[ExperimentRun],
        metrics: Sequence[str],
        proportions: set[str],
    ) -> ArmResult:
        own = [run for run in runs if run.arm == arm]
        failures = self._failures.get((plan.experiment, arm), [])
        wasted = [compute_run_stats(self._tree, arm, entry, plan) for entry in failures]
        return ArmResult(
            arm=arm,
            n=sum(run.ok for run in own),
            failed=len(failures),
            failure_rate=estimate_proportion([float(not run.ok) for run in own]),
            failed_cost=sum(stats.cost for stats in wasted),
            failed_tokens=sum(stats.tokens for stats in wasted),
            metrics={
                metric: _estimate(plan, runs, arm, metric, is_proportion=metric in proportions) for metric in metrics
            },
        )


def list_experiments(session: Session) -> list[ExperimentResult]:
    """Return the results of all experiments of a session, oldest first."""
    log = ExperimentLog(session)
    return [log.build_result(plan) for plan in log.plans.values()]


def build_result_json(result: ExperimentResult) -> JsonObject:
    """Return the JSON of a result, as the CLI and the REST API print it."""
    return {**msgspec.to_builtins(result), "best": result.best}


def _list_values(
    plan: ExperimentPlan, runs: Iterable[ExperimentRun], arm: str, metric: str, *, is_proportion: bool
) -> list[float | None]:
    """Return the values of an arm by the number of the run. A failed run of a yes-or-no score is the wrong answer."""
    values: list[float | None] = [None] * plan.runs
    scorer = plan.find_scorer(metric)
    failed = None if scorer is None or not is_proportion else float(scorer.get("better") == "lower")
    if metric == plan.metric and plan.failed_score is not None:
        failed = plan.failed_score
    for run in runs:
        if run.arm == arm:
            values[run.number - 1] = run.get_value(metric) if run.ok else failed
    return values


def _estimate(
    plan: ExperimentPlan, runs: Iterable[ExperimentRun], arm: str, metric: str, *, is_proportion: bool
) -> Estimate:
    """Estimate a metric of an arm within the values that it can have."""
    known = _list_values(plan, runs, arm, metric, is_proportion=is_proportion)
    values = [value for value in known if value is not None]
    if is_proportion:
        return estimate_proportion(values)
    if metric in MEASURES:
        return estimate_mean(values, floor=0.0)
    is_grade = (plan.find_scorer(metric) or {}).get("kind") == "judge"
    return estimate_mean(values, floor=1, ceiling=MAX_GRADE) if is_grade else estimate_mean(values)


def _is_proportion(metric: str, plan: ExperimentPlan, runs: Sequence[ExperimentRun]) -> bool:
    """Whether all values of the metric are 0 or 1, so it is compared as a proportion."""
    kind = (plan.find_scorer(metric) or {}).get("kind")
    values = [value for run in runs if run.ok and (value := run.get_value(metric)) is not None]
    known = values if plan.failed_score is None else [*values, plan.failed_score]
    return kind in ("exact", "matches", "function") and all(value in (0, 1) for value in known)


def _choose_winner(
    plan: ExperimentPlan, runs: Sequence[ExperimentRun], stopped: str | None, *, proportions: bool
) -> ExperimentVerdict:
    """Choose the winning arm. With a fixed design there is none before all runs are done."""
    arms = {arm.name: _list_values(plan, runs, arm.name, plan.metric, is_proportion=proportions) for arm in plan.arms}
    unmeasured = {run.arm: None for run in runs if run.ok and run.get_value(plan.metric) is None}
    is_open = plan.design == "fixed" and len(runs) < plan.total
    found = (
        report_no_winner("")
        if unmeasured or is_open
        else choose_winner(
            arms,
            plan.metric,
            plan.better,
            proportions=proportions,
            design=plan.design,
            format_value=partial(_format_difference, plan.metric),
        )
    )
    if found.winner is None and len(runs) < plan.total:
        return report_no_winner(f"{len(runs)} of {plan.total} runs are done{'' if stopped is None else f': {stopped}'}")
    if unmeasured:
        kind = "no recorded" if plan.metric in MEASURES else "no value for"
        return report_no_winner(f"runs of {', '.join(unmeasured)} have {kind} {plan.metric}")
    if found.winner is None:
        return found
    failed = Counter(run.arm for run in runs if not run.ok)
    uncounted = not proportions and plan.failed_score is None
    if uncounted and failed[found.winner] > min(failed[arm.name] for arm in plan.arms):
        return report_no_winner(
            f"{found.winner} has the best {plan.metric}, but failed more often; "
            "compare by a score, or set a score for failed runs"
        )
    return found


def _format_difference(metric: str, value: float) -> str:
    return f"{value:.3g} s" if metric == "time" else format_metric(metric, value)  # times may differ by milliseconds


def _trace_trend(plan: ExperimentPlan, runs: Sequence[ExperimentRun], *, proportions: bool) -> DifferenceTrend | None:
    arms = {arm.name: _list_values(plan, runs, arm.name, plan.metric, is_proportion=proportions) for arm in plan.arms}
    ranked = rank_arms(
        {name: [each for each in values if each is not None] for name, values in arms.items()}, plan.better
    )
    if len(ranked) < 2:
        return None
    best, second = ranked[:2]
    points = trace_difference(arms[best], arms[second], proportions=proportions)
    return DifferenceTrend(best=best, second=second, points=points)
