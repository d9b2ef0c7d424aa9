"""The records of experiments in a session, and the results computed from them.

The plan and each scored run are `custom` entries on the experiment's branch. The start and end of a run are
`agent_action` entries on the run's branch.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sessiontree.branch_comparison import BranchStats, compute_stats
from sessiontree.config import Config
from sessiontree.core.entries import AgentAction, Custom, Entry, EntryId, JsonObject, Message
from sessiontree.core.heads import read_rename
from sessiontree.core.messages import UsageSum, coerce_string, extract_text, is_object
from sessiontree.core.tree import Tree
from sessiontree.session import Session
from sessiontree.swarm.experiment.scoring import MEASURES
from sessiontree.swarm.experiment.statistics import (
    Better,
    Estimate,
    ExperimentVerdict,
    choose_winner,
    estimate_mean,
    estimate_proportion,
    is_value,
    report_no_winner,
)

EXPERIMENT_RECORD_TYPE = "sessiontree.experiment"
"""The `custom_type` of experiment records."""

Scores: TypeAlias = dict[str, float | None]
"""Scores by scorer name; `None` if the scorer gave no score."""

MAX_RUNS = 100_000
"""The most runs of an experiment."""


class ExperimentRun(Struct, frozen=True, kw_only=True):
    """The outcome of one run."""

    arm: str
    number: int
    """The number of the run within its arm, from 1."""
    branch: str
    ok: bool
    text: str
    """The answer."""
    error: str | None
    """Why the run failed."""
    cost: float
    tokens: float
    seconds: float
    measured: tuple[str, ...]
    """Which of `cost` and `tokens` the model reported."""
    scores: Scores
    notes: dict[str, str]
    """Comments of the scorers."""
    denied: tuple[str, ...] = ()
    """Tool calls that permissions denied: the tool, and the command or the path."""

    def get_value(self, metric: str) -> float | None:
        """Return the value of a metric, or `None` if it is unknown."""
        match metric:
            case "cost" | "tokens":
                value = getattr(self, metric) if metric in self.measured else None
            case "time":
                value = self.seconds
            case _:
                value = self.scores.get(metric)
        return value if is_value(value) else None


class ArmResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """The combined results of one arm's runs."""

    arm: str
    n: int
    """Number of successful runs. Only these are counted."""
    failed: int
    """Number of failed attempts, including attempts of runs that succeeded later."""
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
    planned: int
    """The total number of planned runs."""
    arms: tuple[ArmResult, ...]
    runs: tuple[ExperimentRun, ...]
    winner: str | None
    reason: str
    """Why the winner won, or `not enough data: …`."""
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


# Records


