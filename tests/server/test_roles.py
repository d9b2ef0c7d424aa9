"""Every route with every kind of token. The routes come from the application, so none is forgotten."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from sessiontree.server.app import build_openapi_document
from sessiontree.server.app_state import require_read, require_run, require_write
from sessiontree.server.auth import IssuedToken, TokenStore, issue_token
from tests.server.conftest import BASE, ServerEnv, build_auth_headers, open_client

SCOPES = {require_read: "read", require_write: "write", require_run: "run"}
UNKNOWN = "019a8b2c-0000-7000-8000-000000000000"


class Route(NamedTuple):
    method: str
    path: str
    scopes: list[str]

    @property
    def is_for_one_session(self) -> bool:
        """Whether the path names a session or something in a session."""
        return "{id}" in self.path or "{job}" in self.path


def list_api_routes(app: FastAPI) -> Iterator[APIRoute]:
    for route in app.routes:
        inner: Any = getattr(route, "original_router", None)
        for found in (route,) if inner is None else inner.routes:
            if isinstance(found, APIRoute) and found.path.startswith("/api"):
                yield found


def list_routes(app: FastAPI) -> list[Route]:
    return [
        Route(method, route.path, [SCOPES[one.call] for one in route.dependant.dependencies if one.call in SCOPES])
        for route in list_api_routes(app)
        for method in sorted(route.methods)
    ]


def build_body(told: Any, route: Route) -> Any:
    """Build a request body for a route from the OpenAPI document."""
    operation = told["paths"].get(route.path.replace(":path", ""), {}).get(route.method.lower(), {})
    content = operation.get("requestBody", {}).get("content", {})
    return content["application/json"]["example"] if content else None


def build_path(route: Route, id: str) -> str:
    filled = {
        "id": id,
        "name:path": "main",
        "entry:path": "HEAD",
        "question": "1f2e3d4c",
        "job": UNKNOWN,
        "number": "0",
        "share": "1f2e3d4c",
    }
    path = re.sub(r"{([^}]+)}", lambda found: filled[found[1]], route.path)
    needed = {
        "/search": "?q=faster",
        "/sessions/{id}/diff": "?a=HEAD&b=root",
        "/images/{number}": "?entry=HEAD",
        "/sessions/{id}/events": "?after=nowhere",  # otherwise it would not end
    }
    return path + next((query for end, query in needed.items() if route.path.endswith(end)), "")


async def ask(client: httpx.AsyncClient, route: Route, id: str, headers: dict[str, str], body: Any) -> httpx.Response:
    kind = {} if route.method in ("GET", "DELETE") else {"content-type": "application/json"}
    content = None if body is None else httpx.Request("POST", BASE, json=body).content
    request = client.build_request(route.method, build_path(route, id), headers={**headers, **kind}, content=content)
    if "authorization" not in headers:
        del request.headers["authorization"]
    return await client.send(request)


def read_error_code(response: httpx.Response) -> str:
    return response.json()["error"]["code"]


class Matrix:
    def __init__(self, env: ServerEnv) -> None:
        self.app = env.build_app()
        self.env = env
        self.id = env.create_session()
        self.ids: dict[str, str] = {}
        self.routes = list_routes(self.app)
        told = build_openapi_document(self.app)
        self.bodies = {(route.method, route.path): build_body(told, route) for route in self.routes}

    def id_for(self, route: Route) -> str:
        """Return the id in the path of a route."""
        return self.ids.get(route.path.split("/")[2], "")

    async def answers(self, headers: dict[str, str], id: str | None = None) -> list[tuple[Route, httpx.Response]]:
        async with open_client(self.env.build_app(), self.env.owner) as client:
            return [
                (
                    route,
                    await ask(client, route, id or self.id_for(route), headers, self.bodies[route.method, route.path]),
                )
                for route in self.routes
            ]


@pytest.fixture
async def matrix(env: ServerEnv) -> Matrix:
    matrix = Matrix(env)
    matrix.ids = {
        "sessions": matrix.id,
        "swarms": await env.create_swarm(matrix.id),
        "experiments": env.create_experiment(matrix.id),
    }
    return matrix


def test_every_route_requires_exactly_one_scope(matrix: Matrix) -> None:
    assert len(matrix.routes) > 30
    for route in matrix.routes:
        assert len(route.scopes) == 1, route


def test_read_routes_use_get(matrix: Matrix) -> None:
    for route in matrix.routes:
        if route.method == "GET":
            assert route.scopes == ["read"], route
        elif route.scopes == ["read"]:
            assert route.path.endswith(("/compare", "/exports", "/exports/{job}", "/markdown")), route


async def test_requests_without_a_token_are_refused(matrix: Matrix) -> None:
    for route, answer in await matrix.answers({}):
        assert (answer.status_code, read_error_code(answer)) == (401, "unauthorized"), route
        assert answer.headers["www-authenticate"] == "Bearer"


async def test_requests_with_an_unknown_token_are_refused(matrix: Matrix) -> None:
    env = matrix.env
    revoked = env.create_token("read", "write", "run")
    TokenStore().revoke(revoked.token.id)
    given = {
        "wrong": f"Bearer {issue_token(['read']).secret}",
        "revoked": f"Bearer {revoked.secret}",
        "cut": f"Bearer {env.owner.secret[:-1]}",
        "hash": f"Bearer {env.owner.token.hash}",
        "basic": f"Basic {env.owner.secret}",
    }
    for kind, value in given.items():
        for route, answer in await matrix.answers({"authorization": value}):
            assert (answer.status_code, read_error_code(answer)) == (401, "unauthorized"), (route, kind)


@pytest.mark.parametrize("scope", ["read", "write", "run"])
async def test_a_token_is_limited_to_its_scopes(matrix: Matrix, scope: Any) -> None:
    for route, answer in await matrix.answers(build_auth_headers(matrix.env.create_token(scope)), UNKNOWN):
        if route.scopes != [scope]:
            assert (answer.status_code, read_error_code(answer)) == (403, "forbidden"), route
        elif route.is_for_one_session:
            assert (answer.status_code, read_error_code(answer)) == (404, "not_found"), route
        else:
            assert answer.status_code in (200, 201), (route, answer.text)


async def test_a_token_of_another_project_gets_the_error_of_a_missing_session(matrix: Matrix) -> None:
    other = build_auth_headers(matrix.env.create_token("read", "write", "run", project=matrix.env.other))
    there, unknown = await matrix.answers(other), await matrix.answers(other, UNKNOWN)
    for (route, answer), (_, same) in zip(there, unknown, strict=True):
        if route.is_for_one_session:
            assert (answer.status_code, read_error_code(answer)) == (404, "not_found"), route
            assert answer.text.replace(matrix.id_for(route) or UNKNOWN, "") == same.text.replace(UNKNOWN, ""), route
            assert _read_error(answer) == _read_error(same), route
        else:
            assert not any(id in answer.text for id in matrix.ids.values()), route


def _read_error(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in ("date", "content-length")}


async def test_a_token_without_write_changes_nothing(matrix: Matrix) -> None:
    files = list((matrix.env.project.parent / "home").rglob(f"*{matrix.id}*.jsonl"))
    before = files[0].read_bytes()
    tokens: list[IssuedToken] = [
        matrix.env.create_token("read"),
        matrix.env.create_token("read", "write", "run", project=matrix.env.other),
    ]

    for made in tokens:
        await matrix.answers(build_auth_headers(made))

    assert files[0].read_bytes() == before


FOREIGN = (
    "evil.example",
    "evil.example:7373",
    "127.0.0.1",
    "127.0.0.1:80",
    "127.0.0.1.:7373",
    "localhost.:7373",
    "10.0.0.1:7373",
    "[::2]:7373",
    "127.0.0.1:7373@evil.example",
    "",
)


async def test_a_foreign_host_name_is_refused_first(matrix: Matrix) -> None:
    for headers in ({}, build_auth_headers(matrix.env.owner)):
        for host in FOREIGN:
            for route, answer in await matrix.answers({**headers, "host": host}):
                assert (answer.status_code, read_error_code(answer)) == (403, "bad_host"), (route, host)


@pytest.mark.parametrize("host", ["127.0.0.1:7373", "localhost:7373", "LOCALHOST:7373", "[::1]:7373"])
async def test_our_host_names_are_accepted(env: ServerEnv, host: str) -> None:
    async with open_client(env.build_app(), env.owner) as client:
        assert (await client.get("/api/health", headers={"host": host})).status_code == 200


async def test_pages_of_other_origins_are_refused_even_with_a_token(matrix: Matrix) -> None:
    others = ("http://evil.example", "null", "https://evil.example:7373", "file://", "http://127.0.0.1:8000", "")
    for origin in others:
        for route, answer in await matrix.answers({**build_auth_headers(matrix.env.owner), "origin": origin}):
            assert (answer.status_code, read_error_code(answer)) == (403, "bad_origin"), (route, origin)
            assert not [name for name in answer.headers if name.startswith("access-control")], route


async def test_cors_allows_no_origin(matrix: Matrix) -> None:
    async with open_client(matrix.app, matrix.env.owner) as client:
        for origin in ("http://evil.example", BASE):
            asked = {"origin": origin, "access-control-request-method": "POST"}
            for route in matrix.routes:
                answer = await client.options(build_path(route, matrix.id_for(route)), headers=asked)
                assert answer.status_code >= 400
                assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_request_with_two_hosts_is_invalid(env: ServerEnv) -> None:
    async with open_client(env.build_app(), env.owner) as client:
        headers = [("host", "127.0.0.1:7373"), ("host", "evil.example"), *build_auth_headers(env.owner).items()]
        answer = await client.get("/api/health", headers=headers)

    assert (answer.status_code, read_error_code(answer)) == (400, "bad_request")


async def test_forwarded_host_headers_are_ignored(env: ServerEnv) -> None:
    async with open_client(env.build_app(), env.owner) as client:
        forwarded = {"x-forwarded-host": "127.0.0.1:7373", "forwarded": "host=127.0.0.1:7373", "host": "evil.example"}
        answer = await client.get("/api/health", headers=forwarded)

    assert read_error_code(answer) == "bad_host"


async def test_unknown_addresses_require_a_token(env: ServerEnv) -> None:
    async with open_client(env.build_app(), env.owner) as client:
        del client.headers["authorization"]
        for path in ("/api", "/api/", "/api/nothing", "/api/sessions/x/y/z", "/api/openapi.json"):
            assert (await client.get(path)).status_code == 401, path


async def test_no_response_contains_a_token(matrix: Matrix) -> None:
    env = matrix.env
    secrets = [env.owner.secret, env.owner.token.hash, env.create_token("read").secret]
    for route, answer in await matrix.answers(build_auth_headers(env.owner)):
        told = answer.text + str(answer.headers)
        assert not any(secret in told for secret in secrets), route


async def test_a_token_in_the_address_is_ignored(env: ServerEnv) -> None:
    async with open_client(env.build_app(), env.owner) as client:
        del client.headers["authorization"]
        secret = env.owner.secret
        for query in (f"?token={secret}", f"?access_token={secret}", f"?authorization=Bearer%20{secret}"):
            assert (await client.get(f"/api/health{query}")).status_code == 401
        assert (await client.get("/api/health", headers={"cookie": f"token={secret}"})).status_code == 401


async def test_every_write_requires_json(matrix: Matrix) -> None:
    async with open_client(matrix.app, matrix.env.owner) as client:
        for route in matrix.routes:
            if route.method in ("GET", "DELETE"):
                continue
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None):
                headers = {} if kind is None else {"content-type": kind}
                content = b'{"name": "x"}'
                path = build_path(route, matrix.id_for(route))
                answer = await client.request(route.method, path, headers=headers, content=content)
                assert (answer.status_code, read_error_code(answer)) == (415, "not_json"), (route, kind)
