"""Routes over experiments: which way to go on is better."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends

from sessiontree.swarm.experiment import experiments_in, result_to_wire
from sessiontree.web import wire
from sessiontree.web.moving import working
from sessiontree.web.paging import Cursor, Limit, page_of
from sessiontree.web.schema import told
from sessiontree.web.serving import Json, Reads, Running, Said

router = APIRouter(prefix="/api")


@router.get("/sessions/{id}/experiments", **told(wire.Experiments))
def list_experiments(call: Reads, id: str, limit: Limit = wire.PAGE, cursor: Cursor = None) -> Json:
    """The experiments of a session, oldest first, with what they tell so far."""
    with call.reading(id) as opened:
        page, following = page_of(experiments_in(opened.session), limit, cursor)
        found = [result_to_wire(result) for result in page]
        return Json(wire.Experiments(experiments=found, next=following), at=opened)


@router.post("/sessions/{id}/experiments", **told(wire.MadeExperiment, status=202, takes=wire.NewExperiment))
async def create_experiment(
    call: Running, id: str, said: Annotated[wire.NewExperiment, Depends(Said(wire.NewExperiment))]
) -> Json:
    """Go on from a place in several ways, each several times, to find out which is better."""
    async with working(call, id) as opened:
        return Json(await call.serving.trials.create(opened, said, await call.workplace(opened)), 202)


@router.get("/experiments/{id}", **told(wire.ExperimentState))
def get_experiment(call: Reads, id: str) -> Json:
    """How far an experiment has come, and what it tells."""
    return Json(call.serving.trials.state(id, call.token))


@router.post("/experiments/{id}/stop", **told(wire.ExperimentState, takes=wire.Nothing, empty=True))
async def stop_experiment(
    call: Running, id: str, said: Annotated[wire.Nothing, Depends(Said(wire.Nothing, empty=True))]
) -> Json:
    """Stop running an experiment. What is done stays done."""
    trials = call.serving.trials
    state = await asyncio.to_thread(trials.state, id, call.token)
    await trials.stop(state.session_id, id)
    return Json(await asyncio.to_thread(trials.state, id, call.token))
