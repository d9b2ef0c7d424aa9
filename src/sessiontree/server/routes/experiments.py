"""Routes for experiments."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends

from sessiontree.server import schemas
from sessiontree.server.app_state import JsonResponse, ReadContext, RequestBody, RunContext
from sessiontree.server.openapi import describe_route
from sessiontree.server.pagination import Cursor, Limit, get_page
from sessiontree.server.routes.branches import use_session
from sessiontree.swarm.experiment.experiment import build_result_json
from sessiontree.swarm.experiment.experiment import list_experiments as list_session_experiments

router = APIRouter(prefix="/api")


@router.get("/sessions/{id}/experiments", **describe_route(schemas.ExperimentListResponse))
def list_experiments(
    call: ReadContext, id: str, limit: Limit = schemas.DEFAULT_PAGE_SIZE, cursor: Cursor = None
) -> JsonResponse:
    """List the experiments of a session with their results so far, oldest first."""
    with call.read_session(id) as opened:
        page, next_cursor = get_page(list_session_experiments(opened.session), limit, cursor)
        results = [build_result_json(result) for result in page]
        return JsonResponse(schemas.ExperimentListResponse(experiments=results, next=next_cursor), at=opened)


@router.post(
    "/sessions/{id}/experiments",
    **describe_route(schemas.CreateExperimentResponse, status=202, request=schemas.CreateExperimentRequest),
)
async def create_experiment(
    call: RunContext,
    id: str,
    said: Annotated[schemas.CreateExperimentRequest, Depends(RequestBody(schemas.CreateExperimentRequest))],
) -> JsonResponse:
    """Start an experiment: run several arms from one place, each several times, and compare them."""
    async with use_session(call, id) as opened:
        return JsonResponse(await call.state.experiments.create(opened, said, await call.find_workspace(opened)), 202)


@router.get("/experiments/{id}", **describe_route(schemas.ExperimentResponse))
def get_experiment(call: ReadContext, id: str) -> JsonResponse:
    """Return the progress and results of an experiment."""
    return JsonResponse(call.state.experiments.get_state(id, call.token))


@router.post(
    "/experiments/{id}/stop",
    **describe_route(schemas.ExperimentResponse, request=schemas.EmptyRequest, allow_empty=True),
)
async def stop_experiment(
    call: RunContext,
    id: str,
    said: Annotated[schemas.EmptyRequest, Depends(RequestBody(schemas.EmptyRequest, allow_empty=True))],
) -> JsonResponse:
    """Stop an experiment. Finished runs keep their results."""
    trials = call.state.experiments
    state = await asyncio.to_thread(trials.get_state, id, call.token)
    await trials.stop(state.session_id, id)
    return JsonResponse(await asyncio.to_thread(trials.get_state, id, call.token))
