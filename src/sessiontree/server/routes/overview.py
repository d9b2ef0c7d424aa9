"""Routes over all sessions: the use of models over time, and the audit log."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query

from sessiontree.core.timestamps import format_timestamp
from sessiontree.errors import SessionTreeError
from sessiontree.library import catalog
from sessiontree.library.index.session_summary import SessionSummary
from sessiontree.server import schemas
from sessiontree.server.app_state import Cursor, JsonResponse, Limit, ReadContext
from sessiontree.server.http_errors import ApiError
from sessiontree.server.openapi import describe_route
from sessiontree.server.response_content import get_page
from sessiontree.server.usage_overview import AnswerUsage, list_answers, sum_answers

router = APIRouter(prefix="/api")

DAY = 24 * 3600
MAX_ROWS = 100
"""Sessions that are listed."""


@router.get("/overview", **describe_route(schemas.OverviewResponse))
def get_overview(
    call: ReadContext,
    days: Annotated[int, Query(ge=1, le=366)] = 30,
    project: Annotated[str | None, Query(max_length=4096)] = None,
    model: Annotated[str | None, Query(max_length=300)] = None,
) -> JsonResponse:
    """Return answers of models, tokens, cost, failures and latency of all sessions, by day, model and session."""
    oldest = format_timestamp(round((time.time() - (days - 1) * DAY) * 1000))[:10]
    by_day, by_model = defaultdict[str, list[AnswerUsage]](list), defaultdict[str, list[AnswerUsage]](list)
    by_session: dict[str, tuple[SessionSummary, list[AnswerUsage]]] = {}
    projects, models, unread = set[str](), set[str](), 0
    seen = set[tuple[str, str]]()
    for summary in _list_sessions(call, oldest):
        folder = os.path.normpath(summary.cwd) if summary.cwd else ""
        projects.add(folder)
        if project is not None and folder != os.path.normpath(project):
            continue
        try:
            answers = call.state.answers.get(summary, lambda summary=summary: _read_answers(summary.file))
        except SessionTreeError:
            unread += 1
            continue
        for answer in answers:
            key = answer.entry, answer.timestamp
            if answer.timestamp[:10] < oldest or key in seen:
                continue
            seen.add(key)  # a fork has copies
            models.add(answer.model)
            if model is not None and answer.model != model:
                continue
            by_day[answer.timestamp[:10]].append(answer)
            by_model[answer.model].append(answer)
            by_session.setdefault(summary.file, (summary, []))[1].append(answer)
    sessions = [
        schemas.SessionUsageResponse(id=summary.id, name=summary.name or summary.first_message, **sum_answers(answers))
        for summary, answers in by_session.values()
    ]
    return call.respond_hashed(
        schemas.OverviewResponse(
            total=schemas.UsageResponse(**sum_answers([answer for answers in by_day.values() for answer in answers])),
            days=[schemas.DayUsageResponse(day=day, **sum_answers(by_day[day])) for day in sorted(by_day)],
            models=[schemas.ModelUsageResponse(model=name, **sum_answers(by_model[name])) for name in sorted(by_model)],
            sessions=sorted(sessions, key=lambda row: (-row.cost, -row.tokens))[:MAX_ROWS],
            session_count=len(sessions),
            all_models=sorted(models),
            all_projects=sorted(projects),
            unread=unread,
        )
    )


def _list_sessions(call: ReadContext, oldest: str) -> Iterator[SessionSummary]:
    """Yield the sessions that the token may see and that were modified since a day, archived ones too."""
    for archived in (False, True):
        for summary in catalog.sessions(all=True, archived=archived):
            if summary.archived == archived and summary.modified[:10] >= oldest and call.token.can_see(summary.cwd):
                yield summary


def _read_answers(file: str) -> list[AnswerUsage]:
    with catalog.open(file) as session:
        return list(list_answers(session.tree))


@router.get("/audit", **describe_route(schemas.AuditPage))
def get_audit_log(
    call: ReadContext,
    token: Annotated[str | None, Query(max_length=100)] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> JsonResponse:
    """Return what tokens did, newest first: changes, exports, sign-ins and opened share links.

    It needs a token of all projects.
    """
    if call.token.projects is not None:
        raise ApiError(403, "the audit log needs a token that is not limited to projects")
    events = [event for event in call.state.audit.read() if token is None or event.token == token]
    page, following = get_page(events, limit, cursor)
    return JsonResponse(
        schemas.AuditPage(events=[schemas.AuditEventResponse(**event.as_fields()) for event in page], next=following)
    )
