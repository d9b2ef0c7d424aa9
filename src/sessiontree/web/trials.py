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
from sessiontree.core.heads import renamed_by
from sessiontree.core.messages import is_object
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.model.base import Model
from sessiontree.session import Session
from sessiontree.swarm.experiment import Arm, Experiment, ExperimentResult, check, result_to_wire
from sessiontree.swarm.findings import RECORD, Findings, plan_of
from sessiontree.swarm.hold import is_worked_on
from sessiontree.swarm.scoring import RUBRIC, Scorer, exact, judged_by, matches
from sessiontree.web import wire
from sessiontree.web.mentions import Homes
from sessiontree.web.opened import Opened, OpenSessions
from sessiontree.web.refusals import Refused
from sessiontree.web.runs import Runs
from sessiontree.web.swarming import budget_of
from sessiontree.web.tokens import Token
from sessiontree.web.workplace import Workplace
from sessiontree.web.workshop import Workshop

log = logging.getLogger("sessiontree.web")


class Trial(Struct, eq=False):
    """An experiment that was run here."""

    error: str | None = None
    task: asyncio.Task[None] | None = None
    """While it runs."""


class UnderWay:
    """The branches of runs that have begun and not ended, each with its experiment, as far as entries were read."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._runs: dict[str, str] = {}
        self._own = set[str]()
        """The experiments that were made in this session."""
        self._read = 0
        self._turn = threading.Lock()

    def read(self) -> dict[str, str]:
        """Those, with what was written since."""
        with self._turn:
            new = self._session.tree.items[self._read :]
            self._read += len(new)
            for item in new:
                if isinstance(item, Entry):
                    self._take(item)
            return dict(self._runs)

    def worked_on(self, experiment: str) -> bool:
        """Whether any process works on an experiment of which something was read."""
        return is_worked_on(self._session, experiment, own=experiment in self._own)

    def _take(self, entry: Entry) -> None:
        if entry.type == "agent_action":
            self._take_action(entry.decoded())
        elif (plan := plan_of(entry)) is not None:
            if plan.is_of(self._session.id):
                self._own.add(plan.experiment)
        elif self._runs and (renamed := renamed_by(entry)) is not None:
            old, new = renamed
            self._runs = {new if branch == old else branch: id for branch, id in self._runs.items()}

    def _take_action(self, body: Body) -> None:
        if not isinstance(body, AgentAction) or not is_object(body.data):
            return
        experiment = body.data.get("experiment")
        if isinstance(experiment, str) and body.action == "spawn":
            self._runs[body.agent] = experiment
        elif experiment is not None:
            self._runs.pop(body.agent, None)


class Trials:
    def __init__(self, sessions: OpenSessions, runs: Runs, workshop: Workshop) -> None:
        self._sessions = sessions
        self._runs = runs
        self._workshop = workshop
        self._homes = Homes(RECORD, sessions)
        self._trials: dict[tuple[str, str], Trial] = {}
        """By session and experiment."""

    def under_way(self, opened: Opened) -> dict[str, str]:
        """The branches of a session on which a run of an experiment is at work, in any process, and of which."""
        runs = self._under_way(opened)
        begun = runs.read()
        held = {id for id in set(begun.values()) if runs.worked_on(id)}
        return {branch: id for branch, id in begun.items() if id in held}

    def at_rest(self, opened: Opened, branch: str) -> None:
        """Raises `InvalidOperation` while a run of an experiment is at work on a branch."""
        runs = self._under_way(opened)
        experiment = runs.read().get(branch)
        if experiment is not None and runs.worked_on(experiment):
            whose = f"a run of an experiment is at work on branch {branch!r}"
            raise InvalidOperation(f"{whose}: wait until it is done, or stop the experiment")

    def _under_way(self, opened: Opened) -> UnderWay:
        return opened.kept(UnderWay, lambda: UnderWay(opened.session))

    # Reading

    def state(self, id: str, token: Token) -> wire.ExperimentState:
        """How far an experiment has come: where it was made, or in a fork where that is gone. Raises `Refused`."""
        found = self._homes.hold(id, token, _made_in) or self._homes.hold(id, token, _told_in)
        if found is None:
            raise Refused(404, f"no experiment {id!r}")
        opened, tell = found
        try:
            result = tell()
            trial = self._trials.get((opened.session.id, id))
            done = len(result.runs)
            whole = done >= result.planned
            running = (trial is not None and trial.task is not None) or (
                not whole and is_worked_on(opened.session, id, own=result.session_id == opened.session.id)
            )
            return wire.ExperimentState(
                id=id,
                session_id=opened.session.id,
                status="running" if running else "done" if whole else "failed",
                done=done,
                total=result.planned,
                result=result_to_wire(result),
                error=trial.error if trial is not None else None,
            )
        finally:
            self._sessions.let_go(opened)

    # Running

    async def create(self, opened: Opened, said: wire.NewExperiment, place: Workplace) -> wire.MadeExperiment:
        """Plan an experiment in a session and begin to run it. The session is held as long as it runs.

        Raises `Refused` for one that makes no sense, in whatever session.
        """

        async def make() -> wire.MadeExperiment:
            seat = await self._runs.seat(opened)
            desk = seat.desk
            usual = await self._runs.model(seat, opened.session.head, said.model)
            judges = {
                scorer.model: usual if scorer.model is None else await asyncio.to_thread(desk.models.find, scorer.model)
                for scorer in said.scorers
                if scorer.kind == "judge"
            }
            arms, budget = [_arm(arm) for arm in said.arms], budget_of(said.budget)
            try:
                scorers = [made for scorer in said.scorers if (made := _scorer(scorer, judges.get)) is not None]
                check(arms, runs=said.runs, scorers=scorers, metric=said.metric, name=said.name, budget=budget)
            except InvalidOperation as error:
                raise Refused(422, str(error)) from error
            experiment = await asyncio.to_thread(
                lambda: Experiment.create(
                    opened.session,
                    said.at,
                    arms,
                    runs=said.runs,
                    scorers=scorers,
                    metric=said.metric,
                    name=said.name,
                    model=usual,
                    model_of=desk.models.find,
                    tools=seat.tools_at(place),
                    hooks=seat.hooks_at(place),
                    settings=desk.settings,
                    permissions=seat.permissions_at(place),
                    budget=budget,
                    watch=lambda step: opened.feed.wake(),
                )
            )
            trial = Trial()
            self._trials[opened.session.id, experiment.id] = trial
            self._sessions.hold_again(opened)
            trial.task = asyncio.create_task(self._carry_out(opened, experiment, trial))
            return wire.MadeExperiment(id=experiment.id, name=experiment.name)

        return await self._workshop.do(make())

    async def _carry_out(self, opened: Opened, experiment: Experiment, trial: Trial) -> None:
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
            self._sessions.let_go(opened)

    async def stop(self, session: str, id: str) -> None:
        """Stop running an experiment of a session. What is done stays done. Raises `InvalidOperation`."""
        trial = self._trials.get((session, id))
        if trial is None or trial.task is None:
            raise InvalidOperation(f"experiment {id} is not being run here")
        await self._workshop.do(self._stop([trial.task]))

    async def close(self) -> None:
        """Stop all experiments."""
        tasks = [trial.task for trial in self._trials.values() if trial.task is not None]
        if tasks:
            await self._workshop.do(self._stop(tasks))

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=10)


def _made_in(opened: Opened) -> dict[str, Callable[[], ExperimentResult]]:
    """The experiments that were made in a session: each is asked what it tells, which takes long where it is graded."""
    findings = Findings(opened.session)
    own = (plan for plan in findings.plans.values() if plan.is_of(opened.session.id))
    return {plan.experiment: partial(findings.result, plan) for plan in own}


def _told_in(opened: Opened) -> dict[str, Callable[[], ExperimentResult]]:
    """All that a session tells of: those of another that it was forked from too."""
    findings = Findings(opened.session)
    return {id: partial(findings.result, plan) for id, plan in findings.plans.items()}


def _arm(said: wire.NewArm) -> Arm:
    return Arm(name=said.name, prompt=said.prompt, model=said.model, thinking=said.thinking, system=said.system)


def _scorer(said: wire.NewScorer, model_of: Callable[[str | None], Model | None]) -> Scorer | None:
    """The scorer that was asked for; `None` for what is measured anyway. Raises `Refused`."""
    named = {} if said.name is None else {"name": said.name}
    match said.kind:
        case "exact":
            return exact(_needed(said.text, "exact", "text"), **named)
        case "matches":
            return matches(_needed(said.pattern, "matches", "pattern"), **named)
        case "judge":
            model = model_of(said.model)
            assert model is not None
            return judged_by(model, RUBRIC if said.rubric is None else said.rubric, **named)
        case _:
            return None


def _needed(value: str | None, kind: str, field: str) -> str:
    if value is None:
        raise Refused(422, f"a scorer {kind!r} needs a {field}")
    return value
