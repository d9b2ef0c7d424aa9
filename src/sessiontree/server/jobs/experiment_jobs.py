"""Experiments that this server runs, and experiments of other processes that it finds in sessions.

Plans and results are stored in the session. Only running jobs and their errors are kept here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

from sessiontree.core.entries import EXPERIMENT_RECORD, AgentAction, Body, Entry
from sessiontree.core.heads import read_rename
from sessiontree.core.messages import is_object
from sessiontree.errors import InvalidOperation
from sessiontree.model.base import Model
from sessiontree.server import schemas
from sessiontree.server.auth import Token
from sessiontree.server.http_errors import ApiError
from sessiontree.server.jobs.agent_access import Workspace
from sessiontree.server.jobs.agent_jobs import AgentJobs
from sessiontree.server.jobs.job_registry import AgentLoop, Job, JobRegistry
from sessiontree.server.jobs.swarm_jobs import build_budget
from sessiontree.server.session_cache import OpenSession, SessionCache, SessionLocator
from sessiontree.session import Session
from sessiontree.swarm.experiment.experiment import (
    Arm,
    Experiment,
    ExperimentResult,
    PlanOptions,
    build_result_json,
    check_experiment,
)
from sessiontree.swarm.experiment.results import ExperimentLog
from sessiontree.swarm.experiment.run_records import read_plan
from sessiontree.swarm.experiment.scoring import RUBRIC, Scorer, exact, judge_with, matches
from sessiontree.swarm.lease import is_leased


class ExperimentBranches:
    """The branches of unfinished runs and their experiments, collected from the entries of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._branches: dict[str, str] = {}
        self._local_experiments = set[str]()
        """Experiments that were created in this session, not copied by a fork."""
        self._read_count = 0
        self._lock = threading.Lock()

    def read(self) -> dict[str, str]:
        """Read new entries, and return the experiment of each branch with an unfinished run."""
        with self._lock:
            new = self._session.tree.items[self._read_count :]
            self._read_count += len(new)
            for item in new:
                if isinstance(item, Entry):
                    self._apply_entry(item)
            return dict(self._branches)

    def is_running(self, experiment: str) -> bool:
        """Whether any process is running the experiment."""
        return is_leased(self._session, experiment, is_own=experiment in self._local_experiments)

    def _apply_entry(self, entry: Entry) -> None:
        if entry.type == "agent_action":
            self._apply_action(entry.decode())
        elif (plan := read_plan(entry)) is not None:
            if plan.belongs_to(self._session.id):
                self._local_experiments.add(plan.experiment)
        elif self._branches and (renamed := read_rename(entry)) is not None:
            old, new = renamed
            self._branches = {new if branch == old else branch: id for branch, id in self._branches.items()}

    def _apply_action(self, body: Body) -> None:
        if not isinstance(body, AgentAction) or not is_object(body.data):
            return
        experiment = body.data.get("experiment")
        if isinstance(experiment, str) and body.action == "spawn":
            self._branches[body.agent] = experiment
        elif experiment is not None:
            self._branches.pop(body.agent, None)


