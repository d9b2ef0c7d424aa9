"""The overview over all sessions, the audit log, compressed and unchanged responses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

import sessiontree as st
from sessiontree.home import get_home
from sessiontree.server.audit_log import AUDIT_FILE, AuditLog, build_event
from sessiontree.server.auth import TokenStore, issue_token
from tests.server.conftest import ServerEnv, build_auth_headers, open_client


def write_answers(env: ServerEnv, name: str, model: str, *costs: float, folder: Path | None = None) -> str:
    with st.create(name, cwd=folder or env.project) as session:
        session.append(st.user("How?"))
        for cost in costs:
            usage = {"input": 100, "output": 10, "cost": cost}
            session.append(st.assistant("So.", usage=usage, provider="test", model=model))
        return session.id


async def read_overview(client: httpx.AsyncClient, **params: Any) -> dict[str, Any]:
    answer = await client.get("/api/overview", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_the_overview_sums_answers_by_day_model_and_session(env: ServerEnv, client: httpx.AsyncClient) -> None:
    one = write_answers(env, "one", "small", 0.25, 0.25)
    two = write_answers(env, "two", "large", 2.0, folder=env.other)

    found = await read_overview(client)

    assert (found["total"]["answers"], found["total"]["cost"], found["total"]["tokens"]) == (3, 2.5, 330)
    assert [(row["model"], row["cost"]) for row in found["models"]] == [("test:large", 2.0), ("test:small", 0.5)]
    assert [(row["id"], row["answers"]) for row in found["sessions"]] == [(two, 1), (one, 2)]
    assert [row["answers"] for row in found["days"]] == [3]
    assert found["total"]["medianSeconds"] is not None


async def test_the_overview_is_filtered_by_model_and_project(env: ServerEnv, client: httpx.AsyncClient) -> None:
    write_answers(env, "one", "small", 0.25)
    write_answers(env, "two", "large", 2.0, folder=env.other)

    by_model = await read_overview(client, model="test:small")
    by_project = await read_overview(client, project=str(env.other))

    assert (by_model["total"]["cost"], by_project["total"]["cost"]) == (0.25, 2.0)
    assert by_model["allModels"] == ["test:large", "test:small"]
    assert set(by_project["allProjects"]) == {str(env.project), str(env.other)}


async def test_a_fork_counts_its_answers_once_and_failures_are_counted(
    env: ServerEnv, client: httpx.AsyncClient
) -> None:
    id = write_answers(env, "one", "small", 0.25)
    with st.open(id) as session:
        failed = st.assistant("", provider="test", model="small").message | {"errorMessage": "overloaded"}
        session.append(st.Message(failed))
        session.fork().close()

    found = await read_overview(client)

    assert (found["total"]["answers"], found["total"]["failures"], found["total"]["cost"]) == (2, 1, 0.25)


async def test_the_overview_shows_new_answers(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = write_answers(env, "one", "small", 0.25)
    assert (await read_overview(client))["total"]["answers"] == 1
    with st.open(id) as session:
        session.append(st.assistant("More.", provider="test", model="small"))

    assert (await read_overview(client))["total"]["answers"] == 2


async def test_a_project_token_sees_only_its_project_in_the_overview(env: ServerEnv, client: httpx.AsyncClient) -> None:
    write_answers(env, "one", "small", 0.25)
    write_answers(env, "two", "large", 2.0, folder=env.other)
    limited = env.create_token("read", project=env.project)

    found = (await client.get("/api/overview", headers=build_auth_headers(limited))).json()

    assert (found["total"]["cost"], found["allModels"], found["allProjects"]) == (
        0.25,
        ["test:small"],
        [str(env.project)],
    )


# The audit log


async def test_the_audit_log_has_changes_exports_and_opened_links_by_token(env: ServerEnv) -> None:
    id = env.create_session()
    named = issue_token(("read", "write"), name="anna")
    TokenStore().add(named.token)
    async with open_client(env.build_app(), env.owner) as client:
        await client.patch(f"/api/sessions/{id}", json={"name": "new"}, headers=build_auth_headers(named))
        await client.get(f"/api/sessions/{id}")
        await client.get(f"/api/sessions/{id}/export?format=jsonl")
        share = (await client.post(f"/api/sessions/{id}/shares", json={})).json()
        await client.get(share["path"])
        await client.post("/api/markdown", json={"text": "x"})
        events = (await client.get("/api/audit")).json()["events"]
        mine = (await client.get("/api/audit", params={"token": named.token.id})).json()["events"]

    assert [event["action"] for event in events] == [
        "open share link",
        f"POST /api/sessions/{id}/shares",
        f"GET /api/sessions/{id}/export",
        f"PATCH /api/sessions/{id}",
    ]
    assert all(event["session"] == id for event in events)
    assert [(event["name"], event["status"]) for event in mine] == [("anna", 200)]
    log = Path(get_home(), AUDIT_FILE)
    assert log.stat().st_mode & 0o777 == 0o600
    assert share["path"].removeprefix("/share/") not in log.read_text()


async def test_refused_requests_of_a_token_are_recorded(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id, reader = env.create_session(), env.create_token("read")

    await client.patch(f"/api/sessions/{id}", json={"name": "x"}, headers=build_auth_headers(reader))

    (event,) = (await client.get("/api/audit")).json()["events"]
    assert (event["token"], event["status"]) == (reader.token.id, 403)


async def test_a_project_token_cannot_read_the_audit_log(env: ServerEnv, client: httpx.AsyncClient) -> None:
    limited = env.create_token("read", "write", project=env.project)

    assert (await client.get("/api/audit", headers=build_auth_headers(limited))).status_code == 403


def test_a_full_audit_log_is_kept_once(tmp_path: Path) -> None:
    file = str(tmp_path / "audit.jsonl")
    log, token = AuditLog(file, max_bytes=600), issue_token(("write",)).token
    for number in range(12):
        event = build_event(token, "POST", f"/api/sessions/{number}/label", 200)
        assert event is not None
        log.record(event)

    kept = [event.session for event in log.read()]
    log.close()

    assert kept[0] == "11"
    assert 2 <= len(kept) < 12
    assert kept == [str(number) for number in range(11, 11 - len(kept), -1)]


def test_a_damaged_line_of_the_audit_log_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    log = AuditLog(str(file))
    event = build_event(issue_token(("write",)).token, "POST", "/api/sessions/a\x1b/label", 200)
    assert event is not None
    log.record(event)
    log.close()
    file.write_bytes(b"not JSON\n" + file.read_bytes())

    (read,) = AuditLog(str(file)).read()

    assert "\x1b" not in json.dumps(read.as_fields(), ensure_ascii=False)


# Compressed and unchanged responses


async def test_long_responses_are_compressed(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    with st.open(id) as session:
        session.extend([st.user(f"message {number}") for number in range(300)])

    answer = await client.get(f"/api/sessions/{id}/tree", headers={"accept-encoding": "gzip"})
    plain = await client.get(f"/api/sessions/{id}/tree", headers={"accept-encoding": "identity"})

    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) < len(plain.content) / 5
    assert answer.json() == plain.json()


@pytest.mark.parametrize("path", ["/tree", "/path?html=1", "/branches", "/context", "/entries"])
async def test_an_unchanged_response_is_not_sent_again(env: ServerEnv, client: httpx.AsyncClient, path: str) -> None:
    id = env.create_session()
    first = await client.get(f"/api/sessions/{id}{path}")

    again = await client.get(f"/api/sessions/{id}{path}", headers={"if-none-match": first.headers["etag"]})
    with st.open(id) as session:
        session.append(st.user("And?"))
    changed = await client.get(f"/api/sessions/{id}{path}", headers={"if-none-match": first.headers["etag"]})

    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert changed.status_code == 200


async def test_an_unchanged_listing_is_not_sent_again(env: ServerEnv, client: httpx.AsyncClient) -> None:
    env.create_session()
    first = await client.get("/api/sessions")

    again = await client.get("/api/sessions", headers={"if-none-match": f'W/{first.headers["etag"]}, "other"'})
    env.create_session(env.other)
    changed = await client.get("/api/sessions", headers={"if-none-match": first.headers["etag"]})

    assert (again.status_code, changed.status_code) == (304, 200)


async def test_the_state_of_a_session_is_always_sent(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    first = await client.get(f"/api/sessions/{id}")

    again = await client.get(f"/api/sessions/{id}", headers={"if-none-match": first.headers["etag"]})

    assert again.status_code == 200  # it says which agents run, which is no part of the session
