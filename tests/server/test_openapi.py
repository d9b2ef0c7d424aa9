"""The OpenAPI document: every route is documented with examples, and all responses conform to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings, strategies
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import sessiontree as st
from sessiontree.server import schemas
from sessiontree.server.app import build_openapi_document, create_app
from sessiontree.server.auth import TokenStore
from sessiontree.server.http_errors import ERROR_CODES
from sessiontree.server.openapi import build_example
from sessiontree.server.request_checks import build_allowed_hosts
from tests.server.conftest import ServerEnv, build_auth_headers, run_server
from tests.server.test_roles import list_api_routes

SHAPES = [
    shape
    for shape in vars(schemas).values()
    if isinstance(shape, type) and issubclass(shape, schemas.ResponseModel | schemas.RequestModel)
]
DOCUMENT = build_openapi_document(create_app(hosts=build_allowed_hosts("127.0.0.1", 7373), tokens=TokenStore(file="")))
OPERATIONS = [
    (method, path, mode)
    for path, methods in DOCUMENT["paths"].items()
    for method, told in methods.items()
    for mode in ("positive", "negative")
    # A wrong path parameter can only be missing.
    if mode == "positive" or "requestBody" in told or any(one["in"] == "query" for one in told.get("parameters", ()))
]
CHECKS = [
    schemathesis.checks.not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
    content_type_conformance,
]
EXAMPLES = 8


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_the_example_of_every_schema_is_valid(shape: type[Any]) -> None:
    example = build_example(shape)

    assert set(example) <= set(msgspec.to_builtins(msgspec.convert(example, shape)))


def test_every_route_is_documented_with_its_request_and_response(env: ServerEnv) -> None:
    paths = DOCUMENT["paths"]
    for route in list_api_routes(env.build_app()):
        if route.path == "/api/openapi.json":
            continue
        for method in route.methods:
            operation = paths[route.path.replace(":path", "")][method.lower()]
            assert operation["description"], route.path
            told = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
            for content in told[0]["content"].values():
                assert "example" in content or content["schema"] == {"type": "string"}, route.path
            if method in ("POST", "PATCH"):
                assert "example" in operation["requestBody"]["content"]["application/json"], route.path
            assert {"401", "403", "404", "422"} <= set(operation["responses"])


def test_every_error_response_has_an_example_with_its_code() -> None:
    for path, operations in DOCUMENT["paths"].items():
        for operation in operations.values():
            refused = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
            codes = {
                status: answer["content"]["application/json"]["example"]["error"]["code"]
                for status, answer in refused.items()
            }
            assert codes == {status: ERROR_CODES[int(status)] for status in refused}, path


def test_every_reference_of_the_document_is_defined() -> None:
    names = {part.split('"')[0] for part in json.dumps(DOCUMENT).split("#/components/schemas/")[1:]}

    assert names <= set(DOCUMENT["components"]["schemas"])


# Generated requests


PLACES = ("branch", "name", "into", "onto", "from", "to", "at", "entry", "a", "b", "branches", "entries")


class Target(NamedTuple):
    base: str
    ids: dict[str, list[str]]
    """Existing ids of each kind."""
    headers: dict[str, str]
    home: str


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    root: Path = tmp_path_factory.mktemp("schema")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SESSIONTREE_HOME", str(root / "home"))
        patch.setenv("HOME", str(root))
        env = ServerEnv(root, *["An answer."] * 1000)
        sessions = [env.create_session(), _create_odd_session(env)]
        ids = {
            "sessions": sessions,
            "swarms": [asyncio.run(env.create_swarm(id)) for id in sessions],
            "experiments": [env.create_experiment(id) for id in sessions],
        }
        with run_server(env) as base:
            yield Target(base, ids, build_auth_headers(env.owner), str(root / "home"))


def _create_odd_session(env: ServerEnv) -> str:
    """Create a session with branches, a label, tools, and texts with lone surrogates."""
    with st.create("tools", cwd=env.project) as session:
        call = st.tool_call("c1", "read", {"path": "a.py"})
        session.head.extend(
            [st.user("look"), st.assistant([call]), st.tool_result("c1", "read", "text"), st.assistant("seen")]
        )
        session.label("HEAD", "seen")
        session.create_branch("other", at="HEAD~1").append(st.user("\ud800 and \0 and \u2028"))
        return session.id


@pytest.mark.parametrize(("method", "path", "mode"), OPERATIONS, ids=lambda part: part)
def test_responses_match_the_openapi_document(
    method: str, path: str, mode: str, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIONTREE_HOME", target.home)
    operation = schemathesis.openapi.from_dict({**DOCUMENT, "security": []})[path][method]
    endless = path == "/api/sessions/{id}/events"
    fixed = {"query": {"after": "nowhere"}} if endless else {}

    @given(
        case=operation.as_strategy(generation_mode=GenerationMode(mode), **fixed),
        id=strategies.sampled_from(target.ids.get(path.split("/")[2], [""])),
        place=strategies.sampled_from((None, "main", "other", "HEAD", "HEAD~1", "root")),
    )
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    def ask(case: Any, id: str, place: str | None) -> None:
        if "{id}" in path:
            case.path_parameters = {**(case.path_parameters or {}), "id": id}
        _keep_small(case.body)
        if place is not None and mode == "positive":
            for part in (case.body, case.query, case.path_parameters):
                _name_real_places(part, place)
        response = case.call(base_url=target.base, headers=target.headers, timeout=20)
        # An export has the bytes of the file, even if strict JSON parsers refuse them.
        checks = [check for check in CHECKS if check is not response_schema_conformance or "/export" not in path]
        case.validate_response(response, checks=checks)

    ask()


def _keep_small(body: Any) -> None:
    """Limit the number of agents, because a thousand would take too long."""
    for key, most in (("agents", 2), ("runs", 1)):
        if isinstance(body, dict) and isinstance(body.get(key), int):
            body[key] = min(body[key], most)


def _name_real_places(part: Any, place: str) -> None:
    """Replace some generated names by real ones, because generated names rarely exist."""
    for key in PLACES:
        if isinstance(part, dict) and isinstance(part.get(key), str):
            part[key] = place
        elif isinstance(part, dict) and isinstance(part.get(key), list):
            part[key] = ["main", place]
