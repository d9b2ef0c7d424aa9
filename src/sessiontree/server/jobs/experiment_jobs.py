"""Experiments of the server: found in the sessions they belong to, and run in the workshop.

What was planned and what came of it stands in the session; here is only which are being run, and what went wrong.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from sessiontree.core.entries import AgentAction, Body, Entry
from sessiontree.core.heads import read_rename
from sessiontree.core.messages import is_object
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.model.base import Model
from sessiontree.server import schemas
from sessiontree.server.auth import Token
from sessiontree.server.http_errors import ApiError
from sessiontree.server.jobs.agent_access import Workspace
from sessiontree.server.jobs.agent_jobs import AgentJobs
from sessiontree.server.jobs.registry import AgentLoop
from sessiontree.server.jobs.swarm_jobs import build_budget
from sessiontree.server.session_cache import OpenSession, SessionCache
from sessiontree.server.session_locator import SessionLocator
from sessiontree.session import Session
from sessiontree.swarm.experiment.experiment import (
    Arm,
    Experiment,
    ExperimentResult,
    build_result_json,
    check_experiment,
)
from sessiontree.swarm.experiment.results import EXPERIMENT_RECORD_TYPE, ExperimentLog, read_plan
from sessiontree.swarm.experiment.scoring import RUBRIC, Scorer, exact, judge_with, matches
from sessiontree.swarm.lease import is_leased

log = logging.getLogger("sessiontree.server")


class ExperimentJob(Struct, eq=False):
    """An experiment that was run here."""

    error: str | None = None
    task: asyncio.Task[None] | None = None
    """While it runs."""


class ExperimentBranches:
    """The branches of runs that have begun and not ended, each with its experiment, as far as entries were read."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._branches: dict[str, str] = {}
        self._local_experiments = set[str]()
        """The experiments that were made in this session."""
        self._read_count = 0
        self._lock = threading.Lock()

    def read(self) -> dict[str, str]:
        """Those, with what was written since."""
        with self._lock:
            new = self._session.tree.items[self._read_count :]
            self._read_count += len(new)
            for item in new:
                if isinstance(item, Entry):
                    self._apply_entry(item)
            return dict(self._branches)

    def is_running(self, experiment: str) -> bool:
        """Whether any process works on an experiment of which something was read."""
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
    def __init__(self, sessions: SessionCache, runs: AgentJobs, agent_loop: AgentLoop) -> None:
        self._sessions = sessions
        self._runs = runs
        self._agent_loop = agent_loop
        self._locator = SessionLocator(EXPERIMENT_RECORD_TYPE, sessions)
        self._jobs: dict[tuple[str, str], ExperimentJob] = {}
        """By session and experiment."""

    def find_running_branches(self, opened: OpenSession) -> dict[str, str]:
        """The branches of a session on which a run of an experiment is at work, in any process, and of which."""
        runs = self._get_branches(opened)
        begun = runs.read()
        held = {id for id in set(begun.values()) if runs.is_running(id)}
        return {branch: id for branch, id in begun.items() if id in held}

    def check_idle(self, opened: OpenSession, branch: str) -> None:
        """Raises `InvalidOperation` while a run of an experiment is at work on a branch."""
        runs = self._get_branches(opened)
        experiment = runs.read().get(branch)
        if experiment is not None and runs.is_running(experiment):
            whose = f"a run of an experiment is at work on branch {branch!r}"
            raise InvalidOperation(f"{whose}: wait until it is done, or stop the experiment")

    def _get_branches(self, opened: OpenSession) -> ExperimentBranches:
        return opened.get_or_create(ExperimentBranches, lambda: ExperimentBranches(opened.session))

    # Reading

    def get_state(self, id: str, token: Token) -> schemas.ExperimentResponse:
        """How far an experiment has come: where it was made, or in a fork where that is gone. Raises `Refused`."""
        found = self._locator.acquire(id, token, _find_local_results) or self._locator.acquire(
            id, token, _find_all_results
        )
        if found is None:
            raise ApiError(404, f"no experiment {id!r}")
        opened, tell = found
        try:
            result = tell()
            trial = self._jobs.get((opened.session.id, id))
            done = len(result.runs)
            whole = done >= result.planned
            running = (trial is not None and trial.task is not None) or (
                not whole and is_leased(opened.session, id, is_own=result.session_id == opened.session.id)
            )
            return schemas.ExperimentResponse(
                id=id,
                session_id=opened.session.id,
                status="running" if running else "done" if whole else "failed",
                done=done,
                total=result.planned,
                result=build_result_json(result),
                error=trial.error if trial is not None else None,
            )
        finally:
            self._sessions.release(opened)

    # Running

    async def create(
        self, opened: OpenSession, request: schemas.CreateExperimentRequest, workspace: Workspace
    ) -> schemas.CreateExperimentResponse:
        """Plan an experiment in a session and begin to run it. The session is held as long as it runs.

        Raises `Refused` for one that makes no sense, in whatever session.
        """

        async def create_and_start() -> schemas.CreateExperimentResponse:
            seat = await self._runs.open_runtime(opened)
            desk = seat.controller
            usual = await self._runs.choose_model(seat, opened.session.head, request.model)
            judges = {
                scorer.model: usual if scorer.model is None else await asyncio.to_thread(desk.models.find, scorer.model)
                for scorer in request.scorers
                if scorer.kind == "judge"
            }
            arms, budget = [_build_arm(arm) for arm in request.arms], build_budget(request.budget)
            try:
                scorers = [
                    made for scorer in request.scorers if (made := _build_scorer(scorer, judges.get)) is not None
                ]
                check_experiment(
                    arms, runs=request.runs, scorers=scorers, metric=request.metric, name=request.name, budget=budget
                )
            except InvalidOperation as error:
                raise ApiError(422, str(error)) from error
            experiment = await asyncio.to_thread(
                lambda: Experiment.create(
                    opened.session,
                    request.at,
                    arms,
                    runs=request.runs,
                    scorers=scorers,
                    metric=request.metric,
                    name=request.name,
                    model=usual,
                    model_of=desk.models.find,
                    tools=seat.get_tools(workspace),
                    hooks=seat.create_hooks(workspace),
                    settings=desk.settings,
                    permissions=seat.get_permissions(workspace),
                    budget=budget,
                    watch=lambda step: opened.feed.wake(),
                )
            )
            trial = ExperimentJob()
            self._jobs[opened.session.id, experiment.id] = trial
            self._sessions.add_user(opened)
            trial.task = asyncio.create_task(self._run(opened, experiment, trial))
            return schemas.CreateExperimentResponse(id=experiment.id, name=experiment.name)

        return await self._agent_loop.run(create_and_start())

    async def _run(self, opened: OpenSession, experiment: Experiment, trial: ExperimentJob) -> None:
        try:
            await experiment.run()
        except asyncio.CancelledError:
            trial.error = "it was stopped"
        except SessionTreeError as error:
            trial.error = str(error)
        except Exception:
            log.exception("experiment %s failed", experiment.id)
            trial.error = "something went wrong here; the server's log tells what"
        finally:
            trial.task = None
            opened.feed.wake()
            self._sessions.release(opened)

    async def stop(self, session: str, id: str) -> None:
        """Stop running an experiment of a session. What is done stays done. Raises `InvalidOperation`."""
        trial = self._jobs.get((session, id))
        if trial is None or trial.task is None:
            raise InvalidOperation(f"experiment {id} is not being run here")
        await self._agent_loop.run(self._stop([trial.task]))

    async def close(self) -> None:
        """Stop all experiments."""
        tasks = [trial.task for trial in self._jobs.values() if trial.task is not None]
        if tasks:
            await self._agent_loop.run(self._stop(tasks))

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=10)


def _find_local_results(opened: OpenSession) -> dict[str, Callable[[], ExperimentResult]]:
    """The experiments that were made in a session: each is asked what it tells, which takes long where it is graded."""
    findings = ExperimentLog(opened.session)
    own = (plan for plan in findings.plans.values() if plan.belongs_to(opened.session.id))
    return {plan.experiment: partial(findings.build_result, plan) for plan in own}


def _find_all_results(opened: OpenSession) -> dict[str, Callable[[], ExperimentResult]]:
    """All that a session tells of: those of another that it was forked from too."""
    findings = ExperimentLog(opened.session)
    return {id: partial(findings.build_result, plan) for id, plan in findings.plans.items()}


def _build_arm(request: schemas.ArmRequest) -> Arm:
    return Arm(
        name=request.name, prompt=request.prompt, model=request.model, thinking=request.thinking, system=request.system
    )


def _build_scorer(request: schemas.ScorerRequest, model_of: Callable[[str | None], Model | None]) -> Scorer | None:
    """The scorer that was asked for; `None` for what is measured anyway. Raises `Refused`."""
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
        raise ApiError(422, f"a scorer {kind!r} needs a {field}")
    return value
