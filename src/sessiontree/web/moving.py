"""Routes that move things: branches, switching, navigating, undoing, labels, forks, merges, copies.

Bare changes are made while the session is held. Operations with handlers and summaries are carried out in the
workshop; a summary that a model makes takes the scope `run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends

from sessiontree import catalog
from sessiontree.core.places import BRANCH, check_branch_name
from sessiontree.errors import InvalidOperation
from sessiontree.model.base import Model
from sessiontree.ops import navigate as navigating
from sessiontree.ops.fork import fork
from sessiontree.ops.merge import cherry_pick, merge, others, promote
from sessiontree.session import Branch, Session
from sessiontree.web import wire
from sessiontree.web.opened import Opened
from sessiontree.web.refusals import Refused
from sessiontree.web.rows import branches_of
from sessiontree.web.runs import Seat
from sessiontree.web.schema import told
from sessiontree.web.serving import Call, Json, Said, Writes

router = APIRouter(prefix="/api/sessions/{id}")

T = TypeVar("T")


# Branches


@router.post("/branches", **told(wire.MadeBranch, status=201, takes=wire.NewBranch))
def create_branch(call: Writes, id: str, said: Annotated[wire.NewBranch, Depends(Said(wire.NewBranch))]) -> Json:
    """A new branch, which becomes current unless `switch` is false."""
    with call.writing(id) as opened:
        return Json(made_branch(opened.session, said), 201, at=opened)


def made_branch(session: Session, said: wire.NewBranch) -> wire.MadeBranch:
    check_name(said.name)
    branch = session.create_branch(
        said.name, at="HEAD" if said.at is None else said.at, description=said.description, current=said.switch
    )
    return wire.MadeBranch(entry_id=branch.leaf, name=branch.name)


def check_name(name: str) -> None:
    """Raises `Refused` for what cannot be the name of a branch."""
    try:
        check_branch_name(name)
    except InvalidOperation as error:
        raise Refused(422, str(error)) from None


@router.patch("/branches/{name:path}", **told(wire.Branches, takes=wire.BranchChange))
def change_branch(
    call: Writes, id: str, name: str, said: Annotated[wire.BranchChange, Depends(Said(wire.BranchChange))]
) -> Json:
    """Give a branch another name, archive it, or bring it back."""
    if said.name is None and said.archived is None:
        raise Refused(422, "nothing is to be changed")
    if said.name is not None:
        check_name(said.name)
    with call.writing(id) as opened:
        session = opened.session
        session.branch(name)
        call.serving.at_rest(opened, name)
        renamed = None if said.name == name else said.name
        if renamed in session.heads.heads:  # before anything is done
            raise InvalidOperation(f"there is a branch {renamed!r} already")
        if said.archived is not None:
            session.archive_branch(name, archived=said.archived)
        if renamed is not None:
            session.rename_branch(name, renamed)
        return Json(branches_of(session, wire.LARGEST_PAGE, None), at=opened)


@router.post("/switch-branch", **told(wire.Here, takes=wire.Switch))
def switch_branch(call: Writes, id: str, said: Annotated[wire.Switch, Depends(Said(wire.Switch))]) -> Json:
    """Make another branch current."""
    with call.writing(id) as opened:
        return Json(switched(opened, said.branch), at=opened)


def switched(opened: Opened, branch: str) -> wire.Here:
    opened.session.branch(branch)
    opened.session.switch(f"{BRANCH}{branch}")
    return _here(opened)


def _here(opened: Opened) -> wire.Here:
    return wire.Here(current=opened.session.heads.current, leaf=opened.leaf)


@router.post("/undo", **told(wire.Undone, takes=wire.Nothing, empty=True))
def undo(call: Writes, id: str, said: Annotated[wire.Nothing, Depends(Said(wire.Nothing, empty=True))]) -> Json:
    """Undo the last move, switch, merge or promotion, and say which; again, the one before it."""
    with call.writing(id) as opened:
        move = opened.session.heads.undoable
        for branch in () if move is None else move.moved:
            call.serving.at_rest(opened, branch)
        undone = opened.session.undo().undone or ""
        here = _here(opened)
        return Json(wire.Undone(current=here.current, leaf=here.leaf, undone=undone), at=opened)


@router.post("/label", **told(wire.Labeled, takes=wire.Labeling))
def label(call: Writes, id: str, said: Annotated[wire.Labeling, Depends(Said(wire.Labeling))]) -> Json:
    """Put a label on an entry; `null` takes it away."""
    with call.writing(id) as opened:
        return Json(wire.Labeled(id=opened.session.label(said.entry, said.label).id), at=opened)


# Operations, with handlers


@asynccontextmanager
async def working(call: Call, id: str) -> AsyncGenerator[Opened]:
    """A session for an operation, found and let go of in a thread."""
    kept: AbstractContextManager[Opened] = call.working(id)
    opened = await asyncio.to_thread(kept.__enter__)
    try:
        for pause in call.serving.sessions.pauses(opened):
            await asyncio.sleep(pause)
        yield opened
    finally:
        await asyncio.to_thread(kept.__exit__, None, None, None)


async def _operated(call: Call, opened: Opened, operation: Callable[[Seat], Coroutine[Any, Any, T]]) -> T:
    """Carry out an operation in the workshop, with the session's handlers."""
    runs = call.serving.runs

    async def operate() -> T:
        return await operation(await runs.seat(opened))

    return await call.serving.workshop.do(operate())


async def _answer(opened: Opened, value: wire.Answer, status: int = 200) -> Json:
    def made() -> Json:
        with opened.session.held():
            return Json(value, status, at=opened)

    return await asyncio.to_thread(made)


def _branch(session: Session, name: str | None) -> Branch:
    return session.branch(session.heads.current if name is None else name)


