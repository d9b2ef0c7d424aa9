"""Routes to agents: saying something to one, steering it, giving it up. What it does, the session's events tell."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends

from sessiontree.web import wire
from sessiontree.web.moving import working
from sessiontree.web.refusals import Refused
from sessiontree.web.schema import told
from sessiontree.web.serving import Json, Reads, Running, Said

router = APIRouter(prefix="/api/sessions/{id}")


@router.post("/prompt", **told(wire.Started, status=202, takes=wire.Prompt))
async def prompt(call: Running, id: str, said: Annotated[wire.Prompt, Depends(Said(wire.Prompt))]) -> Json:
    """Say something to the model, which answers on the branch. What happens is told by the session's events."""
    if not said.text.strip() and not said.images:
        raise Refused(422, "there is nothing to say")
    for image in said.images:
        if image.get("type") != "image" or not all(isinstance(image.get(key), str) for key in ("data", "mimeType")):
            raise Refused(422, "an image is {type: 'image', data, mimeType}")
    serving, sessions, runs = call.serving, call.serving.sessions, call.serving.runs
    serving.permissions.check(said.permission_mode)

    async def begin() -> tuple[str, str]:
        sessions.hold_again(opened)  # until the run is over
        ended = partial(sessions.let_go, opened)
        try:
            branch = opened.session.heads.current if said.branch is None else said.branch
            serving.swarms.at_rest(opened, branch)
            serving.trials.at_rest(opened, branch)
            return await runs.prompt(
                opened, said.branch, said.text, said.images, said.model, ended, place, said.permission_mode
            )
        except BaseException:
            ended()
            raise

    async with working(call, id) as opened:
        place = await call.workplace(opened)
        run, branch = await call.serving.workshop.do(begin())
        return Json(wire.Started(run=run, branch=branch), 202)


@router.post("/steer", **told(wire.Told, takes=wire.Steering))
async def steer(call: Running, id: str, said: Annotated[wire.Steering, Depends(Said(wire.Steering))]) -> Json:
    """Say something to an agent at work, as soon as the tool calls of its turn are done."""
    async with working(call, id) as opened:
        limited = call.token.projects is not None
        work = call.serving.steer(opened, said.branch, said.text, limited=limited)
        return Json(wire.Told(branch=await call.serving.workshop.do(work)))


@router.post("/abort", **told(wire.Told, takes=wire.Aborting, empty=True))
async def abort(
    call: Running, id: str, said: Annotated[wire.Aborting, Depends(Said(wire.Aborting, empty=True))]
) -> Json:
    """Give up a run. What had arrived is written down."""
    async with working(call, id) as opened:
        work = call.serving.abort(opened, said.branch)
        return Json(wire.Told(branch=await call.serving.workshop.do(work)))


@router.get("/permissions", **told(wire.PendingPermissions))
def pending(call: Reads, id: str) -> Json:
    """Questions about tool calls that runs of a session wait for."""
    with call.reading(id) as opened:
        return Json(wire.PendingPermissions(questions=call.serving.permissions.pending(opened)))


@router.post("/permissions/{question}", **told(wire.PendingPermission, takes=wire.PermissionReply))
async def answer(
    call: Running, id: str, question: str, said: Annotated[wire.PermissionReply, Depends(Said(wire.PermissionReply))]
) -> Json:
    """Answer a question about a tool call: once, for the session, always in its folder, or no."""
    async with working(call, id) as opened:
        limited = call.token.projects is not None
        if said.answer == "always" and limited:
            raise Refused(403, "a token of a project does not change the user's rules: answer for the session")
        work = call.serving.permissions.answer(opened, question, said, limited=limited)
        return Json(await call.serving.workshop.do(work))
