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

from sessiontree.comparison import BranchStats, stats_of
from sessiontree.config import Config
from sessiontree.core.entries import AgentAction, Custom, Entry, EntryId, JsonObject, Message
from sessiontree.core.heads import renamed_by
from sessiontree.core.messages import Spent, is_object, string, text
from sessiontree.core.tree import Tree
from sessiontree.session import Session
from sessiontree.swarm.estimate import Better, Estimate, Verdict, is_value, mean, not_enough, proportion, verdict
from sessiontree.swarm.scoring import MEASURES

RECORD = "sessiontree.experiment"
"""The type of its `custom` entries."""

Scores: TypeAlias = dict[str, float | None]
"""By scorer; `None` where it could not tell."""

LIMIT = 100_000
"""Runs that an experiment may have."""


class Run(Struct, frozen=True, kw_only=True):
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

    def value(self, metric: str) -> float | None:
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
    runs: tuple[Run, ...]
    winner: str | None
    reason: str
    """Why the winner won; or `not enough data: …`."""
    judging_cost: float
    """What scoring the runs cost, beside what they cost themselves."""
    judging_tokens: float

    @property
    def best(self) -> str | None:
        """The branch to promote: the winner's best run by the metric."""
        own = {run.branch: run.value(self.metric) for run in self.runs if run.arm == self.winner}
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


class Plan(Struct, frozen=True, kw_only=True, rename="camel", tag="plan", tag_field="kind"):
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

    def is_of(self, session: str) -> bool:
        """Whether it was made in a session, by its id: a fork tells of it too."""
        return self.session in (None, session)

    def order(self) -> list[tuple[PlannedArm, int]]:
        """All runs, in turns: the first of every arm, then the second, each round in an order of its own.

        Whatever changes while the experiment goes on, a provider that grows slow say, meets all arms alike.
        """
        chance = random.Random(self.seed)
        return [(arm, number) for number in range(1, self.runs + 1) for arm in chance.sample(self.arms, len(self.arms))]


class Made(Struct, frozen=True, kw_only=True, rename="camel"):
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

    def text(self, tree: Tree) -> str:
        body = tree[self.answer].body if self.answer is not None and self.answer in tree else None
        return text(body.message.get("content")) if isinstance(body, Message) else ""


class Scored(Struct, frozen=True, kw_only=True, rename="camel", tag="run", tag_field="kind"):
    """A run with its scores."""

    made: Made
    cost: float
    tokens: float
    measured: list[str]
    scores: Scores
    notes: dict[str, str]
    judging_cost: float = 0.0
    judging_tokens: float = 0.0

    def run(self, tree: Tree) -> Run:
        made = self.made
        return Run(
            arm=made.arm,
            number=made.number,
            branch=made.branch,
            ok=made.ok,
            text=made.text(tree),
            error=made.error,
            cost=self.cost,
            tokens=self.tokens,
            seconds=made.seconds,
            measured=tuple(self.measured),
            scores=self.scores,
            notes=self.notes,
            denied=tuple(made.denied),
        )


class Stopped(Struct, frozen=True, kw_only=True, rename="camel", tag="stopped", tag_field="kind"):
    """That no more runs are begun, and why."""

    experiment: str
    reason: str


def body_of(record: Plan | Scored | Stopped) -> Custom:
    return Custom(custom_type=RECORD, data=msgspec.to_builtins(record))


def spawn(plan: Plan, arm: str, number: int, branch: str) -> AgentAction:
    """That a run begins."""
    data = {"experiment": plan.experiment, "arm": arm, "number": number, "branch": branch}
    return AgentAction(action="spawn", agent=branch, data=data)


def end(made: Made) -> AgentAction:
    """That a run has come to its end."""
    return AgentAction(action="complete" if made.ok else "fail", agent=made.branch, data=msgspec.to_builtins(made))


def spent_on(tree: Tree, branch: str, leaf: EntryId | None, at: EntryId | None) -> BranchStats:
    """What the entries of a run record as spent."""
    entries: list[Entry] = []
    for entry in tree.up(leaf):
        if entry.id == at:
            break
        entries.append(entry)
    return stats_of(branch, leaf, entries[::-1])


# What is read back