class PlannedArm(Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    model: str
    prompt: str | None = None
    thinking: str | None = None
    system: str | None = None
    settings: Config | None = None


class ExperimentPlan(Struct, frozen=True, kw_only=True, rename="camel", tag="plan", tag_field="kind"):
    """The plan of an experiment."""

    experiment: str
    name: str
    """Name of the experiment, and of its branch unless that is renamed."""
    at: EntryId | None
    arms: list[PlannedArm]
    runs: int
    """Number of runs per arm."""
    metric: str
    better: Better
    scorers: list[JsonObject]
    """The data of each scorer, with its name."""
    seed: int
    tools: list[str] | None = None
    """Names of the tools that runs may use. `None` in older files."""
    session: str | None = None
    """Id of the session that the experiment was created in. `None` in older files."""

    @property
    def total(self) -> int:
        return self.runs * len(self.arms)

    def belongs_to(self, session: str) -> bool:
        """Whether the experiment was created in the session with this id, and not copied there by a fork."""
        return self.session in (None, session)

    def build_run_order(self) -> list[tuple[PlannedArm, int]]:
        """Return all runs in order: the first run of every arm, then the second, each round shuffled.

        Changes over time, such as a provider that slows down, then affect all arms equally.
        """
        shuffler = random.Random(self.seed)
        return [
            (arm, number) for number in range(1, self.runs + 1) for arm in shuffler.sample(self.arms, len(self.arms))
        ]


class FinishedRun(Struct, frozen=True, kw_only=True, rename="camel"):
    """A finished run, not scored yet."""

    experiment: str
    arm: str
    number: int
    branch: str
    seconds: float
    answer: EntryId | None = None
    """The entry of the model's last message."""
    error: str | None = None
    denied: list[str] = []
    """Tool calls that permissions denied."""

    @property
    def ok(self) -> bool:
        return self.error is None

    def read_text(self, tree: Tree) -> str:
        body = tree[self.answer].body if self.answer is not None and self.answer in tree else None
        return extract_text(body.message.get("content")) if isinstance(body, Message) else ""


class ScoredRun(Struct, frozen=True, kw_only=True, rename="camel", tag="run", tag_field="kind"):
    """A run with its scores."""

    made: FinishedRun
    cost: float
    tokens: float
    measured: list[str]
    scores: Scores
    notes: dict[str, str]
    judging_cost: float = 0.0
    judging_tokens: float = 0.0

    def build_run(self, tree: Tree) -> ExperimentRun:
        finished = self.made
        return ExperimentRun(
            arm=finished.arm,
            number=finished.number,
            branch=finished.branch,
            ok=finished.ok,
            text=finished.read_text(tree),
            error=finished.error,
            cost=self.cost,
            tokens=self.tokens,
            seconds=finished.seconds,
            measured=tuple(self.measured),
            scores=self.scores,
            notes=self.notes,
            denied=tuple(finished.denied),
        )


class StopRecord(Struct, frozen=True, kw_only=True, rename="camel", tag="stopped", tag_field="kind"):
    """The experiment stopped before all runs were done."""

    experiment: str
    reason: str


def build_record_body(record: ExperimentPlan | ScoredRun | StopRecord) -> Custom:
    return Custom(custom_type=EXPERIMENT_RECORD_TYPE, data=msgspec.to_builtins(record))


def build_spawn_action(plan: ExperimentPlan, arm: str, number: int, branch: str) -> AgentAction:
    """Build the action that marks the start of a run."""
    data = {"experiment": plan.experiment, "arm": arm, "number": number, "branch": branch}
    return AgentAction(action="spawn", agent=branch, data=data)


def build_end_action(finished: FinishedRun) -> AgentAction:
    """Build the action that marks the end of a run."""
    return AgentAction(
        action="complete" if finished.ok else "fail", agent=finished.branch, data=msgspec.to_builtins(finished)
    )


def compute_run_stats(tree: Tree, branch: str, leaf: EntryId | None, at: EntryId | None) -> BranchStats:
    """Sum up the usage that the entries of a run record."""
    entries: list[Entry] = []
    for entry in tree.walk_up(leaf):
        if entry.id == at:
            break
        entries.append(entry)
    return compute_stats(branch, leaf, entries[::-1])


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
                if entry.custom_type == EXPERIMENT_RECORD_TYPE:
                    self._apply_record(_read_record(entry))
                elif entry.type == "agent_action":
                    self._apply_action(entry)
                elif self.plans and (renamed := read_rename(entry)) is not None:
                    self._rename_branch(*renamed)

    def _apply_record(self, record: ExperimentPlan | ScoredRun | StopRecord | None) -> None:
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
            case StopRecord():
                self._stop_reasons[record.experiment] = record.reason
            case _:
                pass

    def _apply_action(self, entry: Entry) -> None:
        body = entry.body
        if not isinstance(body, AgentAction) or not is_object(body.data) or "experiment" not in body.data:
            return
        if body.action == "spawn":
            key = _convert(body.data, _RunKey)
            if key is not None:
                self._started_branches.setdefault((key.experiment, key.arm, key.number), []).append(key.branch)
                self._stop_reasons.pop(key.experiment, None)
        else:
            finished = _convert(body.data, FinishedRun)
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

    def list_pending(self, plan: ExperimentPlan) -> list[PendingRun]:
        """Return the remaining runs in order. Failed runs are repeated."""
        pending: list[PendingRun] = []
        for arm, number in plan.build_run_order():
            key = plan.experiment, arm.name, number
            finished, scored = self._finished.get(key), self._scored.get(key)
            if finished is None or not finished.ok:
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
        known = [compute_run_stats(self._tree, name, heads[name], plan.at) for name in branches if name in heads]
        return UsageSum(
            judging.tokens + sum(stats.tokens for stats in known), judging.cost + sum(stats.cost for stats in known)
        )

    def build_result(self, plan: ExperimentPlan) -> ExperimentResult:
        keys = [(plan.experiment, arm.name, number) for number in range(1, plan.runs + 1) for arm in plan.arms]
        runs = [self._scored[key].build_run(self._tree) for key in keys if key in self._scored]
        judging = self._judging_usage.get(plan.experiment, UsageSum(0.0, 0.0))
        metrics = [*MEASURES, *(coerce_string(scorer.get("name")) for scorer in plan.scorers)]
        proportions = {metric for metric in metrics if _is_proportion(metric, plan, runs)}
        arms = tuple(self._build_arm_result(plan, arm.name, runs, metrics, proportions) for arm in plan.arms)
        found = _choose_winner(
            plan, arms, runs, self._stop_reasons.get(plan.experiment), proportions=plan.metric in proportions
        )
        return ExperimentResult(
            id=plan.experiment,
            name=plan.name,
            session_id=plan.session or self._session_id,
            at=plan.at,
            metric=plan.metric,
            better=plan.better,
            planned=plan.total,
            arms=arms,
            runs=tuple(runs),
            winner=found.winner,
            reason=found.reason,
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
        good = [run for run in runs if run.arm == arm and run.ok]
        failures = self._failures.get((plan.experiment, arm), [])
        wasted = [compute_run_stats(self._tree, arm, entry, plan.at) for entry in failures]
        return ArmResult(
            arm=arm,
            n=len(good),
            failed=len(failures),
            failed_cost=sum(stats.cost for stats in wasted),
            failed_tokens=sum(stats.tokens for stats in wasted),
            metrics={
                metric: (estimate_proportion if metric in proportions else estimate_mean)(
                    _list_values(good, arm, metric)
                )
                for metric in metrics
            },
        )


def list_experiments(session: Session) -> list[ExperimentResult]:
    """Return the results of all experiments of a session, oldest first."""
    log = ExperimentLog(session)
    return [log.build_result(plan) for plan in log.plans.values()]


def build_result_json(result: ExperimentResult) -> JsonObject:
    """Return the JSON of a result, as the CLI and the REST API print it."""
    return {**msgspec.to_builtins(result), "best": result.best}


class _RunKey(Struct, frozen=True):
    experiment: str
    arm: str
    number: int
    branch: str


def read_plan(entry: Entry) -> ExperimentPlan | None:
    """Return the plan in an entry, or `None`."""
    record = _read_record(entry) if entry.custom_type == EXPERIMENT_RECORD_TYPE else None
    return record if isinstance(record, ExperimentPlan) else None


def _read_record(entry: Entry) -> ExperimentPlan | ScoredRun | StopRecord | None:
    body = entry.body
    return _convert(body.data, ExperimentPlan | ScoredRun | StopRecord) if isinstance(body, Custom) else None


def _convert(data: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, ValueError, OverflowError, RecursionError):
        return None


def _list_values(runs: Iterable[ExperimentRun], arm: str, metric: str) -> list[float]:
    found = (run.get_value(metric) for run in runs if run.arm == arm and run.ok)
    return [value for value in found if value is not None]


def _is_proportion(metric: str, plan: ExperimentPlan, runs: Sequence[ExperimentRun]) -> bool:
    """Whether all values of the metric are 0 or 1, so it is compared as a proportion."""
    kind = next((scorer.get("kind") for scorer in plan.scorers if scorer.get("name") == metric), None)
    values = [value for arm in plan.arms for value in _list_values(runs, arm.name, metric)]
    return kind in ("exact", "matches", "function") and all(value in (0, 1) for value in values)


def _choose_winner(
    plan: ExperimentPlan,
    results: Sequence[ArmResult],
    runs: Sequence[ExperimentRun],
    stopped: str | None,
    *,
    proportions: bool,
) -> ExperimentVerdict:
    """Choose the winning arm. While any run is missing or failed, there is none: it could change the result."""
    if len(runs) < plan.total:
        reason = "" if stopped is None else f": {stopped}"
        return report_no_winner(f"{len(runs)} of {plan.total} runs are done{reason}")
    failed = [arm.name for arm in plan.arms if any(run.arm == arm.name and not run.ok for run in runs)]
    if failed:
        return report_no_winner(f"runs of {', '.join(failed)} failed, so the successful ones may be a biased sample")
    repeated = [result.arm for result in results if result.failed]
    if repeated:
        reason = "were repeated after failures, so the successful ones may be a biased sample; start a new experiment"
        return report_no_winner(f"runs of {', '.join(repeated)} {reason}")
    arms = {arm.name: _list_values(runs, arm.name, plan.metric) for arm in plan.arms}
    missing = [name for name, values in arms.items() if len(values) < plan.runs]
    if missing:
        kind = "no recorded" if plan.metric in MEASURES else "no value for"
        return report_no_winner(f"runs of {', '.join(missing)} have {kind} {plan.metric}")
    return choose_winner(arms, plan.metric, plan.better, proportions=proportions)
