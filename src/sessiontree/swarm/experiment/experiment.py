"""Experiments: the same place continued in several ways, each many times, to find out which way is better.

Every run has a branch of its own, `<experiment>/<arm>-<number>`; nobody is moved. What was planned and what came of it
are `custom` entries on the experiment's own branch, so results outlive the process, and `Experiment.open` goes on with
what is left of one that was killed. How answers are scored is in `scoring`, what the values tell in `estimate`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias, TypedDict, Unpack

from msgspec import Struct

from sessiontree.agent.agent import Agent
from sessiontree.agent.loop import Outcome
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.tool import Tool
from sessiontree.config import Config
from sessiontree.core.context import build_context
from sessiontree.core.entries import Entry, EntryId, Message, Usage
from sessiontree.core.messages import complete_usage, describe_shortcoming, extract_text
from sessiontree.core.places import ID_PREFIX_LENGTH, check_branch_name, find_free_name
from sessiontree.core.tree import Tree
from sessiontree.errors import Ambiguous, InvalidOperation, NotFound, SessionTreeError
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import ToolDenied
from sessiontree.model.base import Model
from sessiontree.session import Branch, Place, Session
from sessiontree.swarm.admission import BudgetExhausted, BudgetMeter
from sessiontree.swarm.agent_runner import select_original_tools
from sessiontree.swarm.budget import Budget
from sessiontree.swarm.experiment.results import (
    MAX_RUNS,
    ExperimentLog,
    ExperimentPlan,
    FinishedRun,
    PendingRun,
    PlannedArm,
    ScoredRun,
    StopRecord,
    build_end_action,
    build_record_body,
    build_spawn_action,
    compute_run_stats,
)
from sessiontree.swarm.experiment.results import ArmResult as ArmResult
from sessiontree.swarm.experiment.results import ExperimentResult as ExperimentResult
from sessiontree.swarm.experiment.results import ExperimentRun as ExperimentRun
from sessiontree.swarm.experiment.results import build_result_json as build_result_json
from sessiontree.swarm.experiment.results import list_experiments as list_experiments
from sessiontree.swarm.experiment.scoring import (
    MEASURES,
    Candidate,
    Score,
    Scorer,
    build_scorer,
    check_scorer_names,
)
from sessiontree.swarm.experiment.statistics import Better
from sessiontree.swarm.experiment.statistics import Estimate as Estimate
from sessiontree.swarm.lease import open_lease
from sessiontree.swarm.status import MAX_DENIED

DEFAULT_CONCURRENCY = 4


class Arm(Struct, frozen=True, kw_only=True):
    """One way to go on."""

    name: str
    prompt: str | None = None
    """What is said; `None` has the model answer what is there."""
    model: str | Model | None = None
    """By default the one that all have."""
    thinking: str | None = None
    system: str | None = None
    settings: Config | None = None


RunState: TypeAlias = Literal["started", "scoring", "done"]


class RunProgress(Struct, frozen=True, kw_only=True):
    """That something happened to a run, for those who watch."""

    arm: str
    number: int
    branch: str
    state: RunState
    run: ExperimentRun | None = None
    """When it is done."""
    done: int
    """How many runs are, of all that are planned."""
    planned: int


OnProgress: TypeAlias = Callable[[RunProgress], None]
"""It must not wait."""


class ExperimentOptions(TypedDict, total=False):
    """With what runs are made. Of all this only the names of the tools are written into the session."""

    model: Model | None
    """For arms that name none."""
    model_of: Callable[[str], Model] | None
    """Finds models by name; by default the configured ones."""
    tools: Sequence[Tool]
    """When it goes on: those that can be had. Runs have the ones that were planned."""
    hooks: Hooks | None
    settings: Config | None
    concurrency: int
    """How many runs go on at the same time: `CONCURRENCY` by default."""
    budget: Budget | None
    """For all runs and their scores together, those of an earlier process too; its time is that since `run`."""
    watch: OnProgress | None
    permissions: Permissions | None
    """Decide about the tool calls of all runs; without them, all tools may be used."""


async def run_experiment(
    session: Session,
    place: Place,
    arms: Iterable[Arm],
    *,
    runs: int = 5,
    scorers: Sequence[Scorer] = (),
    metric: str = "cost",
    seed: int = 0,
    name: str | None = None,
    **options: Unpack[ExperimentOptions],
) -> ExperimentResult:
    """Go on from a place in several ways, each `runs` times, and say which is best by `metric`, if the values tell.

    Runs are made in turns, an arm's never all at once, and in an order that follows from `seed`. One that fails says
    so and does not disturb the others. Cancelling it aborts those under way; what is done stays done, and
    `Experiment.open` goes on. Raises `InvalidOperation`, with nothing written, where it could not begin.
    """
    made = Experiment.create(
        session, place, arms, runs=runs, scorers=scorers, metric=metric, seed=seed, name=name, **options
    )
    return await made.run()


class Experiment:
    """An experiment that can be run."""

    def __init__(
        self,
        session: Session,
        plan: ExperimentPlan,
        models: Sequence[Model],
        scorers: Sequence[Scorer],
        options: ExperimentOptions,
    ) -> None:
        """Use `create` or `open`."""
        self.session = session
        self._plan = plan
        self._models = {arm.name: model for arm, model in zip(plan.arms, models, strict=True)}
        self._scorers = scorers
        self._options = options
        self._tools: Sequence[Tool] = ()
        self._done_count = 0
        self._meter = BudgetMeter(None)

    @classmethod
    def create(
        cls,
        session: Session,
        place: Place,
        arms: Iterable[Arm],
        *,
        runs: int = 5,
        scorers: Sequence[Scorer] = (),
        metric: str = "cost",
        seed: int = 0,
        name: str | None = None,
        **options: Unpack[ExperimentOptions],
    ) -> Experiment:
        """Plan an experiment, and write that into the session. Raises `InvalidOperation`, with nothing written."""
        ways, at = list(arms), session.resolve_place(place)
        check_experiment(ways, runs=runs, scorers=scorers, metric=metric, name=name, **options)
        models = [_find_model(way.model, options) for way in ways]
        called = _choose_name(session, name)
        plan = ExperimentPlan(
            experiment=session.generate_id(),
            session=session.id,
            name=called,
            at=at,
            arms=[_build_planned_arm(way, model) for way, model in zip(ways, models, strict=True)],
            runs=runs,
            metric=metric,
            better=_get_direction(metric, scorers),
            scorers=[{**scorer.data, "name": scorer.name} for scorer in scorers],
            seed=seed,
            tools=[tool.name for tool in options.get("tools", ())],
        )
        _check_place(plan, session.tree)
        about = f"experiment over {', '.join(arm.name for arm in plan.arms)}"
        session.create_branch(called, at=_get_entry(session, at), description=about, current=False).append(
            build_record_body(plan)
        )
        return cls(session, plan, models, scorers, options)

    @classmethod
    def open(
        cls, session: Session, id: str, *, scorers: Sequence[Scorer] = (), **options: Unpack[ExperimentOptions]
    ) -> Experiment:
        """An experiment that stands in the session, by its id, the beginning of one, or its name.

        `run` goes on with it: runs that went well are not repeated, those that failed are. Scorers that are functions
        have to be given again, by the same names, and tools where runs are left. Raises `NotFound`, `Ambiguous` or
        `InvalidOperation`.
        """
        _check_options(options)
        plan = find_plan(session, id)
        given = {scorer.name: scorer for scorer in scorers}
        find_model = partial(_find_model, options=options)
        named = [(str(data.get("name")), data) for data in plan.scorers]
        known = [given.get(name) or build_scorer(name, data, find_model) for name, data in named]
        return cls(session, plan, [_find_model(arm.model, options) for arm in plan.arms], known, options)

    @property
    def id(self) -> str:
        return self._plan.experiment

    @property
    def name(self) -> str:
        return self._plan.name

    def result(self) -> ExperimentResult:
        """What is known so far."""
        findings = ExperimentLog(self.session)
        return findings.build_result(findings.plans[self.id])

    async def run(self) -> ExperimentResult:
        """Make the runs that are not made yet, score those that are not scored, and return what all of them tell.

        Raises `InvalidOperation` while another process does that, or when one has taken it over, and where runs would
        lack tools that it was begun with.
        """
        hold = open_lease(self.session, self.id, is_own=self._plan.belongs_to(self.session.id))
        if not await hold.acquire_async():
            raise InvalidOperation(f"another process works on experiment {self.name}")
        try:
            await asyncio.to_thread(self.session.refresh)
            self._plan = find_plan(self.session, self.id)
            if not await hold.run_while_held(self._run_pending()):
                raise InvalidOperation(f"another process works on experiment {self.name} now")
        finally:
            hold.release()
        return self.result()

    async def _run_pending(self) -> None:
        findings = ExperimentLog(self.session)
        left = deque(findings.list_pending(self._plan))
        if any(trial.finished is None for trial in left):
            self._tools = select_original_tools(
                f"experiment {self.name}", self._plan.tools, self._options.get("tools", ())
            )
        self._done_count = self._plan.total - len(left)
        before = findings.compute_spent(self._plan, self.session.heads.heads)
        self._meter = BudgetMeter(self._options.get("budget"), before.cost, before.tokens)

        async def run_queue() -> None:
            while left and self._meter.stop_reason is None:
                try:
                    await self._run_and_score(left.popleft())
                except BaseException:
                    left.clear()  # nobody begins another, but those under way come to their end
                    raise

        at_once = min(self._options.get("concurrency", DEFAULT_CONCURRENCY), len(left))
        for ended in await asyncio.gather(*(run_queue() for _ in range(at_once)), return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended
        ended = self._meter.stop_reason
        if ended is not None and ExperimentLog(self.session).list_pending(self._plan):
            stopped = StopRecord(experiment=self.id, reason=ended)
            await asyncio.to_thread(self._append_record, stopped)

    async def _run_and_score(self, pending: PendingRun) -> None:
        """Make one run, unless it is made, and score it. Where the budget does not let it, it stays to be done."""
        session, made = self.session, pending.finished
        if made is None:
            branch = await asyncio.to_thread(self._create_run_branch, pending)
            self._report_progress(pending, branch, "started")
            made = await self._run_arm(pending, branch)
            if made is None:
                return
            await asyncio.to_thread(branch.append, build_end_action(made))
        else:
            branch = session.branch(made.branch)
        unscored = [scorer for scorer in self._scorers if made.ok and scorer.name not in pending.scores]
        if self._meter.stop_reason is not None and any(scorer.paid for scorer in unscored):
            return
        self._report_progress(pending, branch, "scoring")
        scores = {scorer.name: await self._score(scorer, pending, made, branch) for scorer in unscored}
        used = compute_run_stats(session.tree, branch.name, made.answer, self._plan.at)
        scored = ScoredRun(
            made=made,
            cost=used.cost,
            tokens=used.tokens,
            measured=list(used.measured),
            scores={**pending.scores, **{name: score.value for name, score in scores.items()}},
            notes={name: score.note for name, score in scores.items() if score.note},
            judging_cost=sum(score.cost for score in scores.values()),
            judging_tokens=sum(score.tokens for score in scores.values()),
        )
        await asyncio.to_thread(self._append_record, scored)
        self._done_count += 1
        self._report_progress(pending, branch, "done", scored.build_run(session.tree))

    def _append_record(self, record: ScoredRun | StopRecord) -> None:
        """Write on the experiment's own branch."""
        try:
            self.session.append(build_record_body(record), branch=self.name)
        except NotFound:  # somebody has renamed it
            self._plan = find_plan(self.session, self.id)
            self.session.append(build_record_body(record), branch=self.name)

    def _create_run_branch(self, pending: PendingRun) -> Branch:
        """A branch for a run. Those of earlier ones that came to nothing are put away."""
        session, taken = self.session, self.session.heads.heads
        for name in pending.abandoned:
            if name in taken and name != session.heads.current:
                session.archive_branch(name)
        base = name = f"{self.name}/{pending.arm.name}-{pending.number}"
        attempt = 1
        while name in taken:
            attempt += 1
            name = f"{base}.{attempt}"
        branch = session.create_branch(name, at=_get_entry(session, self._plan.at), current=False)
        branch.append(build_spawn_action(self._plan, pending.arm.name, pending.number, name))
        return branch

    async def _run_arm(self, pending: PendingRun, branch: Branch) -> FinishedRun | None:
        """What came of a run; `None` if the budget was used up before its end."""
        arm = pending.arm
        shared = self._options.get("hooks") or Hooks()
        agent = Agent(
            branch,
            self._meter.wrap(self._models[arm.name]),
            self._tools,
            shared.derive(replace(shared.context, session=self.session, branch=branch, agent=None)),
            system=arm.system,
            settings=arm.settings or self._options.get("settings"),
            thinking=arm.thinking,
            permissions=self._options.get("permissions"),
        )
        denied: dict[str, None] = {}
        agent.hooks.listen(lambda event: denied.setdefault(event.title) if isinstance(event, ToolDenied) else None)
        start = time.monotonic()
        try:
            outcome = await (agent.continue_() if arm.prompt is None else agent.prompt(arm.prompt))
        except SessionTreeError as error:
            outcome = Outcome(error=error)
        finally:
            agent.close()
        if isinstance(outcome.error, BudgetExhausted):
            return None
        return FinishedRun(
            experiment=self.id,
            arm=arm.name,
            number=pending.number,
            branch=branch.name,
            seconds=time.monotonic() - start,
            answer=None if outcome.message is None else outcome.message.id,
            error=_describe_failure(outcome),
            denied=list(denied)[:MAX_DENIED],
        )

    async def _score(self, scorer: Scorer, pending: PendingRun, made: FinishedRun, branch: Branch) -> Score:
        """What a scorer says of an answer. What that costs is written beside its path, so it is not the run's."""
        tree, prompt = self.session.tree, pending.arm.prompt
        question = _read_last_message(tree, self._plan.at) if prompt is None else prompt
        score = await scorer.score(Candidate(question=question, text=made.read_text(tree), branch=branch))
        self._meter.add_unreported(str(scorer.data.get("model", scorer.name)), score.unreported)
        if score.cost or score.tokens:
            self._meter.add(score.cost, score.tokens)
            usage = complete_usage({"totalTokens": score.tokens, "cost": score.cost})
            spent = Usage(kind="experiment", usage=usage, note=f"{self.name}: {scorer.name}")
            await asyncio.to_thread(branch.append, spent)
        return score

    def _report_progress(
        self, pending: PendingRun, branch: Branch, state: RunState, run: ExperimentRun | None = None
    ) -> None:
        watch = self._options.get("watch")
        if watch is not None:
            step = RunProgress(
                arm=pending.arm.name,
                number=pending.number,
                branch=branch.name,
                state=state,
                run=run,
                done=self._done_count,
                planned=self._plan.total,
            )
            watch(step)


