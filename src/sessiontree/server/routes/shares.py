"""Routes for share links: create, list and revoke them, and show what they share.

A share link opens one page and no other route. The page is an export, made by a process that gets the lines of the
session and nothing else: of a branch only its path, with secrets redacted if the link says so. Its policy puts it into
a sandbox, so its script cannot use the cookie of a browser that is signed in.
"""

from __future__ import annotations

import asyncio
from typing import IO, Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse
from msgspec import UNSET, UnsetType

from sessiontree.core.place_names import BRANCH_PREFIX
from sessiontree.errors import NotFound
from sessiontree.home import list_user_homes
from sessiontree.server import schemas
from sessiontree.server.app_state import TOKEN_KEY, AppState, JsonResponse, ReadContext, RequestBody, WriteContext
from sessiontree.server.auth import SHARE_PREFIX, Token
from sessiontree.server.http_errors import PAGE_TYPE, SHARE_GONE, ApiError, build_error_page
from sessiontree.server.jobs.export_jobs import ExportJob, ExportOrder
from sessiontree.server.openapi import describe_route

router = APIRouter(prefix="/api/sessions/{id}/shares")
page_router = APIRouter()

POLL_SECONDS = 0.05
POLICY = "sandbox allow-scripts allow-popups allow-downloads; frame-ancestors 'none'; base-uri 'none'"


@router.post(
    "", **describe_route(schemas.ShareResponse, status=201, request=schemas.CreateShareRequest, allow_empty=True)
)
def create_share(
    call: WriteContext,
    id: str,
    request: Annotated[schemas.CreateShareRequest, Depends(RequestBody(schemas.CreateShareRequest, allow_empty=True))],
) -> JsonResponse:
    """Create a link that shows a session or a branch, read-only, to anyone who has it, until it expires."""
    with call.read_session(id) as opened:
        session = opened.session
        branch = None if request.branch is None else session.branch(request.branch).name
        own_id = session.id
    issued = call.state.tokens.create_share(
        call.token, own_id, branch=branch, redact=request.redact, seconds=request.seconds
    )
    return JsonResponse(_build_share(issued.token, f"{SHARE_PREFIX}{issued.secret}"), 201)


@router.get("", **describe_route(schemas.ShareListResponse))
def list_shares(call: ReadContext, id: str) -> JsonResponse:
    """List the share links of a session, without their secrets."""
    with call.read_session(id) as opened:
        own_id = opened.session.id
    return JsonResponse(
        schemas.ShareListResponse(shares=[_build_share(one) for one in call.state.tokens.list_shares(own_id)])
    )


@router.delete("/{share}", **describe_route(schemas.ShareResponse))
def revoke_share(call: WriteContext, id: str, share: str) -> JsonResponse:
    """Revoke a share link at once."""
    with call.read_session(id) as opened:
        own_id = opened.session.id
    found = next((one for one in call.state.tokens.list_shares(own_id) if one.id == share), None)
    if found is None:
        raise ApiError(404, f"share link {share[:100]!r} not found")
    call.state.tokens.revoke(found.id)
    return JsonResponse(_build_share(found))


def _build_share(token: Token, path: str | UnsetType = UNSET) -> schemas.ShareResponse:
    return schemas.ShareResponse(
        id=token.id,
        branch=token.branch,
        redact=token.redact,
        created=token.created,
        expires=token.expires or "",
        path=path,
    )


# The shared page


@page_router.get(f"{SHARE_PREFIX}{{secret}}", include_in_schema=False)
async def show_share(request: Request) -> Response:
    """Show what a link shares, as it is now. The middleware has checked the link."""
    state: AppState = request.app.state.app_state
    share: Token = request.scope[TOKEN_KEY]
    try:
        job = await run_in_threadpool(_find_or_start_export, state, share)
        while not job.ended.is_set():
            await asyncio.sleep(POLL_SECONDS)
        size, pieces = job.open_file()
    except (NotFound, ApiError) as error:  # a person sees it, so it is a page
        status = error.status if isinstance(error, ApiError) else 404
        return Response(build_error_page(str(error) if status != 404 else SHARE_GONE), status, media_type=PAGE_TYPE)
    headers = {"content-length": str(size), "content-security-policy": POLICY, "cache-control": "no-store"}
    return StreamingResponse(pieces, media_type=PAGE_TYPE, headers=headers)


class SharedPages:
    """The newest page of each share, attached to an open session."""

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[str, ExportJob]] = {}
        """The position of the session and the export, by share."""


def _find_or_start_export(state: AppState, share: Token) -> ExportJob:
    """Return an export of the current session, a finished one if nothing was written since."""
    with state.sessions.read(share.session or "", share) as opened:
        pages = opened.get_or_create(SharedPages, SharedPages)
        position = str(opened.position)
        made_at, job = pages.jobs.get(share.id, ("", None))
        if job is not None and made_at == position and job.is_usable:
            return job
        session = opened.session
        if share.branch is not None:
            session.branch(share.branch)  # raises NotFound if it was renamed
        homes = tuple(list_user_homes()) if share.redact else ()
        place = None if share.branch is None else f"{BRANCH_PREFIX}{share.branch}"
        order = ExportOrder(form="html", branch=place, redact=share.redact, homes=homes, memory=0, size=0)

        def open_lines() -> IO[bytes]:
            try:
                return session.store.open_file()
            except NotFound:
                raise ApiError(404, SHARE_GONE) from None

        job = state.exports.start(share.id, "shared.html", order, open_lines)
        pages.jobs[share.id] = position, job
        return job
