"""Runs: agents at work in this server, one on a branch at most, and the handlers that operations ask.

Everything here happens in the workshop. A session has a desk of its own there, made when something is first asked of
it, with the extensions of the user and of the project if that is trusted: what guards a session in the terminal guards
it here. Nobody is there who could be asked, so nothing new is trusted. What an agent does is told to the session's
feed; what it writes is in the session, where everybody finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from sessiontree import config
from sessiontree.agent.agent import Agent
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.rescue import Unsaved
from sessiontree.agent.tool import Tool
from sessiontree.agent.tools import builtin_tools
from sessiontree.commands.desk import Desk
from sessiontree.commands.models import ConfiguredModels, Models, choose
from sessiontree.config import PermissionMode
from sessiontree.core.entries import JsonObject
from sessiontree.core.safe import safe
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.extensions.extensions import Extensions
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import (
    Event,
    MessageDelta,
    MessageEnd,
    MessageStart,
    Notice,
    QueueChanged,
    RetryScheduled,
    ToolDenied,
    ToolEnd,
    ToolStart,
    ToolUpdate,
)
from sessiontree.model.base import Model
from sessiontree.session import Branch
from sessiontree.swarm.status import MOST_DENIED
from sessiontree.web.permissions import PermissionDesk
from sessiontree.web.refusals import more_rights
from sessiontree.web.workplace import Workplace
from sessiontree.web.workshop import Workshop

if TYPE_CHECKING:
    from sessiontree.web.opened import Opened

log = logging.getLogger("sessiontree.web")


class Run(Struct, frozen=True, eq=False):
    """An agent at work."""

    agent: Agent
    task: asyncio.Task[None]


class Seat(Struct, frozen=True, eq=False):
    """Where one session is worked on."""

    opened: Opened
    desk: Desk
    extensions: Extensions
    limited: Permissions | None
    """For agents that are kept in their project. What somebody allows these must not count outside of a sandbox."""

    def tools_at(self, place: Workplace) -> list[Tool]:
        """The tools of agents that work at a place. Those of extensions run in this process, where no sandbox is."""
        return list(builtin_tools()) if place.is_limited else self.desk.tools

    def permissions_at(self, place: Workplace) -> Permissions | None:
        return self.limited if place.is_limited else self.desk.permissions

    def hooks_at(self, place: Workplace, branch: Branch | None = None) -> Hooks:
        """The session's handlers, for agents that work at a place."""
        shared = self.desk.hooks
        context = replace(shared.context, agent=None, cwd=place.cwd, confinement=place.confinement)
        if branch is not None:
            context = replace(context, session=branch.session, branch=branch)
        hooks = shared.beside(context)
        hooks.listen(partial(tell_notice, self.opened))
        if place.note is not None:
            hooks.show(Notice(level="warning", text=place.note))
        return hooks

    async def put_away(self) -> None:
        with contextlib.suppress(SessionTreeError):
            await self.desk.close()
        self.extensions.unload()