class Trial(NamedTuple):
    """A run that is to be made, or at least scored."""

    arm: PlannedArm
    number: int
    made: Made | None
    """What came of it, where only scores are missing."""
    scores: Scores
    """Those that are not."""
    abandoned: tuple[str, ...]
    """Branches of earlier runs for it that came to no end."""


class Findings:
    """Everything about the experiments of a session. Entries that do not say what they should are none."""

    def __init__(self, session: Session) -> None:
        self._session_id = session.id
        self._tree = session.tree
        self.plans: dict[str, Plan] = {}
        """By id, oldest first."""
        self._scored: dict[tuple[str, str, int], Scored] = {}
        """The last of each run."""
        self._made: dict[tuple[str, str, int], Made] = {}
        self._failures: dict[tuple[str, str], list[EntryId]] = {}
        """The entries that say so, by experiment and arm."""
        self._begun: dict[tuple[str, str, int], list[str]] = {}
        self._stopped: dict[str, str] = {}
        self._judging: dict[str, Spent] = {}
        with session.held():
            for entry in self._tree:
                if entry.custom_type == RECORD:
                    self._take(_record(entry))
                elif entry.type == "agent_action":
                    self._take_action(entry)
                elif self.plans and (renamed := renamed_by(entry)) is not None:
                    self._rename(*renamed)

    def _take(self, record: Plan | Scored | Stopped | None) -> None:
        match record:
            case Plan() if record.experiment not in self.plans and 0 < record.runs * len(record.arms) <= LIMIT:
                self.plans[record.experiment] = record
            case Scored(made=made):
                self._scored[made.experiment, made.arm, made.number] = record
                before = self._judging.get(made.experiment, Spent(0.0, 0.0))
                self._judging[made.experiment] = Spent(
                    before.tokens + record.judging_tokens, before.cost + record.judging_cost
                )
            case Stopped():
                self._stopped[record.experiment] = record.reason
            case _:
                pass

    def _take_action(self, entry: Entry) -> None:
        body = entry.body
        if not isinstance(body, AgentAction) or not is_object(body.data) or "experiment" not in body.data:
            return
        if body.action == "spawn":
            key = _read(body.data, _Key)
            if key is not None:
                self._begun.setdefault((key.experiment, key.arm, key.number), []).append(key.branch)
                self._stopped.pop(key.experiment, None)
        else:
            made = _read(body.data, Made)
            if made is not None:
                self._made[made.experiment, made.arm, made.number] = made
                if not made.ok:
                    self._failures.setdefault((made.experiment, made.arm), []).append(entry.id)

    def _rename(self, old: str, new: str) -> None:
        """Somebody has renamed a branch."""
        for id, plan in self.plans.items():
            if plan.name == old:
                self.plans[id] = replace(plan, name=new)
        for key, names in self._begun.items():
            self._begun[key] = [new if name == old else name for name in names]
        for key, made in self._made.items():
            if made.branch == old:
                self._made[key] = replace(made, branch=new)
        for key, scored in self._scored.items():
            if scored.made.branch == old:
                self._scored[key] = replace(scored, made=replace(scored.made, branch=new))

    def left(self, plan: Plan) -> list[Trial]:
        """What is still to be done, in its order: runs that failed are made again."""
        trials: list[Trial] = []
        for arm, number in plan.order():
            key = plan.experiment, arm.name, number
            made, scored = self._made.get(key), self._scored.get(key)
            if made is None or not made.ok:
                trials.append(Trial(arm, number, None, {}, tuple(self._begun.get(key, ()))))
            elif scored is None or scored.made != made:
                trials.append(Trial(arm, number, made, {}, ()))
            elif None in scored.scores.values():
                known: Scores = {name: value for name, value in scored.scores.items() if value is not None}
                trials.append(Trial(arm, number, made, known, ()))
        return trials

    def spent(self, plan: Plan, heads: Mapping[str, EntryId | None]) -> Spent:
        """What all runs that were begun, and scoring them, have taken so far."""
        judging = self._judging.get(plan.experiment, Spent(0.0, 0.0))
        branches = [name for key, names in self._begun.items() if key[0] == plan.experiment for name in names]
        known = [spent_on(self._tree, name, heads[name], plan.at) for name in branches if name in heads]
        return Spent(
            judging.tokens + sum(stats.tokens for stats in known), judging.cost + sum(stats.cost for stats in known)
        )

    def result(self, plan: Plan) -> ExperimentResult:
        keys = [(plan.experiment, arm.name, number) for number in range(1, plan.runs + 1) for arm in plan.arms]
        runs = [self._scored[key].run(self._tree) for key in keys if key in self._scored]
        judging = self._judging.get(plan.experiment, Spent(0.0, 0.0))
        metrics = [*MEASURES, *(string(scorer.get("name")) for scorer in plan.scorers)]
        yes_or_no = {metric for metric in metrics if _is_proportion(metric, plan, runs)}
        arms = tuple(self._arm_result(plan, arm.name, runs, metrics, yes_or_no) for arm in plan.arms)
        found = _verdict(plan, arms, runs, self._stopped.get(plan.experiment), proportions=plan.metric in yes_or_no)
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

    def _arm_result(
        self, plan: Plan, arm: str, runs: Sequence[Run], metrics: Sequence[str], yes_or_no: set[str]
    ) -> ArmResult:
        good = [run for run in runs if run.arm == arm and run.ok]
        failures = self._failures.get((plan.experiment, arm), [])
        wasted = [spent_on(self._tree, arm, entry, plan.at) for entry in failures]
        return ArmResult(
            arm=arm,
            n=len(good),
            failed=len(failures),
            failed_cost=sum(stats.cost for stats in wasted),
            failed_tokens=sum(stats.tokens for stats in wasted),
            metrics={
                metric: (proportion if metric in yes_or_no else mean)(_values(good, arm, metric)) for metric in metrics
            },
        )