def check_experiment(
    arms: Sequence[Arm],
    *,
    runs: int,
    scorers: Sequence[Scorer],
    metric: str,
    name: str | None,
    **options: Unpack[ExperimentOptions],
) -> None:
    """Raises `InvalidOperation` for an experiment that makes no sense, in whatever session."""
    check_scorer_names(scorers)
    _check_options(options)
    _get_direction(metric, scorers)
    names = [arm.name for arm in arms]
    if runs < 1:
        raise InvalidOperation(f"an experiment takes one run of each arm or more, not {runs}")
    if len(names) < 2:
        raise InvalidOperation("an experiment takes two arms or more")
    if len(set(names)) < len(names):
        raise InvalidOperation("two arms have the same name")
    if runs * len(names) > MAX_RUNS:
        raise InvalidOperation(f"{runs * len(names)} runs are too many: {MAX_RUNS} are the most")
    if name is not None:
        check_branch_name(name)
    for arm in names:
        check_branch_name(f"{name or 'ab-1'}/{arm}-{runs}")


def find_plan(session: Session, name: str) -> ExperimentPlan:
    """The experiment of that name or id, or whose id begins so. Raises `NotFound` or `Ambiguous`."""
    plans = list(ExperimentLog(session).plans.values())
    found = [plan for plan in plans if name in (plan.name, plan.experiment)]
    found = found or [plan for plan in plans if len(name) >= ID_PREFIX_LENGTH and plan.experiment.startswith(name)]
    if len(found) > 1:
        raise Ambiguous("experiment", name, [plan.experiment for plan in found])
    if not found:
        raise NotFound("experiment", name, f"there are {', '.join(plan.name for plan in plans) or 'none'}")
    return found[0]


