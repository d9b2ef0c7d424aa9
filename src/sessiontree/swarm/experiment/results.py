"""Findings: what of an experiment stands in the session, and what it tells when it is read back.

The plan and each run that was scored are `custom` entries on the experiment's branch; that a run began and ended are
`agent_action` entries on the run's own. Nothing is run here.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sessiontree.comparison import BranchStats, compute_stats
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
"""The type of its `custom` entries."""

Scores: TypeAlias = dict[str, float | None]
"""By scorer; `None` where it could not tell."""

MAX_RUNS = 100_000
"""Runs that an experiment may have."""


class ExperimentRun(Struct, frozen=True, kw_only=True):
    """What came of one run."""

    arm: str
    number: int
    """Among the runs of its arm, from 1."""
    branch: str
    ok: bool
    text: str
    """The answer."""
    error: str | None
    """Why it failed."""
    cost: float
    tokens: float
    seconds: float
    measured: tuple[str, ...]
    """Which of `cost` and `tokens` were recorded."""
    scores: Scores
    notes: dict[str, str]
    """What scorers say beside it."""
    denied: tuple[str, ...] = ()
    """Tool calls that permissions did not allow: the tool, and the command or the path."""

    def get_value(self, metric: str) -> float | None:
        """What it has by a metric; `None` where that is not known."""
        match metric:
            case "cost" | "tokens":
                value = getattr(self, metric) if metric in self.measured else None
            case "time":
                value = self.seconds
            case _:
                value = self.scores.get(metric)
        return value if is_value(value) else None


class ArmResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the runs of one arm tell together."""

    arm: str
    n: int
    """How many runs went well; only they are counted."""
    failed: int
    """How often a run failed, those that were made again and went well at last included."""
    failed_cost: float
    """What that cost, beside what is counted."""
    failed_tokens: float
    metrics: dict[str, Estimate]


class ExperimentResult(Struct, frozen=True, kw_only=True, rename="camel"):
    id: str
    name: str
    session_id: str
    """The session that it was made in: a fork tells of it too."""
    at: EntryId | None
    """The place that all runs go on from."""
    metric: str
    """What decides."""
    better: Better
    planned: int
    """How many runs there are to be in all."""
    arms: tuple[ArmResult, ...]
    runs: tuple[ExperimentRun, ...]
    winner: str | None
    reason: str
    """Why the winner won; or `not enough data: …`."""
    judging_cost: float
    """What scoring the runs cost, beside what they cost themselves."""
    judging_tokens: float

    @property
    def best(self) -> str | None:
        """The branch to promote: the winner's best run by the metric."""
        own = {run.branch: run.get_value(self.metric) for run in self.runs if run.arm == self.winner}
        known = {branch: value for branch, value in own.items() if value is not None}
        pick = min if self.better == "lower" else max
        return pick(known, key=lambda branch: known[branch]) if known else None


# What is written


