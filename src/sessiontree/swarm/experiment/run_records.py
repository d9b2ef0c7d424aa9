"""The records of experiments in a session: plans, runs, and why an experiment stopped.

The plan and each scored run are `custom` entries on the experiment's branch. The start and end of a run are
`agent_action` entries on the run's branch.
"""

from __future__ import annotations

import random
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from sessiontree.branch_comparison import BranchStats, compute_stats
from sessiontree.config import Config
from sessiontree.core.entries import EXPERIMENT_RECORD, AgentAction, Custom, Entry, EntryId, JsonObject, Message
from sessiontree.core.messages import extract_text
from sessiontree.core.tree import Tree
from sessiontree.swarm.experiment.statistics import Better, Design, is_value

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
    design: Design = "fixed"
    """Plans of older files have the default."""
    failed_score: float | None = None
    """The value of the metric that a failed run counts with."""
    places: list[EntryId | None] | None = None
    """The entries that runs continue from, in turns. `None`: all from `at`."""

    @property
    def total(self) -> int:
        return self.runs * len(self.arms)

    def find_scorer(self, metric: str) -> JsonObject | None:
        """Return the data of the scorer with this name."""
        return next((scorer for scorer in self.scorers if scorer.get("name") == metric), None)

    def get_place(self, number: int) -> EntryId | None:
        """Return the entry that runs with this number continue from."""
        return self.places[(number - 1) % len(self.places)] if self.places else self.at

    def is_repeat_of(self, other: ExperimentPlan) -> bool:
        """Whether the experiments differ only in the number and the order of runs."""
        return (self.at, self.places, self.arms, self.metric, self.scorers) == (
            other.at,
            other.places,
            other.arms,
            other.metric,
            other.scorers,
        )

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


class AddedRuns(Struct, frozen=True, kw_only=True, rename="camel", tag="more", tag_field="kind"):
    """More runs of every arm were added to the plan."""

    experiment: str
    runs: int


class StopRecord(Struct, frozen=True, kw_only=True, rename="camel", tag="stopped", tag_field="kind"):
    """The experiment stopped before all runs were done."""

    experiment: str
    reason: str


ExperimentRecord: TypeAlias = ExperimentPlan | ScoredRun | AddedRuns | StopRecord


def build_record_body(record: ExperimentRecord) -> Custom:
    return Custom(custom_type=EXPERIMENT_RECORD, data=msgspec.to_builtins(record))


def build_spawn_action(plan: ExperimentPlan, arm: str, number: int, branch: str) -> AgentAction:
    """Build the action that marks the start of a run."""
    data = {"experiment": plan.experiment, "arm": arm, "number": number, "branch": branch}
    return AgentAction(action="spawn", agent=branch, data=data)


def build_end_action(finished: FinishedRun) -> AgentAction:
    """Build the action that marks the end of a run."""
    return AgentAction(
        action="complete" if finished.ok else "fail", agent=finished.branch, data=msgspec.to_builtins(finished)
    )


def compute_run_stats(tree: Tree, branch: str, leaf: EntryId | None, plan: ExperimentPlan) -> BranchStats:
    """Sum up the usage that the entries of a run record."""
    entries: list[Entry] = []
    starts = {plan.at, *(plan.places or ())}
    for entry in tree.walk_up(leaf):
        if entry.id in starts:
            break
        entries.append(entry)
    return compute_stats(branch, leaf, entries[::-1])


# Reading


class RunKey(Struct, frozen=True):
    experiment: str
    arm: str
    number: int
    branch: str


def read_plan(entry: Entry) -> ExperimentPlan | None:
    """Return the plan in an entry, or `None`."""
    record = read_record(entry) if entry.custom_type == EXPERIMENT_RECORD else None
    return record if isinstance(record, ExperimentPlan) else None


def read_record(entry: Entry) -> ExperimentRecord | None:
    body = entry.body
    return convert_record(body.data, ExperimentRecord) if isinstance(body, Custom) else None


def convert_record(data: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, ValueError, OverflowError, RecursionError):
        return None