async def _summarizer(call: Call, seat: Seat, branch: Branch, wanted: bool) -> Model | None:
    """The model that makes a summary, where one is wanted."""
    if not wanted:
        return None
    call.needs_run()
    return await call.serving.runs.model(seat, branch)


@router.post("/navigate", **told(wire.Navigated, takes=wire.Navigation))
async def navigate(call: Writes, id: str, said: Annotated[wire.Navigation, Depends(Said(wire.Navigation))]) -> Json:
    """Move a branch to a place by the rules of selection, with a summary of what is left if that is wanted.

    Choosing a message of the user goes to its parent, and gives back its text, to be said anew.
    """

    async def go(seat: Seat) -> navigating.NavigateOutcome:
        session = opened.session
        branch = _branch(session, said.branch)
        call.serving.at_rest(opened, branch.name)
        left = session.plan_navigate(said.to, start=branch.name).abandoned
        wanted = said.summarize and said.summary is None and bool(left)
        return await navigating.navigate(
            session,
            said.to,
            hooks=seat.desk.hooks,
            model=await _summarizer(call, seat, branch, wanted),
            summarize=wanted,
            custom_instructions=said.instructions,
            summary=said.summary,
            branch=branch,
            settings=seat.desk.settings.summary,
            retry=seat.desk.settings.retry,
        )

    if said.summarize and said.summary is None:
        call.needs_run()
    async with working(call, id) as opened:
        outcome = await _operated(call, opened, go)
        entry = None if outcome.summary_entry is None else outcome.summary_entry.id
        answer = wire.Navigated(
            leaf=outcome.new_leaf, text=outcome.editor_text, summary_entry=entry, cancelled=outcome.cancelled
        )
        return await _answer(opened, answer)


@router.post("/fork", **told(wire.Forked, status=201, takes=wire.Forking, empty=True))
async def fork_session(
    call: Writes, id: str, said: Annotated[wire.Forking, Depends(Said(wire.Forking, empty=True))]
) -> Json:
    """A new session with the path to a place, or with the whole tree. The source is not touched."""

    async def copy(seat: Seat) -> str:
        session = opened.session
        if said.tree:
            made = await asyncio.to_thread(catalog.fork, session, at=said.at, whole=True, name=said.name)
        else:
            made = (await fork(session, said.at, hooks=seat.desk.hooks, name=said.name)).session
            if made is None:
                raise Refused(409, "a handler did not let it happen", code="cancelled")
        with made:
            return made.id

    async with working(call, id) as opened:
        return Json(wire.Forked(id=await _operated(call, opened, copy)), 201)


@router.post("/merge", **told(wire.Merged, takes=wire.Merging))
async def merge_branch(call: Writes, id: str, said: Annotated[wire.Merging, Depends(Said(wire.Merging))]) -> Json:
    """Write a summary of another branch at the head of this one."""

    async def bring_back(seat: Seat) -> wire.Merged:
        session = opened.session
        source, into = session.branch(said.source), _branch(session, said.into)
        call.serving.at_rest(opened, into.name)
        outcome = await merge(
            source,
            into,
            hooks=seat.desk.hooks,
            model=await _summarizer(call, seat, into, said.summary is None),
            summary=said.summary,
            custom_instructions=said.instructions,
            settings=seat.desk.settings.summary,
            retry=seat.desk.settings.retry,
        )
        entry = None if outcome.summary_entry is None else outcome.summary_entry.id
        return wire.Merged(id=entry, branch=into.name, leaf=outcome.new_leaf, cancelled=outcome.cancelled)

    async with working(call, id) as opened:
        return await _answer(opened, await _operated(call, opened, bring_back))


@router.post("/promote", **told(wire.Promoted, takes=wire.Promotion))
async def promote_branch(call: Writes, id: str, said: Annotated[wire.Promotion, Depends(Said(wire.Promotion))]) -> Json:
    """Go on from the head of one branch, with a summary of the others, which are archived with it."""

    async def choose(seat: Seat) -> wire.Promoted:
        session = opened.session
        winner, into = session.branch(said.branch), _branch(session, said.into)
        if winner == into:
            raise Refused(422, f"branch {winner.name!r} cannot be promoted into itself")
        rest = others(into, winner)
        for branch in (into, winner, *rest):
            call.serving.at_rest(opened, branch.name)
        outcome = await promote(
            winner,
            into,
            rest,
            hooks=seat.desk.hooks,
            model=await _summarizer(call, seat, into, said.summary is None and bool(rest)),
            summary=said.summary,
            custom_instructions=said.instructions,
            settings=seat.desk.settings.summary,
            retry=seat.desk.settings.retry,
        )
        archived = [] if outcome.cancelled else [branch.name for branch in (*rest, winner)]
        return wire.Promoted(leaf=outcome.new_leaf, archived=archived, cancelled=outcome.cancelled)

    async with working(call, id) as opened:
        return await _answer(opened, await _operated(call, opened, choose))


@router.post("/cherry-pick", **told(wire.Copied, takes=wire.CherryPick))
async def pick(call: Writes, id: str, said: Annotated[wire.CherryPick, Depends(Said(wire.CherryPick))]) -> Json:
    """Copy messages to the head of a branch, tool calls and their results together."""

    async def copy(seat: Seat) -> wire.Copied:
        onto = _branch(opened.session, said.onto)
        call.serving.at_rest(opened, onto.name)
        outcome = await cherry_pick(onto, said.entries, hooks=seat.desk.hooks)
        ids = [entry.id for entry in outcome.entries]
        return wire.Copied(ids=ids, leaf=outcome.new_leaf, cancelled=outcome.cancelled)

    async with working(call, id) as opened:
        return await _answer(opened, await _operated(call, opened, copy))
