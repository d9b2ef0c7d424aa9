"""Routes over experiments: which way to go on is better."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends

from sessiontree.swarm.experiment import build_result_json
from sessiontree.swarm.experiment import list_experiments as list_session_experiments
from sessiontree.web import wire
from sessiontree.web.moving import use_session
from sessiontree.web.paging import Cursor, Limit, get_page
from sessiontree.web.schema import describe_route
from sessiontree.web.serving import JsonResponse, ReadContext, RequestBody, RunContext

router = APIRouter(prefix="/api")


@router.get("/sessions/{id}/experiments", **describe_route(wire.ExperimentListResponse))
def list_experiments(
    call: ReadContext, id: str, limit: Limit = wire.DEFAULT_PAGE_SIZE, cursor: Cursor = None
) -> JsonResponse:
    """The experiments of a session, oldest first, with what they tell so far."""
    with call.read_session(id) as opened:
        page, following = get_page(list_session_experiments(opened.session), limit, cursor)
        found = [build_result_json(result) for result in page]
        return JsonResponse(wire.ExperimentListResponse(experiments=found, next=following), at=opened)


@router.post(
    "/sessions/{id}/experiments",
    **describe_route(wire.CreateExperimentResponse, status=202, request=wire.CreateExperimentRequest),
)
async def create_experiment(
    call: RunContext,
    id: str,
    said: Annotated[wire.CreateExperimentRequest, Depends(RequestBody(wire.CreateExperimentRequest))],
) -> JsonResponse:
    """Go on from a place in several ways, each several times, to find out which is better."""
    async with use_session(call, id) as opened:
        return JsonResponse(await call.state.experiments.create(opened, said, await call.find_workspace(opened)), 202)


@router.get("/experiments/{id}", **describe_route(wire.ExperimentResponse))
def get_experiment(call: ReadContext, id: str) -> JsonResponse:
    """How far an experiment has come, and what it tells."""
    return JsonResponse(call.state.experiments.get_state(id, call.token))


@router.post(
    "/experiments/{id}/stop", **describe_route(wire.ExperimentResponse, request=wire.EmptyRequest, allow_empty=True)
)
async def stop_experiment(
    call: RunContext,
    id: str,
    said: Annotated[wire.EmptyRequest, Depends(RequestBody(wire.EmptyRequest, allow_empty=True))],
) -> JsonResponse:
    """Stop running an experiment. What is done stays done."""
    trials = call.state.experiments
    state = await asyncio.to_thread(trials.get_state, id, call.token)
    await trials.stop(state.session_id, id)
    return JsonResponse(await asyncio.to_thread(trials.get_state, id, call.token))