class Runs:
    def __init__(
        self,
        workshop: Workshop,
        models: Models | None = None,
        folder: Callable[[str], str] = lambda folder: os.getcwd(),
        permissions: PermissionDesk | None = None,
    ) -> None:
        self._workshop = workshop
        self._models = models
        self._folder = folder
        """Says which folder belongs to a session that names one: its project's extensions are looked for there."""
        self._permissions = PermissionDesk() if permissions is None else permissions
        self._seats: dict[str, Seat] = {}
        """By the file of the session."""
        self._at_work: dict[str, dict[str, Run]] = {}
        """By the file and the name of the branch, also when the file was replaced under a run and opened anew."""
        self._making = dict[str, asyncio.Lock]()

    def _seat_of(self, opened: Opened) -> Seat | None:
        """Where a session is worked on; one that was opened anew since is another."""
        seat = self._seats.get(opened.file)
        return seat if seat is not None and seat.desk.session is opened.session else None

    # What may be asked from outside of the workshop

    def find(self, name: str | None = None) -> Model:
        """The model of that name, or the usual one, for no session yet. Raises `NoModel` or `NotFound`."""
        models = ConfiguredModels(config.load(), Hooks()) if self._models is None else self._models
        return models.find(name)

    def running(self, opened: Opened) -> list[str]:
        """The branches of a session with an agent at work."""
        return list(self._at_work.get(opened.file, ()))

    def at_rest(self, opened: Opened, branch: str) -> None:
        """Raises `InvalidOperation` while an agent is at work on a branch: it cannot be moved under it."""
        if branch in self.running(opened):
            raise InvalidOperation(f"an agent is at work on branch {branch!r}: abort it, or wait until it is done")

    async def leave(self, opened: Opened) -> None:
        """Let go of a session."""
        seat = self._seats.get(opened.file)
        if seat is not None and seat.opened is opened:
            await self._workshop.do(self._leave(seat))
        await asyncio.to_thread(opened.session.close)

    async def close(self) -> None:
        """Give up all runs, and wait until that is written down."""
        if self._at_work:
            await self._workshop.do(self._abort_all())

    # In the workshop

    async def seat(self, opened: Opened) -> Seat:
        """The desk of a session, with its extensions."""
        async with self._making.setdefault(opened.file, asyncio.Lock()):
            seat = self._seat_of(opened)
            if seat is not None:
                return seat
            before = self._seats.get(opened.file)
            if before is not None:  # nothing can be written from there any more
                await _give_up(self._at_work.get(opened.file, {}).values())
                await self._leave(before)
            hooks = Hooks()
            hooks.listen(partial(tell_notice, opened))
            settings = await asyncio.to_thread(config.load)
            desk = Desk(
                opened.session,
                hooks=hooks,
                settings=settings,
                models=self._models,
                tools=builtin_tools(),
                cwd=self._folder(opened.session.cwd),
                permissions=await asyncio.to_thread(self._permissions.of_user, settings),
            )
            extensions = Extensions(desk)
            await extensions.load()
            await desk.start()
            limited = None if desk.permissions is None else desk.permissions.apart()
            made = self._seats[opened.file] = Seat(opened, desk, extensions, limited)
            return made

    async def model(self, seat: Seat, branch: Branch, name: str | None = None) -> Model:
        """The model that was named, or that the branch was held with, or the usual one."""
        found, warning = await asyncio.to_thread(choose, seat.desk.models, name, branch.state)
        if warning is not None:
            seat.desk.hooks.show(Notice(level="warning", text=warning))
        return found

    async def prompt(
        self,
        opened: Opened,
        branch: str | None,
        text: str,
        images: Sequence[JsonObject],
        model: str | None,
        ended: Callable[[], None],
        place: Workplace,
        mode: PermissionMode | None = None,
    ) -> tuple[str, str]:
        """Have an agent answer, and return at once: the run and its branch. `ended` is called when it is over.

        With a permission `mode`, whoever listens is asked about calls that need an answer; without, they are denied.

        Where none can begin, `ended` is not called.
        """
        seat = await self.seat(opened)
        session = opened.session
        on = session.head if branch is None else session.branch(branch)
        found = await self.model(seat, on, model)
        self.at_rest(opened, on.name)
        hooks = seat.hooks_at(place, branch=on)
        teller = _Teller(opened, on.name)
        hooks.listen(teller)
        id = secrets.token_hex(4)
        permissions = seat.permissions_at(place)
        if permissions is not None and mode is not None:
            asker = self._permissions.asker(opened, on.name, id, limited=place.is_limited)
            permissions = permissions.with_asker(asker, mode)
        thinking = seat.desk.settings.thinking if on.leaf is None else None
        agent = Agent(
            on,
            found,
            seat.tools_at(place),
            hooks,
            settings=seat.desk.settings,
            thinking=thinking,
            permissions=permissions,
        )
        task = asyncio.create_task(self._carry_out(opened, agent, id, text, images, ended, teller.denied))
        self._at_work.setdefault(opened.file, {})[on.name] = Run(agent, task)
        return id, on.name

    async def _carry_out(
        self,
        opened: Opened,
        agent: Agent,
        id: str,
        text: str,
        images: Sequence[JsonObject],
        ended: Callable[[], None],
        denied: dict[str, str],
    ) -> None:
        name = agent.branch.name
        told: JsonObject = {"branch": name, "run": id}
        error: str | None = None
        tell = partial(opened.feed.publish, count=partial(_count, opened))
        tell("run", {**told, "status": "started"})
        try:
            outcome = await agent.prompt(text, images)
            if isinstance(outcome.error, Unsaved):
                error = str(outcome.error.without_memory("the page that shows it now"))
            elif outcome.error is not None:
                error = str(outcome.error)
            elif outcome.aborted or outcome.cancelled:
                error = "it was aborted" if outcome.aborted else "a handler did not let it happen"
        except SessionTreeError as failed:
            error = str(failed)
        except Exception:
            log.exception("a run on %s failed", opened.file)
            error = "something went wrong here; the server's log tells what"
        finally:
            agent.close()
            self._forget(opened.file, name)
            refused = [{"call": title, "reason": reason} for title, reason in denied.items()]
            tell("run", {**told, "status": "ended", "error": error, "denied": refused})
            ended()

    def _forget(self, file: str, branch: str) -> None:
        running = self._at_work[file]
        del running[branch]
        if not running:
            del self._at_work[file]

    def run_on(self, opened: Opened, branch: str | None) -> Run:
        """The run on a branch, the current one by default. Raises `InvalidOperation` where none is."""
        session = opened.session
        name = (session.head if branch is None else session.branch(branch)).name
        run = self._at_work.get(opened.file, {}).get(name)
        if run is None:
            raise InvalidOperation(f"no agent is at work on branch {name!r}")
        return run

    async def steer(self, opened: Opened, branch: str | None, text: str, *, limited: bool) -> str:
        run = self.run_on(opened, branch)
        confinement = run.agent.confinement
        if limited and not (confinement is not None and confinement.is_limited):
            raise more_rights()
        await run.agent.steer(text)
        return run.agent.branch.name

    async def abort(self, opened: Opened, branch: str | None) -> str:
        """Give up the run on a branch, and wait until that is written down."""
        run = self.run_on(opened, branch)
        name = run.agent.branch.name
        run.agent.abort()
        await asyncio.wait([run.task])
        return name

    async def _abort_all(self) -> None:
        await _give_up(run for runs in self._at_work.values() for run in runs.values())

    async def _leave(self, seat: Seat) -> None:
        if self._seats.get(seat.opened.file) is seat:
            del self._seats[seat.opened.file]
            await seat.put_away()


