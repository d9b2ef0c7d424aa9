"""The state of a server, and that closing releases all of it."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

from sessiontree.server.app_state import AppState
from sessiontree.server.request_checks import ServerLimits
from tests.server.conftest import ServerEnv, open_client
from tests.server.test_roles import list_api_routes


async def open_three_and_delete_one(client: httpx.AsyncClient, env: ServerEnv, serving: AppState) -> list[Path]:
    """Open three sessions that write a line on closing, delete the first file, and return the files."""
    for id in [env.create_session() for _ in range(3)]:
        made = await client.post(f"/api/sessions/{id}/branches", json={"name": "side", "switch": False})
        assert made.status_code == 201, made.text
    gone, *others = (Path(opened.file) for opened in serving.sessions.list_open())
    gone.unlink()
    return others


def list_closed(files: list[Path]) -> list[bool]:
    """Return for each session whether its last line is the head record of closing."""
    return [b"sessiontree.head" in file.read_bytes().splitlines()[-1] for file in files]


async def test_a_session_that_cannot_be_closed_does_not_keep_others_open(tmp_path: Path) -> None:
    env = ServerEnv(tmp_path, limits=ServerLimits(rate=1e6, burst=1_000_000, idle_seconds=-1))
    app = env.build_app()
    async with open_client(app, env.owner) as client:
        others = await open_three_and_delete_one(client, env, app.state.app_state)

        await app.state.app_state.clean_up()

        assert list_closed(others) == [True, True]


async def test_a_server_stops_even_if_a_session_cannot_be_closed(env: ServerEnv) -> None:
    app = env.build_app()
    async with open_client(app, env.owner) as client:
        others = await open_three_and_delete_one(client, env, app.state.app_state)
        assert list_closed(others) == [False, False]

    assert list_closed(others) == [True, True]


# Query parameters


async def test_no_route_ignores_a_query_parameter_that_it_does_not_know(env: ServerEnv) -> None:
    app = env.build_app()
    async with open_client(app, env.owner) as client:
        for route in list_api_routes(app):
            for method in route.methods:
                path = re.sub(r"{[^}]*}", "x", route.path)
                body = {"json": {}} if method in ("POST", "PATCH", "PUT") else {}
                answer = await client.request(method, path, params={"subtre": "x"}, **body)

                assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid"), (method, path)
                assert "unknown query parameter 'subtre'" in answer.json()["error"]["message"]


async def test_an_unknown_query_parameter_is_rejected_with_the_known_ones(client: httpx.AsyncClient) -> None:
    answer = await client.get("/api/search", params={"q": "x", "sesion": "y"})

    message = answer.json()["error"]["message"]
    assert message == "unknown query parameter 'sesion'; this route takes q, session, limit, cursor"


async def test_a_repeated_query_parameter_is_rejected(client: httpx.AsyncClient, env: ServerEnv) -> None:
    answer = await client.get(f"/api/sessions/{env.create_session()}/export?format=md&redact=1&redact=0")

    assert answer.status_code == 422
    assert answer.json()["error"]["message"] == "query parameter 'redact' was sent more than once; send it once"