class PlannedArm(Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    model: str
    prompt: str | None = None
    thinking: str | None = None
    system: str | None = None
    settings: Config | None = None


class ExperimentPlan(Struct, frozen=True, kw_only=True, rename="camel", tag="plan", tag_field="kind"):
    """What an experiment is to find out, and how."""

    experiment: str
    name: str
    """Of the experiment, and of its branch, until somebody renames that."""
    at: EntryId | None
    arms: list[PlannedArm]
    runs: int
    """Of each arm."""
    metric: str
    better: Better
    scorers: list[JsonObject]
    """In wire form, each with its name."""
    seed: int
    tools: list[str] | None = None
    """Names of those that runs may use; `None` in plans from before, which do not say."""
    session: str | None = None
    """The session that it was made in, by id; `None` in plans from before."""

    @property
    def total(self) -> int:
        return self.runs * len(self.arms)

    def belongs_to(self, session: str) -> bool:
        """Whether it was made in a session, by its id: a fork tells of it too."""
        return self.session in (None, session)

    def build_run_order(self) -> list[tuple[PlannedArm, int]]:
        """All runs, in turns: the first of every arm, then the second, each round in an order of its own.

        Whatever changes while the experiment goes on, a provider that grows slow say, meets all arms alike.
        """
        chance = random.Random(self.seed)
        return [(arm, number) for number in range(1, self.runs + 1) for arm in chance.sample(self.arms, len(self.arms))]


class FinishedRun(Struct, frozen=True, kw_only=True, rename="camel"):
    """A run that the model has come to the end of."""

    experiment: str
    arm: str
    number: int
    branch: str
    seconds: float
    answer: EntryId | None = None
    """The model's last message."""
    error: str | None = None
    denied: list[str] = []
    """Tool calls that permissions did not allow."""

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
        made = self.made
        return ExperimentRun(
            arm=made.arm,
            number=made.number,
            branch=made.branch,
            ok=made.ok,
            text=made.read_text(tree),
            error=made.error,
            cost=self.cost,
            tokens=self.tokens,
            seconds=made.seconds,
            measured=tuple(self.measured),
            scores=self.scores,
            notes=self.notes,
            denied=tuple(made.denied),
        )


class StopRecord(Struct, frozen=True, kw_only=True, rename="camel", tag="stopped", tag_field="kind"):
    """That no more runs are begun, and why."""

    experiment: str
    reason: str


def build_record_body(record: ExperimentPlan | ScoredRun | StopRecord) -> Custom:
    return Custom(custom_type=EXPERIMENT_RECORD_TYPE, data=msgspec.to_builtins(record))


def build_spawn_action(plan: ExperimentPlan, arm: str, number: int, branch: str) -> AgentAction:
    """That a run begins."""
    data = {"experiment": plan.experiment, "arm": arm, "number": number, "branch": branch}
    return AgentAction(action="spawn", agent=branch, data=data)


def build_end_action(made: FinishedRun) -> AgentAction:
    """That a run has come to its end."""
    return AgentAction(action="complete" if made.ok else "fail", agent=made.branch, data=msgspec.to_builtins(made))


def compute_run_stats(tree: Tree, branch: str, leaf: EntryId | None, at: EntryId | None) -> BranchStats:
    """What the entries of a run record as spent."""
    entries: list[Entry] = []
    for entry in tree.walk_up(leaf):
        if entry.id == at:
            break
        entries.append(entry)
    return compute_stats(branch, leaf, entries[::-1])


# What is read back


class PendingRun(NamedTuple):
    """A run that is to be made, or at least scored."""

    arm: PlannedArm
    number: int
    finished: FinishedRun | None
    """What came of it, where only scores are missing."""
    scores: Scores
    """Those that are not."""
    abandoned: tuple[str, ...]
    """Branches of earlier runs for it that came to no end."""


class ExperimentLog:
    """Everything about the experiments of a session. Entries that do not say what they should are none."""

    def __init__(self, session: Session) -> None:
        self._session_id = session.id
        self._tree = session.tree
        self.plans: dict[str, ExperimentPlan] = {}
        """By id, oldest first."""
        self._scored: dict[tuple[str, str, int], ScoredRun] = {}
        """The last of each run."""
        self._finished: dict[tuple[str, str, int], FinishedRun] = {}
        self._failures: dict[tuple[str, str], list[EntryId]] = {}
        """The entries that say so, by experiment and arm."""
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
            case ScoredRun(made=made):
                self._scored[made.experiment, made.arm, made.number] = record
                before = self._judging_usage.get(made.experiment, UsageSum(0.0, 0.0))
                self._judging_usage[made.experiment] = UsageSum(
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
            made = _convert(body.data, FinishedRun)
            if made is not None:
                self._finished[made.experiment, made.arm, made.number] = made
                if not made.ok:
                    self._failures.setdefault((made.experiment, made.arm), []).append(entry.id)

    def _rename_branch(self, old: str, new: str) -> None:
        """Somebody has renamed a branch."""
        for id, plan in self.plans.items():
            if plan.name == old:
                self.plans[id] = replace(plan, name=new)
        for key, names in self._started_branches.items():
            self._started_branches[key] = [new if name == old else name for name in names]
        for key, made in self._finished.items():
            if made.branch == old:
                self._finished[key] = replace(made, branch=new)
        for key, scored in self._scored.items():
            if scored.made.branch == old:
                self._scored[key] = replace(scored, made=replace(scored.made, branch=new))

    def list_pending(self, plan: ExperimentPlan) -> list[PendingRun]:
        """What is still to be done, in its order: runs that failed are made again."""
        trials: list[PendingRun] = []
        for arm, number in plan.build_run_order():
            key = plan.experiment, arm.name, number
            made, scored = self._finished.get(key), self._scored.get(key)
            if made is None or not made.ok:
                trials.append(PendingRun(arm, number, None, {}, tuple(self._started_branches.get(key, ()))))
            elif scored is None or scored.made != made:
                trials.append(PendingRun(arm, number, made, {}, ()))
            elif None in scored.scores.values():
                known: Scores = {name: value for name, value in scored.scores.items() if value is not None}
                trials.append(PendingRun(arm, number, made, known, ()))
        return trials

    def compute_spent(self, plan: ExperimentPlan, heads: Mapping[str, EntryId | None]) -> UsageSum:
        """What all runs that were begun, and scoring them, have taken so far."""
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
        yes_or_no = {metric for metric in metrics if _is_proportion(metric, plan, runs)}
        arms = tuple(self._build_arm_result(plan, arm.name, runs, metrics, yes_or_no) for arm in plan.arms)
        found = _choose_winner(
            plan, arms, runs, self._stop_reasons.get(plan.experiment), proportions=plan.metric in yes_or_no
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
        self, plan: ExperimentPlan, arm: str, runs: Sequence[ExperimentRun], metrics: Sequence[str], yes_or_no: set[str]
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
                metric: (estimate_proportion if metric in yes_or_no else estimate_mean)(_list_values(good, arm, metric))
                for metric in metrics
            },
        )


def list_experiments(session: Session) -> list[ExperimentResult]:
    """All experiments of a session, oldest first, from what stands in it."""
    findings = ExperimentLog(session)
    return [findings.build_result(plan) for plan in findings.plans.values()]


def build_result_json(result: ExperimentResult) -> JsonObject:
    """As the command and the REST interface give it."""
    return {**msgspec.to_builtins(result), "best": result.best}


class _RunKey(Struct, frozen=True):
    experiment: str
    arm: str
    number: int
    branch: str


def read_plan(entry: Entry) -> ExperimentPlan | None:
    """The plan that an entry is, if it is one."""
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
    """Whether its values are answers to a question of yes or no. Those of a function show it."""
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
    """Which arm wins. While a run is missing, no matter why, it might be the one that would have shown otherwise."""
    if len(runs) < plan.total:
        why = "" if stopped is None else f": {stopped}"
        return report_no_winner(f"{len(runs)} of {plan.total} runs are done{why}")
    failed = [arm.name for arm in plan.arms if any(run.arm == arm.name and not run.ok for run in runs)]
    if failed:
        return report_no_winner(f"runs of {', '.join(failed)} failed, and those that did not may be the easy ones")
    lucky = [result.arm for result in results if result.failed]
    if lucky:
        why = "failed before they went well, and only the lucky ones are counted: a new experiment may tell"
        return report_no_winner(f"runs of {', '.join(lucky)} {why}")
    arms = {arm.name: _list_values(runs, arm.name, plan.metric) for arm in plan.arms}
    lacking = [name for name, values in arms.items() if len(values) < plan.runs]
    if lacking:
        what = "no recorded" if plan.metric in MEASURES else "no value of"
        return report_no_winner(f"runs of {', '.join(lacking)} have {what} {plan.metric}")
    return choose_winner(arms, plan.metric, plan.better, proportions=proportions)
