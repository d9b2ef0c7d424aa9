"""Experiments: continue from one place with several arms, each many times, and find out which arm is better.

Every run has its own branch, `<experiment>/<arm>-<number>`. The plan and the results are `custom` entries on the
experiment's branch. They survive the process, and `Experiment.open` resumes an interrupted experiment. `scoring` scores
answers, `statistics` compares the arms.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, Unpack, get_args

from msgspec import Struct

from sessiontree.agent.agent_input import describe_value, resolve_tools
from sessiontree.agent.factory import AgentOptions, BranchTask, open_branch_agent, run_task
from sessiontree.agent.loop import Outcome
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.tool import Tool
from sessiontree.config import Config
from sessiontree.core.context import build_context
from sessiontree.core.entries import Entry, EntryId, Message, Usage
from sessiontree.core.messages import complete_usage, describe_shortcoming, extract_text
from sessiontree.core.place_names import ID_PREFIX_LENGTH, check_branch_name, find_free_name
from sessiontree.core.tree import Tree
from sessiontree.errors import Ambiguous, InvalidOperation, NotFound, SessionTreeError
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import ToolDenied
from sessiontree.model.base import Model
from sessiontree.session import Branch, Item, Place, Session
from sessiontree.swarm.agent_runner import select_original_tools
from sessiontree.swarm.budget import Budget, Spending, check_budget
from sessiontree.swarm.budget_enforcement import BudgetExhausted, BudgetMeter
from sessiontree.swarm.experiment.results import ArmResult as ArmResult
from sessiontree.swarm.experiment.results import ExperimentLog, PendingRun
from sessiontree.swarm.experiment.results import ExperimentResult as ExperimentResult
from sessiontree.swarm.experiment.results import build_result_json as build_result_json
from sessiontree.swarm.experiment.results import list_experiments as list_experiments
from sessiontree.swarm.experiment.run_records import (
    MAX_RUNS,
    AddedRuns,
    ExperimentPlan,
    FinishedRun,
    PlannedArm,
    ScoredRun,
    StopRecord,
    build_end_action,
    build_record_body,
    build_spawn_action,
    compute_run_stats,
)
from sessiontree.swarm.experiment.run_records import ExperimentRun as ExperimentRun
from sessiontree.swarm.experiment.scoring import (
    MEASURES,
    Candidate,
    Score,
    Scorer,
    build_scorer,
    check_scorer_names,
)
from sessiontree.swarm.experiment.statistics import Better, Design, is_value
from sessiontree.swarm.experiment.statistics import Estimate as Estimate
from sessiontree.swarm.lease import open_lease
from sessiontree.swarm.records import MAX_DENIED

DEFAULT_CONCURRENCY = 4
DEFAULT_RUNS = 20


class Arm(BranchTask, frozen=True, kw_only=True):
    """One variant of the continuation that an experiment compares."""

    name: str  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]
    thinking: str | None = None
    system: str | None = None
    settings: Config | None = None


RunState: TypeAlias = Literal["started", "scoring", "done"]


class RunProgress(Struct, frozen=True, kw_only=True):
    """A progress report about one run."""

    arm: str
    number: int
    branch: str
    state: RunState
    run: ExperimentRun | None = None
    """The outcome, if the run is done."""
    done: int
    """Number of finished runs of the experiment."""
    planned: int
    """Total number of runs."""


OnProgress: TypeAlias = Callable[[RunProgress], None]
"""A progress callback. It must not block."""


class ExperimentOptions(TypedDict, total=False):
    """Options of the runs. The session stores only the names of the tools."""

    model: Model | str | None
    """The model of arms that name none, or its name."""
    model_of: Callable[[str], Model] | None
    """Finds models by name. Default: the configured models."""
    tools: Sequence[Tool | Callable[..., Any]]
    """The tools of the runs, or plain functions. A resumed experiment uses the ones in its plan."""
    hooks: Hooks | None
    settings: Config | None
    concurrency: int
    """How many runs are made at the same time. Default: `DEFAULT_CONCURRENCY`."""
    budget: Budget | None
    """Limits all runs and their scoring, including earlier processes. Time is counted from the call of `run`."""
    watch: OnProgress | None
    """Called with the progress of each run."""
    retry_failed: bool
    """Repeat failed runs when an experiment is resumed. By default a failed run is a result like others."""
    stop_early: bool
    """Whether a sequential experiment makes no more runs once there is a winner. Default: true."""
    permissions: Permissions | None
    """Permissions for the tool calls of all runs. Without them, all tools may be used."""
    snapshots: bool
    """Whether runs that may change files work in private folders, and their files are saved. Default: false."""


class PlanOptions(TypedDict, total=False):
    """The plan of an experiment, which the session stores."""

    runs: int
    """The most runs of each arm. Default: `DEFAULT_RUNS`."""
    scorers: Sequence[Scorer]
    metric: str
    """The metric that decides: `cost` (the default), `tokens`, `time`, or the name of a scorer."""
    design: Design
    """`sequential`, the default: the result holds at any time, and runs can be added. `fixed`: there is a result only
    when all runs are done, but yes-or-no scores need fewer of them."""
    failed_score: float | None
    """The value of the metric that a failed run counts with. Default: the wrong answer for yes-or-no scores; otherwise
    the run and its partner in the other arms are left out."""
    places: Sequence[Place]
    """More places that runs continue from, in turns. A branch of another session is copied into this one."""
    seed: int
    """Determines the order of the arms."""
    name: str | None


class ExperimentArguments(PlanOptions, ExperimentOptions, total=False):
    """All options of `experiment`."""


async def experiment(
    session: Session, place: Place, arms: Iterable[Arm], **options: Unpack[ExperimentArguments]
) -> ExperimentResult:
    """Run each arm many times from a place, and find out which arm is best by a metric.

    The arms take turns. A run that fails does not affect the others. If you cancel this coroutine, running runs are
    aborted and finished runs are kept; `Experiment.open` resumes the experiment. Raises `InvalidOperation`, with
    nothing written, if the experiment cannot start.
    """
    return await Experiment.create(session, place, arms, **options).run()


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
        cls, session: Session, place: Place, arms: Iterable[Arm], **options: Unpack[ExperimentArguments]
    ) -> Experiment:
        """Plan an experiment and write the plan to the session. Raises `InvalidOperation`, with nothing written."""
        arm_list = list(arms)
        starts = [_find_start(session, each) for each in (place, *options.get("places", ()))]
        places = [start.leaf for start in starts]
        check_experiment(arm_list, **options)
        _check_starts(arm_list, starts)
        models = [_find_model(arm.model, options) for arm in arm_list]
        scorers, metric = options.get("scorers", ()), options.get("metric", "cost")
        branch_name = _choose_name(session, options.get("name"))
        plan = ExperimentPlan(
            experiment=session.generate_id(),
            session=session.id,
            name=branch_name,
            at=places[0],
            arms=[_build_planned_arm(arm, model) for arm, model in zip(arm_list, models, strict=True)],
            runs=options.get("runs", DEFAULT_RUNS),
            metric=metric,
            better=_get_direction(metric, scorers),
            scorers=[{**scorer.data, "name": scorer.name} for scorer in scorers],
            seed=options.get("seed", 0),
            tools=list(resolve_tools(options.get("tools", ()))),
            design=options.get("design", "sequential"),
            failed_score=options.get("failed_score"),
            places=places if len(places) > 1 else None,
        )
        for number, start in enumerate(starts, 1):
            if start.session is not session:
                _copy_path(session, start, f"{branch_name}/place-{number}")
        about = f"experiment over {', '.join(arm.name for arm in plan.arms)}"
        session.create_branch(branch_name, at=_get_entry(session, plan.at), description=about, current=False).append(
            build_record_body(plan)
        )
        return cls(session, plan, models, scorers, options)

    @classmethod
    def open(
        cls, session: Session, id: str, *, scorers: Sequence[Scorer] = (), **options: Unpack[ExperimentOptions]
    ) -> Experiment:
        """Open an experiment of the session by its id, a prefix of the id, or its name.

        `run` resumes it: finished runs are not repeated. Pass scorers that are functions again, with the same names,
        and the tools if runs are left. Raises `NotFound`, `Ambiguous` or `InvalidOperation`.
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
        """Return the result so far."""
        log = ExperimentLog(self.session)
        return log.build_result(log.plans[self.id])

    def add_runs(self, runs: int) -> None:
        """Plan more runs of every arm; `run` makes them. Raises `InvalidOperation` for a fixed design."""
        if self._plan.design == "fixed":
            raise InvalidOperation(
                f"experiment {self.name} has a fixed number of runs: more runs after a look at its result would make "
                "false winners likely; start a sequential experiment"
            )
        if runs < 1 or (self._plan.runs + runs) * len(self._plan.arms) > MAX_RUNS:
            raise InvalidOperation(f"between 1 and {MAX_RUNS} runs can be added, not {runs}")
        self._append_record(AddedRuns(experiment=self.id, runs=runs))
        self._plan = find_plan(self.session, self.id)

    async def run(self) -> ExperimentResult:
        """Make the missing runs, score runs without scores, and return the result.

        Raises `InvalidOperation` if another process runs the experiment or takes it over, or if a tool is missing.
        """
        lease = open_lease(self.session, self.id, is_own=self._plan.belongs_to(self.session.id))
        if not await lease.acquire_async():
            raise InvalidOperation(f"another process is running experiment {self.name}")
        try:
            await asyncio.to_thread(self.session.refresh)
            self._plan = find_plan(self.session, self.id)
            if not await lease.run_while_held(self._run_pending()):
                raise InvalidOperation(f"another process took over experiment {self.name}")
        finally:
            lease.release()
        return self.result()

    async def _run_pending(self) -> None:
        log = ExperimentLog(self.session)
        queue = deque(log.list_pending(self._plan, retry_failed=self._options.get("retry_failed", False)))
        if self._is_decided(log):
            queue = deque(pending for pending in queue if pending.finished is not None)
        if any(pending.finished is None for pending in queue):
            self._tools = select_original_tools(
                f"experiment {self.name}",
                self._plan.tools,
                list(resolve_tools(self._options.get("tools", ())).values()),
            )
        self._done_count = self._plan.total - len(queue)
        before = log.compute_spent(self._plan, self.session.heads.heads)
        self._meter = BudgetMeter(self._options.get("budget"), before.cost, before.tokens)

        async def run_queue() -> None:
            while queue and self._meter.stop_reason is None:
                try:
                    await self._run_and_score(queue.popleft())
                    if await asyncio.to_thread(self._is_decided):
                        queue.clear()
                except BaseException:
                    queue.clear()  # start no more runs; those in progress finish
                    raise

        concurrency = min(self._options.get("concurrency", DEFAULT_CONCURRENCY), len(queue))
        for outcome in await asyncio.gather(*(run_queue() for _ in range(concurrency)), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        reason = self._meter.stop_reason
        if reason is not None and ExperimentLog(self.session).list_pending(self._plan):
            await asyncio.to_thread(self._append_record, StopRecord(experiment=self.id, reason=reason))

    def _is_decided(self, log: ExperimentLog | None = None) -> bool:
        """Whether a sequential experiment needs no more runs."""
        if self._plan.design == "fixed" or not self._options.get("stop_early", True):
            return False
        return (log or ExperimentLog(self.session)).build_verdict(self._plan).winner is not None

    async def _run_and_score(self, pending: PendingRun) -> None:
        """Make one run unless it is finished, and score it. If the budget runs out, the run stays pending."""
        session, finished = self.session, pending.finished
        if finished is None:
            branch = await asyncio.to_thread(self._create_run_branch, pending)
            self._report_progress(pending, branch, "started")
            finished = await self._run_arm(pending, branch)
            if finished is None:
                return
            await asyncio.to_thread(branch.append, build_end_action(finished))
        else:
            branch = session.branch(finished.branch)
        unscored = [scorer for scorer in self._scorers if finished.ok and scorer.name not in pending.scores]
        if self._meter.stop_reason is not None and any(scorer.paid for scorer in unscored):
            return
        self._report_progress(pending, branch, "scoring")
        scores = {scorer.name: await self._score(scorer, pending, finished, branch) for scorer in unscored}
        used = compute_run_stats(session.tree, branch.name, finished.answer, self._plan)
        scored = ScoredRun(
            made=finished,
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

    def _append_record(self, record: ScoredRun | AddedRuns | StopRecord) -> None:
        """Append a record to the experiment's branch."""
        try:
            self.session.append(build_record_body(record), branch=self.name)
        except NotFound:  # the branch was renamed
            self._plan = find_plan(self.session, self.id)
            self.session.append(build_record_body(record), branch=self.name)

    def _create_run_branch(self, pending: PendingRun) -> Branch:
        """Create a branch for a run, and archive the branches of its earlier attempts."""
        session, taken = self.session, self.session.heads.heads
        for name in pending.abandoned:
            if name in taken and name != session.heads.current:
                session.archive_branch(name)
        base = name = f"{self.name}/{pending.arm.name}-{pending.number}"
        attempt = 1
        while name in taken:
            attempt += 1
            name = f"{base}.{attempt}"
        place = _get_entry(session, self._plan.get_place(pending.number))
        branch = session.create_branch(name, at=place, current=False)
        branch.append(build_spawn_action(self._plan, pending.arm.name, pending.number, name))
        return branch

    async def _run_arm(self, pending: PendingRun, branch: Branch) -> FinishedRun | None:
        """Make a run and return it, or `None` if the budget ran out."""
        arm = pending.arm
        model, denied = self._meter.wrap(self._models[arm.name]), dict[str, None]()
        options = AgentOptions(
            tools=self._tools,
            system=arm.system,
            settings=arm.settings or self._options.get("settings") or Config(),
            thinking=arm.thinking,
            permissions=self._options.get("permissions"),
            snapshots=self._options.get("snapshots", False),
        )
        async with open_branch_agent(branch, model, self._options.get("hooks"), options) as agent:
            agent.hooks.listen(lambda event: denied.setdefault(event.title) if isinstance(event, ToolDenied) else None)
            start = time.monotonic()
            try:
                outcome = await run_task(agent, arm.prompt)
            except SessionTreeError as error:
                outcome = Outcome(error=error)
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

    async def _score(self, scorer: Scorer, pending: PendingRun, finished: FinishedRun, branch: Branch) -> Score:
        """Score an answer. The cost of scoring is written behind the answer, so it does not count as the run's."""
        tree, prompt = self.session.tree, pending.arm.prompt
        place = self._plan.get_place(pending.number)
        question = _read_last_message(tree, place) if prompt is None else prompt
        score = await scorer.score(Candidate(question=question, text=finished.read_text(tree), branch=branch))
        self._meter.add_unreported(str(scorer.data.get("model", scorer.name)), score.unreported)
        if score.cost or score.tokens:
            self._meter.add(Spending(score.cost, score.tokens))
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


def check_experiment(arms: Sequence[Arm], **options: Unpack[ExperimentArguments]) -> None:
    """Raise `InvalidOperation` for invalid arguments, independent of the session."""
    runs, name, scorers = options.get("runs", DEFAULT_RUNS), options.get("name"), options.get("scorers", ())
    check_scorer_names(scorers)
    _check_options(options)
    _get_direction(options.get("metric", "cost"), scorers)
    design, failed_score = options.get("design", "sequential"), options.get("failed_score")
    if design not in get_args(Design):
        raise InvalidOperation(f"unknown design {design!r}; designs: {', '.join(get_args(Design))}")
    if failed_score is not None and not is_value(failed_score):
        raise InvalidOperation(f"the score of failed runs must be a number, not {failed_score!r}")
    if runs and len(options.get("places", ())) >= runs:
        raise InvalidOperation("an experiment needs at least one run of each arm for every place")
    for arm in arms:
        if not isinstance(arm, Arm):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
            raise InvalidOperation(f'an arm is an st.Arm(name="…", prompt="…"), not {describe_value(arm)}')
    names = [arm.name for arm in arms]
    if runs < 1:
        raise InvalidOperation(f"an experiment needs at least 1 run of each arm, not {runs}")
    if len(names) < 2:
        raise InvalidOperation("an experiment needs at least two arms")
    if len(set(names)) < len(names):
        raise InvalidOperation("two arms have the same name")
    if runs * len(names) > MAX_RUNS:
        raise InvalidOperation(f"{runs * len(names)} runs are too many; the limit is {MAX_RUNS}")
    if name is not None:
        check_branch_name(name)
    for arm in names:
        check_branch_name(f"{name or 'ab-1'}/{arm}-{runs}")


def find_plan(session: Session, name: str) -> ExperimentPlan:
    """Return the plan of an experiment by its name, id or id prefix. Raises `NotFound` or `Ambiguous`."""
    plans = list(ExperimentLog(session).plans.values())
    found = [plan for plan in plans if name in (plan.name, plan.experiment)]
    found = found or [plan for plan in plans if len(name) >= ID_PREFIX_LENGTH and plan.experiment.startswith(name)]
    if len(found) > 1:
        raise Ambiguous("experiment", name, [plan.experiment for plan in found])
    if not found:
        raise NotFound("experiment", name, f"experiments: {', '.join(plan.name for plan in plans) or 'none'}")
    return found[0]


def _find_model(model: str | Model | None, options: ExperimentOptions) -> Model:
    default, find_model = options.get("model"), options.get("model_of")
    if model is None:
        model = default
        if model is None:
            raise InvalidOperation("an arm has no model; set one for the arm or for the experiment")
    if not isinstance(model, str):
        return model
    if default is not None and not isinstance(default, str) and default.info.name == model:
        return default
    if find_model is None:
        from sessiontree.slash_commands.models import ConfiguredModels

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
    """Return why a run failed, or `None`."""
    if outcome.error is not None:
        return str(outcome.error)
    if not outcome.ok or outcome.message is None:
        return outcome.stop_text or "a handler cancelled the request"
    body = outcome.message.body
    return describe_shortcoming(body.message) if isinstance(body, Message) else None


def _get_direction(metric: str, scorers: Sequence[Scorer]) -> Better:
    known: dict[str, Better] = {**dict.fromkeys(MEASURES, "lower"), **{each.name: each.better for each in scorers}}
    if metric not in known:
        raise InvalidOperation(f"unknown metric {metric!r}; metrics: {', '.join(known)}")
    return known[metric]


def _check_options(options: ExperimentArguments | ExperimentOptions) -> None:
    concurrency, budget = options.get("concurrency", DEFAULT_CONCURRENCY), options.get("budget")
    if concurrency < 1:
        raise InvalidOperation(f"the concurrency must be at least 1, not {concurrency}")
    check_budget(budget)


class _Start(NamedTuple):
    """A place that runs start from."""

    session: Session
    leaf: EntryId | None


def _find_start(session: Session, place: Place) -> _Start:
    if isinstance(place, Branch) and place.session is not session:
        if place.leaf is None:
            raise InvalidOperation(f"branch {place.name!r} of another session has no entries to start from")
        return _Start(place.session, place.leaf)
    return _Start(session, session.resolve_place(place))


def _check_starts(arms: Sequence[Arm], starts: Sequence[_Start]) -> None:
    if any(arm.prompt is None for arm in arms) and not all(
        build_context(start.session.tree, start.leaf).awaits_answer for start in starts
    ):
        raise InvalidOperation("this place has no message to answer; give every arm a prompt")


def _copy_path(session: Session, source: _Start, name: str) -> None:
    """Copy a path of another session to a new branch. Entries that are here already are not copied."""
    path = [entry for entry in source.session.tree.path(source.leaf) if not entry.is_annotation]
    shared = next((number for number in range(len(path), 0, -1) if path[number - 1].id in session.tree), 0)
    start = session.tree[path[shared - 1].id] if shared else None
    about = f"copied from session {source.session.name or source.session.id}"
    session.create_branch(name, at=start, description=about, current=False)
    if path[shared:]:
        items = [Item(entry.body, id=entry.id, is_copy=True, timestamp=entry.timestamp) for entry in path[shared:]]
        session.extend(items, branch=name)


def _choose_name(session: Session, name: str | None) -> str:
    """Return the name of the experiment's branch. Default: the first free `ab-…` name."""
    taken = session.heads.heads
    if name in taken:
        raise InvalidOperation(f"branch {name!r} already exists")
    return find_free_name("ab", taken) if name is None else name


def _get_entry(session: Session, at: EntryId | None) -> Entry | None:
    return None if at is None else session.tree[at]


def _read_last_message(tree: Tree, at: EntryId | None) -> str:
    sent = build_context(tree, at).to_llm()
    return extract_text(sent[-1].get("content")) if sent else ""