class ExperimentJobs:
    """The experiments of this server. A job has the key `("experiment", session, id)`."""

    def __init__(self, jobs: JobRegistry, sessions: SessionCache, runs: AgentJobs, agent_loop: AgentLoop) -> None:
        self._jobs = jobs
        self._sessions = sessions
        self._runs = runs
        self._agent_loop = agent_loop
        self._locator = SessionLocator(EXPERIMENT_RECORD, sessions)
        self._errors: dict[tuple[str, str], str | None] = {}
        """How jobs ended, by session and experiment."""

    def find_running_branches(self, opened: OpenSession) -> dict[str, str]:
        """Return the branches on which any process is running an experiment, and the id of that experiment."""
        branches = self._get_branches(opened)
        unfinished = branches.read()
        running = {id for id in set(unfinished.values()) if branches.is_running(id)}
        return {branch: id for branch, id in unfinished.items() if id in running}

    def check_idle(self, opened: OpenSession, branch: str) -> None:
        """Raises `InvalidOperation` if an experiment is running on the branch."""
        branches = self._get_branches(opened)
        experiment = branches.read().get(branch)
        if experiment is not None and branches.is_running(experiment):
            raise InvalidOperation(f"an experiment is running on branch {branch!r}; stop it or wait until it finishes")

    def _get_branches(self, opened: OpenSession) -> ExperimentBranches:
        return opened.get_or_create(ExperimentBranches, lambda: ExperimentBranches(opened.session))

    # Reading

    def get_state(self, id: str, token: Token) -> schemas.ExperimentResponse:
        """Return the progress of an experiment. Raises `ApiError`.

        The session that it was created in comes first; if that is gone, a fork that contains the experiment is used.
        """
        found = self._locator.acquire(id, token, _find_local_results) or self._locator.acquire(
            id, token, _find_all_results
        )
        if found is None:
            raise ApiError(404, f"experiment {id!r} not found")
        opened, build_result = found
        try:
            result = build_result()
            key = opened.session.id, id
            done = len(result.runs)
            is_complete = done >= result.planned or result.winner is not None
            is_running = self._jobs.get("experiment", *key) is not None or (
                not is_complete and is_leased(opened.session, id, is_own=result.session_id == opened.session.id)
            )
            return schemas.ExperimentResponse(
                id=id,
                session_id=opened.session.id,
                status="running" if is_running else "done" if is_complete else "failed",
                done=done,
                total=result.planned,
                result=build_result_json(result),
                error=self._errors.get(key),
            )
        finally:
            self._sessions.release(opened)

    # Running

    async def create(
        self, opened: OpenSession, request: schemas.CreateExperimentRequest, workspace: Workspace
    ) -> schemas.CreateExperimentResponse:
        """Plan an experiment in a session and start it. Raises `ApiError` for an invalid request."""

        async def create_and_start() -> schemas.CreateExperimentResponse:
            runtime = await self._runs.open_runtime(opened)
            controller = runtime.controller
            default_model = await self._runs.choose_model(runtime, opened.session.head, request.model)
            judges = {
                scorer.model: default_model
                if scorer.model is None
                else await asyncio.to_thread(controller.models.find, scorer.model)
                for scorer in request.scorers
                if scorer.kind == "judge"
            }
            arms = [_build_arm(arm) for arm in request.arms]
            try:
                scorers = [
                    built for scorer in request.scorers if (built := _build_scorer(scorer, judges.get)) is not None
                ]
                plan: PlanOptions = {
                    "runs": request.runs,
                    "scorers": scorers,
                    "metric": request.metric,
                    "design": request.design,
                    "failed_score": request.failed_score,
                    "places": request.places,
                    "name": request.name,
                }
                budget = build_budget(request.budget)
                check_experiment(arms, **plan, budget=budget)
            except InvalidOperation as error:
                raise ApiError(422, str(error)) from error
            experiment = await asyncio.to_thread(
                lambda: Experiment.create(
                    opened.session,
                    request.at,
                    arms,
                    **plan,
                    model=default_model,
                    model_of=controller.models.find,
                    tools=runtime.get_tools(workspace),
                    hooks=runtime.create_hooks(workspace),
                    settings=controller.settings,
                    permissions=runtime.get_permissions(workspace),
                    budget=budget,
                    watch=lambda step: opened.feed.wake(),
                )
            )
            self._start(opened, experiment)
            return schemas.CreateExperimentResponse(id=experiment.id, name=experiment.name)

        return await self._agent_loop.run(create_and_start())

    def _start(self, opened: OpenSession, experiment: Experiment) -> None:
        session, id = opened.session.id, experiment.id

        async def run_experiment() -> None:
            await experiment.run()

        async def cancel_task() -> None:
            if job.task is not None:
                job.task.cancel()

        def keep_error(error: str | None) -> None:
            self._errors[session, id] = error

        job = Job(key=("experiment", session, id), opened=opened, worker=experiment, stop=cancel_task)
        self._jobs.start(job, run_experiment(), keep_error)

    async def stop(self, session: str, id: str) -> None:
        """Stop an experiment of a session; finished runs keep their results. Raises `InvalidOperation`."""
        job = self._jobs.get("experiment", session, id)
        if job is None:
            raise InvalidOperation(f"experiment {id} is not running on this server")
        await self._agent_loop.run(self._jobs.stop([job]))


def _find_local_results(opened: OpenSession) -> dict[str, Callable[[], ExperimentResult]]:
    """Return functions that build the results of experiments created in a session. Building may grade answers."""
    experiment_log = ExperimentLog(opened.session)
    own = (plan for plan in experiment_log.plans.values() if plan.belongs_to(opened.session.id))
    return {plan.experiment: partial(experiment_log.build_result, plan) for plan in own}


def _find_all_results(opened: OpenSession) -> dict[str, Callable[[], ExperimentResult]]:
    """Return such functions for all experiments in a session, also those copied by a fork."""
    experiment_log = ExperimentLog(opened.session)
    return {id: partial(experiment_log.build_result, plan) for id, plan in experiment_log.plans.items()}


def _build_arm(request: schemas.ArmRequest) -> Arm:
    return Arm(
        name=request.name, prompt=request.prompt, model=request.model, thinking=request.thinking, system=request.system
    )


def _build_scorer(request: schemas.ScorerRequest, model_of: Callable[[str | None], Model | None]) -> Scorer | None:
    """Return the requested scorer, or `None` for a metric that is always measured. Raises `ApiError`."""
    named = {} if request.name is None else {"name": request.name}
    match request.kind:
        case "exact":
            return exact(_require_field(request.text, "exact", "text"), **named)
        case "matches":
            return matches(_require_field(request.pattern, "matches", "pattern"), **named)
        case "judge":
            model = model_of(request.model)
            assert model is not None
            return judge_with(model, RUBRIC if request.rubric is None else request.rubric, **named)
        case _:
            return None


def _require_field(value: str | None, kind: str, field: str) -> str:
    if value is None:
        raise ApiError(422, f"scorer {kind!r} needs a {field}")
    return value