def _find_model(model: str | Model | None, options: ExperimentOptions) -> Model:
    if model is None:
        model = options.get("model")
        if model is None:
            raise InvalidOperation("an arm has no model, and there is none for all")
    if not isinstance(model, str):
        return model
    usual, find_model = options.get("model"), options.get("model_of")
    if usual is not None and usual.info.name == model:
        return usual
    if find_model is None:
        from sessiontree.commands.models import ConfiguredModels

        find_model = ConfiguredModels(options.get("settings") or Config(), options.get("hooks") or Hooks()).find
    return find_model(model)


def _build_planned_arm(arm: Arm, model: Model) -> PlannedArm:
    return PlannedArm(
        name=arm.name,
        model=model.info.name,
        prompt=arm.prompt,
        thinking=arm.thinking,
        system=arm.system,
        settings=arm.settings,
    )


def _describe_failure(outcome: Outcome) -> str | None:
    """Why a run failed."""
    if outcome.error is not None:
        return str(outcome.error)
    if not outcome.ok or outcome.message is None:
        return "a handler did not let it happen"
    body = outcome.message.body
    return describe_shortcoming(body.message) if isinstance(body, Message) else None


def _get_direction(metric: str, scorers: Sequence[Scorer]) -> Better:
    known: dict[str, Better] = {**dict.fromkeys(MEASURES, "lower"), **{each.name: each.better for each in scorers}}
    if metric not in known:
        raise InvalidOperation(f"no metric {metric!r}: choose one of {', '.join(known)}")
    return known[metric]


def _check_options(options: ExperimentOptions) -> None:
    at_once, budget = options.get("concurrency", DEFAULT_CONCURRENCY), options.get("budget")
    if at_once < 1:
        raise InvalidOperation(f"an experiment makes one run at a time or more, not {at_once}")
    if budget is not None:
        budget.check()


def _check_place(plan: ExperimentPlan, tree: Tree) -> None:
    if any(arm.prompt is None for arm in plan.arms) and not build_context(tree, plan.at).awaits_answer:
        raise InvalidOperation("there is nothing to answer at this place: give every arm a prompt")


def _choose_name(session: Session, name: str | None) -> str:
    """A name for the experiment's branch; by default the first that is free."""
    taken = session.heads.heads
    if name in taken:
        raise InvalidOperation(f"there is a branch {name!r} already")
    return find_free_name("ab", taken) if name is None else name


def _get_entry(session: Session, at: EntryId | None) -> Entry | None:
    return None if at is None else session.tree[at]


def _read_last_message(tree: Tree, at: EntryId | None) -> str:
    sent = build_context(tree, at).to_llm()
    return extract_text(sent[-1].get("content")) if sent else ""
