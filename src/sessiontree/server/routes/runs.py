"""Routes for agents: prompt, steer, abort, and permission questions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from msgspec import UNSET

from sessiontree.server import schemas
from sessiontree.server.app_state import JsonResponse, ReadContext, RequestBody, RunContext
from sessiontree.server.http_errors import ApiError
from sessiontree.server.openapi import describe_route
from sessiontree.server.routes.branches import use_session
from sessiontree.server.routes.tree import resolve_place

router = APIRouter(prefix="/api/sessions/{id}")


@router.post("/prompt", **describe_route(schemas.PromptResponse, status=202, request=schemas.PromptRequest))
async def prompt(
    call: RunContext, id: str, request: Annotated[schemas.PromptRequest, Depends(RequestBody(schemas.PromptRequest))]
) -> JsonResponse:
    """Send a prompt, or retry: without a text, the model answers the last message again.

    The agent answers on the branch; follow it with the live events of the session. With `at`, the branch moves first.
    """
    if not request.text.strip() and not request.images and request.at is None:
        raise ApiError(422, "the prompt is empty; to retry, send the entry to continue after as at")
    for image in request.images:
        if image.get("type") != "image" or not all(isinstance(image.get(key), str) for key in ("data", "mimeType")):
            raise ApiError(422, "an image needs the fields type ('image'), data and mimeType")
    state, sessions = call.state, call.state.sessions
    state.permissions.check_mode(request.permission_mode)

    async def start_run() -> tuple[str, str]:
        sessions.add_user(opened)  # the client may disconnect before the run starts
        try:
            branch = opened.session.heads.current if request.branch is None else request.branch
            state.swarms.check_idle(opened, branch)
            state.experiments.check_idle(opened, branch)
            place = UNSET if request.at is None else resolve_place(opened.session, request.at)
            return await state.runs.start(
                opened,
                request.branch,
                request.text,
                request.images,
                request.model,
                workspace,
                request.permission_mode,
                at=place,
                author=call.token.name,
            )
        finally:
            sessions.release(opened)

    async with use_session(call, id) as opened:
        workspace = await call.find_workspace(opened)
        run, branch = await call.state.agent_loop.run(start_run())
        return JsonResponse(schemas.PromptResponse(run=run, branch=branch), 202)


@router.post("/steer", **describe_route(schemas.RunBranchResponse, request=schemas.SteerRequest))
async def steer(
    call: RunContext, id: str, request: Annotated[schemas.SteerRequest, Depends(RequestBody(schemas.SteerRequest))]
) -> JsonResponse:
    """Send a message to a running agent. It arrives after the tool calls of the current turn."""
    async with use_session(call, id) as opened:
        limited = call.token.projects is not None
        work = call.state.steer(opened, request.branch, request.text, limited=limited, author=call.token.name)
        return JsonResponse(schemas.RunBranchResponse(branch=await call.state.agent_loop.run(work)))


@router.post("/abort", **describe_route(schemas.RunBranchResponse, request=schemas.AbortRequest, allow_empty=True))
async def abort(
    call: RunContext,
    id: str,
    request: Annotated[schemas.AbortRequest, Depends(RequestBody(schemas.AbortRequest, allow_empty=True))],
) -> JsonResponse:
    """Abort a run. The partial answer is kept."""
    async with use_session(call, id) as opened:
        work = call.state.abort(opened, request.branch)
        return JsonResponse(schemas.RunBranchResponse(branch=await call.state.agent_loop.run(work)))


@router.get("/permissions", **describe_route(schemas.PermissionQuestionListResponse))
def list_permission_questions(call: ReadContext, id: str) -> JsonResponse:
    """List the open permission questions of a session."""
    with call.read_session(id) as opened:
        return JsonResponse(
            schemas.PermissionQuestionListResponse(questions=call.state.permissions.list_questions(opened))
        )


@router.post(
    "/permissions/{question}",
    **describe_route(schemas.PermissionQuestionResponse, request=schemas.PermissionAnswerRequest),
)
async def answer(
    call: RunContext,
    id: str,
    question: str,
    request: Annotated[schemas.PermissionAnswerRequest, Depends(RequestBody(schemas.PermissionAnswerRequest))],
) -> JsonResponse:
    """Answer a permission question: allow once, for the session or always in this folder, or deny."""
    async with use_session(call, id) as opened:
        limited = call.token.projects is not None
        if request.answer == "always" and limited:
            raise ApiError(
                403, "a token that is limited to projects cannot add permanent rules; answer for the session"
            )
        work = call.state.permissions.answer(opened, question, request, limited=limited)
        return JsonResponse(await call.state.agent_loop.run(work))
