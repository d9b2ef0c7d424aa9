"""Routes that change branches: create, switch, navigate, undo, label, fork, merge, promote and cherry-pick.

Operations with hooks and summaries run in the agent loop. A summary that a model writes needs the scope `run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends

from sessiontree.config import load_config
from sessiontree.core.operation_plans import NavigatePlan
from sessiontree.core.place_names import BRANCH_PREFIX, check_branch_name, find_branch
from sessiontree.errors import InvalidOperation
from sessiontree.files.file_history import read_restore_diff
from sessiontree.files.private_folder import find_private_folder
from sessiontree.files.restore import RestoreOutcome
from sessiontree.files.restore_plan import RestorePlan
from sessiontree.library import catalog
from sessiontree.ops import fork
from sessiontree.ops import navigate as navigating
from sessiontree.ops.compare_files import FilesComparison, compare_files, encode_files_comparison
from sessiontree.ops.merge import MergeOutcome, cherry_pick, find_other_branches, merge, promote
from sessiontree.ops.merge_files import remove_branch_folders
from sessiontree.ops.move_files import UNDONE_RESTORE, FileMover
from sessiontree.ops.summarize import SummaryRequest
from sessiontree.server import schemas
from sessiontree.server.app_state import JsonResponse, RequestBody, RequestContext, RunContext, WriteContext
from sessiontree.server.http_errors import ApiError
from sessiontree.server.jobs.agent_jobs import SessionRuntime
from sessiontree.server.openapi import describe_route
from sessiontree.server.routes.tree import build_branch_list
from sessiontree.server.session_cache import OpenSession
from sessiontree.session import Branch, Session

router = APIRouter(prefix="/api/sessions/{id}")

T = TypeVar("T")


# Branches


@router.post(
    "/branches", **describe_route(schemas.CreateBranchResponse, status=201, request=schemas.CreateBranchRequest)
)
def create_branch(
    call: WriteContext,
    id: str,
    request: Annotated[schemas.CreateBranchRequest, Depends(RequestBody(schemas.CreateBranchRequest))],
) -> JsonResponse:
    """Create a branch. It becomes the current one unless `switch` is false."""
    with call.write_session(id) as opened:
        return JsonResponse(create_branch_in(opened.session, request), 201, at=opened)


def create_branch_in(session: Session, request: schemas.CreateBranchRequest) -> schemas.CreateBranchResponse:
    validate_branch_name(request.name)
    branch = session.create_branch(
        request.name,
        at="HEAD" if request.at is None else request.at,
        description=request.description,
        current=request.switch,
    )
    return schemas.CreateBranchResponse(entry_id=branch.leaf, name=branch.name)


def validate_branch_name(name: str) -> None:
    """Raises `ApiError` for an invalid branch name."""
    try:
        check_branch_name(name)
    except InvalidOperation as error:
        raise ApiError(422, str(error)) from None


@router.patch(
    "/branches/{name:path}", **describe_route(schemas.BranchListResponse, request=schemas.UpdateBranchRequest)
)
def change_branch(
    call: WriteContext,
    id: str,
    name: str,
    request: Annotated[schemas.UpdateBranchRequest, Depends(RequestBody(schemas.UpdateBranchRequest))],
) -> JsonResponse:
    """Rename, archive or restore a branch."""
    if request.name is None and request.archived is None:
        raise ApiError(422, "nothing to change; send a name or archived")
    if request.name is not None:
        validate_branch_name(request.name)
    with call.write_session(id) as opened:
        session = opened.session
        session.branch(name)
        call.state.check_idle(opened, name)
        renamed = None if request.name == name else request.name
        if renamed in session.heads.heads:  # check before the first write
            raise InvalidOperation(f"branch {renamed!r} already exists")
        if find_private_folder(session.id, name) is not None:
            call.check_can_run()
            if renamed is not None:
                raise InvalidOperation(f"branch {name!r} has a private folder; merge or archive it before renaming")
        if request.archived is not None:
            session.archive_branch(name, archived=request.archived)
        if request.archived:
            remove_branch_folders(session, [name], load_config().files)
        if renamed is not None:
            session.rename_branch(name, renamed)
        return JsonResponse(build_branch_list(session, schemas.MAX_PAGE_SIZE, None), at=opened)


@router.post("/switch-branch", **describe_route(schemas.SwitchResponse, request=schemas.SwitchRequest))
def switch_branch(
    call: WriteContext,
    id: str,
    request: Annotated[schemas.SwitchRequest, Depends(RequestBody(schemas.SwitchRequest))],
) -> JsonResponse:
    """Switch to another branch, optionally with its files."""
    if request.needs_files:
        call.check_can_run()
    with call.write_session(id) as opened:
        session, place = opened.session, f"{BRANCH_PREFIX}{request.branch}"
        session.branch(request.branch)
        files = _move_with_files(
            session, request, lambda mover: mover.plan_switch(request.branch), lambda: session.switch(place)
        )
        here = schemas.SwitchResponse(current=session.heads.current, leaf=opened.leaf, files=files)
        return JsonResponse(here, at=opened)


@router.post("/undo", **describe_route(schemas.UndoResponse, request=schemas.UndoRequest, allow_empty=True))
def undo(
    call: WriteContext,
    id: str,
    request: Annotated[schemas.UndoRequest, Depends(RequestBody(schemas.UndoRequest, allow_empty=True))],
) -> JsonResponse:
    """Undo the last move, switch, merge or promotion, and return what was undone. Repeat it to go further back."""
    if request.needs_files:
        call.check_can_run()
    with call.write_session(id) as opened:
        session, last_move = opened.session, opened.session.heads.undoable
        for branch in () if last_move is None else last_move.moved_branches:
            call.state.check_idle(opened, branch)
        plans: list[NavigatePlan] = []

        def plan_move() -> NavigatePlan:
            plans.append(session.plan_undo())
            return plans[0]

        def move() -> None:
            session.undo(expected=plans[0] if plans else plan_move())

        files = _move_with_files(session, request, lambda mover: mover.plan_undo(plan_move), move)
        undone = plans[0].undo_description if plans else UNDONE_RESTORE
        answer = schemas.UndoResponse(current=session.heads.current, leaf=opened.leaf, undone=undone or "", files=files)
        return JsonResponse(answer, at=opened)


def _move_with_files(
    session: Session,
    request: schemas.FilesRequest,
    plan_files: Callable[[FileMover], RestorePlan],
    move: Callable[[], object],
) -> schemas.FileMoves | None:
    """Move the conversation, the files, or both, or return a preview. Files are planned before anything moves."""
    if not request.needs_files:
        move()
        return None
    mover = FileMover.find(session.head, load_config().files)
    plan = plan_files(mover).take(request.take)
    if request.preview:
        return _build_file_moves(plan, diff=_read_diff(plan) if request.diff else None)
    if request.files == "both" and not plan.is_files_only:
        move()
        mover.branch = session.head
    return _build_file_moves(plan, mover.restore(plan))


@router.post("/files-diff", **describe_route(schemas.FilesDiffResponse, request=schemas.FilesDiffRequest))
def diff_files(
    call: RunContext,
    id: str,
    request: Annotated[schemas.FilesDiffRequest, Depends(RequestBody(schemas.FilesDiffRequest))],
) -> JsonResponse:
    """Compare the files of two places: counts, and a unified diff. It shows project files, as an agent can."""
    with call.read_session(id) as opened:
        session = opened.session
        leaves = session.resolve_place(request.a), session.resolve_place(request.b)
        found = compare_files(session, *leaves, load_config().files) or FilesComparison()
        return JsonResponse(encode_files_comparison(found, schemas.MAX_DIFF_CHARACTERS), at=opened)


@router.post("/label", **describe_route(schemas.LabelResponse, request=schemas.LabelRequest))
def label(
    call: WriteContext, id: str, request: Annotated[schemas.LabelRequest, Depends(RequestBody(schemas.LabelRequest))]
) -> JsonResponse:
    """Label an entry; `null` removes the label."""
    with call.write_session(id) as opened:
        return JsonResponse(schemas.LabelResponse(id=opened.session.label(request.entry, request.label).id), at=opened)


# Operations with hooks


@asynccontextmanager
async def use_session(call: RequestContext, id: str) -> AsyncGenerator[OpenSession]:
    """Keep a session open for an operation. Opening and releasing it happen in a thread."""
    context: AbstractContextManager[OpenSession] = call.use_session(id)
    opened = await asyncio.to_thread(context.__enter__)
    try:
        for pause in call.state.sessions.wait_for_lock(opened):
            await asyncio.sleep(pause)
        yield opened
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def _run_operation(
    call: RequestContext, opened: OpenSession, operation: Callable[[SessionRuntime], Coroutine[Any, Any, T]]
) -> T:
    """Run an operation in the agent loop, with the hooks of the session."""
    runs = call.state.runs

    async def run_operation() -> T:
        return await operation(await runs.open_runtime(opened))

    return await call.state.agent_loop.run(run_operation())


async def _respond(opened: OpenSession, value: schemas.ResponseModel, status: int = 200) -> JsonResponse:
    def build_response() -> JsonResponse:
        with opened.session.hold_lock():
            return JsonResponse(value, status, at=opened)

    return await asyncio.to_thread(build_response)


def _get_branch(session: Session, name: str | None) -> Branch:
    return session.branch(session.heads.current if name is None else name)


async def _request_summary(
    call: RequestContext, runtime: SessionRuntime, branch: Branch, instructions: str | None
) -> SummaryRequest:
    """Return a request for a summary by a model. Raises `ApiError` if the token may not run models."""
    call.check_can_run()
    settings = runtime.controller.settings
    return SummaryRequest(
        model=await call.state.runs.choose_model(runtime, branch),
        instructions=instructions,
        settings=settings.summary,
        retry=settings.retry,
    )


@router.post("/navigate", **describe_route(schemas.NavigateResponse, request=schemas.NavigateRequest))
async def navigate(
    call: WriteContext,
    id: str,
    request: Annotated[schemas.NavigateRequest, Depends(RequestBody(schemas.NavigateRequest))],
) -> JsonResponse:
    """Move a branch to a place, optionally with a summary of the abandoned entries.

    If the place is a user message, the branch moves to its parent, and the response contains the text for editing.
    """

    async def run_navigate(runtime: SessionRuntime) -> navigating.NavigateOutcome:
        session = opened.session
        branch = _get_branch(session, request.branch)
        call.state.check_idle(opened, branch.name)
        abandoned = session.plan_navigate(request.to, start=branch.name).abandoned
        needs_summary = request.summarize and request.summary is None and bool(abandoned)
        return await navigating.navigate(
            session,
            request.to,
            hooks=runtime.controller.hooks,
            summary=await _request_summary(call, runtime, branch, request.instructions)
            if needs_summary
            else request.summary,
            branch=branch,
            files=request.files,
            take=request.take,
            file_settings=runtime.controller.settings.files,
        )

    async def plan_files(runtime: SessionRuntime) -> RestorePlan:
        branch = _get_branch(opened.session, request.branch)
        leaf = opened.session.plan_navigate(request.to, start=branch.name).new_leaf
        mover = await asyncio.to_thread(FileMover.find, branch, runtime.controller.settings.files)
        return await asyncio.to_thread(mover.plan, leaf)

    if (request.summarize and request.summary is None) or request.needs_files:
        call.check_can_run()
    async with use_session(call, id) as opened:
        plan = None
        if request.needs_files:
            plan = (await _run_operation(call, opened, plan_files)).take(request.take)
        if request.preview:
            leaf = _get_branch(opened.session, request.branch).leaf
            diff = await asyncio.to_thread(_read_diff, plan) if request.diff and plan is not None else None
            shown = schemas.NavigateResponse(
                leaf=leaf, text=None, summary_entry=None, cancelled=False, files=_build_file_moves(plan, diff=diff)
            )
            return await _respond(opened, shown)
        outcome = await _run_operation(call, opened, run_navigate)
        entry = None if outcome.summary_entry is None else outcome.summary_entry.id
        answer = schemas.NavigateResponse(
            leaf=outcome.new_leaf,
            text=outcome.editor_text,
            summary_entry=entry,
            cancelled=outcome.cancelled,
            files=_build_file_moves(plan, outcome.files),
        )
        return await _respond(opened, answer)


def _read_diff(plan: RestorePlan) -> str:
    return "" if plan.is_empty else read_restore_diff(plan)[: schemas.MAX_DIFF_CHARACTERS]


def _build_file_moves(
    plan: RestorePlan | None, done: RestoreOutcome | None = None, diff: str | None = None
) -> schemas.FileMoves | None:
    """Return the files of a preview, or of a restore that is done: a file may have changed after the preview."""
    if plan is None:
        return None
    conflicts = plan.conflicts if done is None else done.conflicts
    kept = {conflict.path for conflict in conflicts}
    paths = [schemas.FileMove(path=item.path, action=item.action) for item in plan.changes if item.path not in kept]
    paths += [
        schemas.FileMove(path=item.path, action="keep", reason=item.reason, can_take=item.can_take)
        for item in conflicts
    ]
    return schemas.FileMoves(
        paths=paths, missing=plan.missing, others=list(plan.others), files_only=plan.is_files_only, diff=diff
    )


@router.post("/fork", **describe_route(schemas.ForkResponse, status=201, request=schemas.ForkRequest, allow_empty=True))
async def fork_session(
    call: WriteContext,
    id: str,
    request: Annotated[schemas.ForkRequest, Depends(RequestBody(schemas.ForkRequest, allow_empty=True))],
) -> JsonResponse:
    """Copy the path to a place, or the whole tree, into a new session."""

    async def run_fork(runtime: SessionRuntime) -> str:
        session = opened.session
        if request.tree:
            made = await asyncio.to_thread(catalog.fork, session, at=request.at, whole=True, name=request.name)
        else:
            made = (
                await fork.fork_session(session, request.at, hooks=runtime.controller.hooks, name=request.name)
            ).session
            if made is None:
                raise ApiError(409, "cancelled by a handler", code="cancelled")
        with made:
            return made.id

    async with use_session(call, id) as opened:
        return JsonResponse(schemas.ForkResponse(id=await _run_operation(call, opened, run_fork)), 201)


@router.post("/merge", **describe_route(schemas.MergeResponse, request=schemas.MergeRequest))
async def merge_branch(
    call: WriteContext, id: str, request: Annotated[schemas.MergeRequest, Depends(RequestBody(schemas.MergeRequest))]
) -> JsonResponse:
    """Append a summary of another branch or place to this branch."""

    async def run_merge(runtime: SessionRuntime) -> schemas.MergeResponse:
        session = opened.session
        into = _get_branch(session, request.into)
        call.state.check_idle(opened, into.name)
        name = find_branch(request.source, session.tree, session.heads)
        _check_can_merge_files(call, session, [] if name is None else [name])
        outcome = await merge(
            request.source,
            into,
            hooks=runtime.controller.hooks,
            summary=await _request_summary(call, runtime, into, request.instructions)
            if request.summary is None
            else request.summary,
            file_settings=runtime.controller.settings.files,
        )
        entry = None if outcome.summary_entry is None else outcome.summary_entry.id
        return schemas.MergeResponse(
            id=entry,
            branch=into.name,
            leaf=outcome.new_leaf,
            cancelled=outcome.cancelled,
            files=_build_merged_files(outcome),
        )

    async with use_session(call, id) as opened:
        return await _respond(opened, await _run_operation(call, opened, run_merge))


def _check_can_merge_files(call: RequestContext, session: Session, branches: Iterable[str]) -> None:
    """Raises `ApiError` if one of the branches has a private folder and the token may not change files."""
    if any(find_private_folder(session.id, name) is not None for name in branches):
        call.check_can_run()


def _build_merged_files(outcome: MergeOutcome) -> schemas.MergedFiles | None:
    done = outcome.files
    if done is None:
        return None
    conflicts = [schemas.FileMove(path=item.path, action="keep", reason=item.reason) for item in done.conflicts]
    return schemas.MergedFiles(
        folder=done.folder, written=list(done.written), deleted=list(done.deleted), conflicts=conflicts
    )


@router.post("/promote", **describe_route(schemas.PromoteResponse, request=schemas.PromoteRequest))
async def promote_branch(
    call: WriteContext,
    id: str,
    request: Annotated[schemas.PromoteRequest, Depends(RequestBody(schemas.PromoteRequest))],
) -> JsonResponse:
    """Continue from the head of one branch, with a summary of the others, and archive them all."""

    async def run_promote(runtime: SessionRuntime) -> schemas.PromoteResponse:
        session = opened.session
        winner, into = session.branch(request.branch), _get_branch(session, request.into)
        if winner == into:
            raise ApiError(422, f"cannot promote branch {winner.name!r} into itself")
        rest = find_other_branches(into, winner)
        for branch in (into, winner, *rest):
            call.state.check_idle(opened, branch.name)
        summary: SummaryRequest | str = SummaryRequest() if request.summary is None else request.summary
        if request.summary is None and rest:
            summary = await _request_summary(call, runtime, into, request.instructions)
        _check_can_merge_files(call, session, [branch.name for branch in (winner, *rest)])
        outcome = await promote(
            winner,
            into,
            rest,
            hooks=runtime.controller.hooks,
            summary=summary,
            file_settings=runtime.controller.settings.files,
        )
        archived = [] if outcome.cancelled else [branch.name for branch in (*rest, winner)]
        return schemas.PromoteResponse(
            leaf=outcome.new_leaf,
            archived=archived,
            cancelled=outcome.cancelled,
            files=_build_merged_files(outcome),
        )

    async with use_session(call, id) as opened:
        return await _respond(opened, await _run_operation(call, opened, run_promote))


@router.post("/cherry-pick", **describe_route(schemas.CherryPickResponse, request=schemas.CherryPickRequest))
async def pick(
    call: WriteContext,
    id: str,
    request: Annotated[schemas.CherryPickRequest, Depends(RequestBody(schemas.CherryPickRequest))],
) -> JsonResponse:
    """Copy messages to the head of a branch. Tool calls are copied with their results."""

    async def run_cherry_pick(runtime: SessionRuntime) -> schemas.CherryPickResponse:
        onto = _get_branch(opened.session, request.onto)
        call.state.check_idle(opened, onto.name)
        outcome = await cherry_pick(onto, request.entries, hooks=runtime.controller.hooks)
        ids = [entry.id for entry in outcome.entries]
        return schemas.CherryPickResponse(ids=ids, leaf=outcome.new_leaf, cancelled=outcome.cancelled)

    async with use_session(call, id) as opened:
        return await _respond(opened, await _run_operation(call, opened, run_cherry_pick))