async def _give_up(runs: Iterable[Run]) -> None:
    """Abort runs, and wait a while until that is written down."""
    given_up = list(runs)
    for run in given_up:
        run.agent.abort()
    if given_up:
        await asyncio.wait([run.task for run in given_up], timeout=10)


def _count(opened: Opened) -> int:
    return len(opened.session.tree.entries)


def tell_notice(opened: Opened, event: Event) -> None:
    """Tell whoever listens to the session of a notice or a retry, and the log; other events are not for here."""
    if isinstance(event, RetryScheduled):
        event = Notice(level="warning", text=f"{event.text} in {event.delay:.0f} s…")
    if isinstance(event, Notice):
        level = logging.INFO if event.level == "info" else logging.WARNING
        log.log(level, "%s: %s", safe(opened.file), safe(event.text))
        opened.feed.publish("notice", {"level": event.level, "text": event.text}, partial(_count, opened))


class _Teller:
    """Tells what an agent does on a branch, as it happens."""

    def __init__(self, opened: Opened, branch: str) -> None:
        self._opened = opened
        self._branch = branch
        self._offsets: dict[str, int] = {}
        self.denied: dict[str, str] = {}
        """Calls that were not allowed, and why; as many as one wants to read."""

    def __call__(self, event: Event) -> None:
        match event:
            case MessageStart():
                self._offsets.clear()
            case MessageDelta(kind=kind, text=text):
                offset = self._offsets.get(kind, 0)
                self._offsets[kind] = offset + len(text)
                more = {} if event.call is None else {"call": event.call, "name": event.name}
                self._tell("delta", kind=kind, text=text, offset=offset, **more)
            case MessageEnd():
                self._opened.feed.wake()
            case ToolDenied(call=call, title=title, reason=reason):
                if len(self.denied) < MOST_DENIED:
                    self.denied[title] = reason
                self._tell("tool", call=call.id, name=call.name, status="denied", title=title, reason=reason)
            case ToolStart(call=call):
                self._tell("tool", call=call.id, name=call.name, status="started")
            case ToolUpdate(call=call, text=text):
                self._tell("tool", call=call.id, name=call.name, status="running", text=text)
            case ToolEnd(call=call):
                self._tell("tool", call=call.id, name=call.name, status="ended")
            case QueueChanged(steering=steering, follow_up=follow_up):
                self._tell("queue", steering=list(steering), followUp=list(follow_up))
            case _:
                pass

    def _tell(self, event: str, /, **data: object) -> None:
        self._opened.feed.publish(event, {"branch": self._branch, **data}, partial(_count, self._opened))