def experiments_in(session: Session) -> list[ExperimentResult]:
    """All experiments of a session, oldest first, from what stands in it."""
    findings = Findings(session)
    return [findings.result(plan) for plan in findings.plans.values()]


def result_to_wire(result: ExperimentResult) -> JsonObject:
    """As the command and the REST interface give it."""
    return {**msgspec.to_builtins(result), "best": result.best}


class _Key(Struct, frozen=True):
    experiment: str
    arm: str
    number: int
    branch: str


def plan_of(entry: Entry) -> Plan | None:
    """The plan that an entry is, if it is one."""
    record = _record(entry) if entry.custom_type == RECORD else None
    return record if isinstance(record, Plan) else None


def _record(entry: Entry) -> Plan | Scored | Stopped | None:
    body = entry.body
    return _read(body.data, Plan | Scored | Stopped) if isinstance(body, Custom) else None


def _read(data: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, ValueError, OverflowError, RecursionError):
        return None


def _values(runs: Iterable[Run], arm: str, metric: str) -> list[float]:
    found = (run.value(metric) for run in runs if run.arm == arm and run.ok)
    return [value for value in found if value is not None]


def _is_proportion(metric: str, plan: Plan, runs: Sequence[Run]) -> bool:
    """Whether its values are answers to a question of yes or no. Those of a function show it."""
    kind = next((scorer.get("kind") for scorer in plan.scorers if scorer.get("name") == metric), None)
    values = [value for arm in plan.arms for value in _values(runs, arm.name, metric)]
    return kind in ("exact", "matches", "function") and all(value in (0, 1) for value in values)


def _verdict(
    plan: Plan, results: Sequence[ArmResult], runs: Sequence[Run], stopped: str | None, *, proportions: bool
) -> Verdict:
    """Which arm wins. While a run is missing, no matter why, it might be the one that would have shown otherwise."""
    if len(runs) < plan.total:
        why = "" if stopped is None else f": {stopped}"
        return not_enough(f"{len(runs)} of {plan.total} runs are done{why}")
    failed = [arm.name for arm in plan.arms if any(run.arm == arm.name and not run.ok for run in runs)]
    if failed:
        return not_enough(f"runs of {', '.join(failed)} failed, and those that did not may be the easy ones")
    lucky = [result.arm for result in results if result.failed]
    if lucky:
        why = "failed before they went well, and only the lucky ones are counted: a new experiment may tell"
        return not_enough(f"runs of {', '.join(lucky)} {why}")
    arms = {arm.name: _values(runs, arm.name, plan.metric) for arm in plan.arms}
    lacking = [name for name, values in arms.items() if len(values) < plan.runs]
    if lacking:
        what = "no recorded" if plan.metric in MEASURES else "no value of"
        return not_enough(f"runs of {', '.join(lacking)} have {what} {plan.metric}")
    return verdict(arms, plan.metric, plan.better, proportions=proportions)
