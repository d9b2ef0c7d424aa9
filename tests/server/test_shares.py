"""Share links: read-only, for one session or branch, redacted by choice, until they expire or are revoked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

import sessiontree as st
from sessiontree.home import get_home
from sessiontree.server.auth import TOKENS_FILE, TokenStore
from tests.export.sessions import SECRET
from tests.server.conftest import ServerEnv, build_auth_headers, open_client
from tests.server.test_roles import Matrix
from tests.server.test_roles import matrix as matrix

HOUR = 3600


@pytest.fixture
def shared(env: ServerEnv) -> str:
    """A session with two branches; one of them has a secret."""
    id = env.create_session()
    with st.open(id) as session:
        session.create_branch("quasar", at="main").extend([st.user("The hidden plan."), st.assistant(f"Key: {SECRET}")])
        session.label("quasar", "the quasar label")
        session.switch("main")
    return id


async def create_share(client: httpx.AsyncClient, id: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(f"/api/sessions/{id}/shares", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def open_share(client: httpx.AsyncClient, path: str) -> httpx.Response:
    """Open a link as somebody without a token."""
    request = client.build_request("GET", path)
    request.headers.pop("authorization", None)
    return await client.send(request)


async def test_a_link_shows_the_session_to_people_without_a_token(client: httpx.AsyncClient, shared: str) -> None:
    share = await create_share(client, shared, redact=False)

    page = await open_share(client, share["path"])

    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "How do I make this faster?" in page.text
    assert "The hidden plan." in page.text
    assert SECRET in page.text
    assert page.headers["content-security-policy"].startswith("sandbox allow-scripts ")
    assert "allow-same-origin" not in page.headers["content-security-policy"]


async def test_a_link_to_a_branch_has_nothing_of_other_branches(client: httpx.AsyncClient, shared: str) -> None:
    share = await create_share(client, shared, branch="main", redact=False)

    page = await open_share(client, share["path"])

    assert "How do I make this faster?" in page.text
    for hidden in ("The hidden plan.", SECRET, "quasar", "the quasar label"):
        assert hidden not in page.text


async def test_a_redacted_link_has_no_secret_in_the_page_or_its_data(client: httpx.AsyncClient, shared: str) -> None:
    share = await create_share(client, shared)

    page = await open_share(client, share["path"])

    assert "The hidden plan." in page.text
    assert SECRET not in page.text


async def test_a_link_shows_what_was_written_since(client: httpx.AsyncClient, shared: str) -> None:
    share = await create_share(client, shared, branch="main")
    before = await open_share(client, share["path"])
    with st.open(shared) as session:
        session.branch("main").append(st.user("And then?"))
        session.branch("quasar").append(st.user("More hidden."))

    after, again = [await open_share(client, share["path"]) for _ in range(2)]

    assert "And then?" not in before.text
    assert "And then?" in after.text
    assert "More hidden." not in after.text
    assert after.text == again.text


async def test_a_link_opens_no_route_of_the_api(matrix: Matrix) -> None:
    async with open_client(matrix.app, matrix.env.owner) as client:
        share = await create_share(client, matrix.id)
    secret = share["path"].removeprefix("/share/")
    for headers in (build_auth_headers(secret), {"cookie": f"sessiontree-7373={secret}"}):
        for route, answer in await matrix.answers({"authorization": "", **headers}):
            assert answer.status_code in (401, 403), route


@pytest.mark.parametrize("secret", ["", "wrong", "st_x", "../api/sessions", "%2e%2e/api/me", "a/b"])
async def test_a_wrong_link_shows_nothing(client: httpx.AsyncClient, shared: str, secret: str) -> None:
    answer = await open_share(client, f"/share/{secret}")

    assert answer.status_code in (401, 404)
    assert "faster" not in answer.text


async def test_other_tokens_are_no_share_links(client: httpx.AsyncClient, env: ServerEnv, shared: str) -> None:
    assert (await open_share(client, f"/share/{env.owner.secret}")).status_code == 404


async def test_a_revoked_link_shows_nothing(client: httpx.AsyncClient, shared: str) -> None:
    kept, revoked = [await create_share(client, shared) for _ in range(2)]

    assert (await client.delete(f"/api/sessions/{shared}/shares/{revoked['id']}")).status_code == 200

    gone = await open_share(client, revoked["path"])
    assert gone.status_code == 404
    assert gone.headers["content-type"] == "text/html; charset=utf-8"  # people open it, not programs
    assert "<h1>Nothing is shared here</h1>" in gone.text
    assert "script-src 'self'" in gone.headers["content-security-policy"]
    assert (await open_share(client, kept["path"])).status_code == 200
    listed = (await client.get(f"/api/sessions/{shared}/shares")).json()["shares"]
    assert [(one["id"], "path" in one) for one in listed] == [(kept["id"], False)]
    secret = kept["path"].removeprefix("/share/")
    assert secret not in Path(get_home(), TOKENS_FILE).read_text()


async def test_a_link_expires(env: ServerEnv, shared: str) -> None:
    now = ["2026-01-01T00:00:00.000Z"]
    tokens = TokenStore([env.owner.token], now=lambda: now[0])
    async with open_client(env.build_app(tokens=tokens), env.owner) as client:
        share = await create_share(client, shared, seconds=HOUR)
        assert (await open_share(client, share["path"])).status_code == 200
        now[0] = "2026-01-01T00:59:59.000Z"
        assert (await open_share(client, share["path"])).status_code == 200
        now[0] = "2026-01-01T01:00:00.000Z"
        assert (await open_share(client, share["path"])).status_code == 404
        assert (await client.get(f"/api/sessions/{shared}/shares")).json() == {"shares": []}


async def test_a_link_ends_with_the_token_that_made_it(client: httpx.AsyncClient, env: ServerEnv, shared: str) -> None:
    made = env.create_token("read", "write", project=env.project)
    answer = await client.post(f"/api/sessions/{shared}/shares", json={}, headers=build_auth_headers(made))
    assert (await open_share(client, answer.json()["path"])).status_code == 200

    TokenStore().revoke(made.token.id)

    assert (await open_share(client, answer.json()["path"])).status_code == 404


async def test_only_a_token_that_may_write_the_session_shares_it(
    client: httpx.AsyncClient, env: ServerEnv, shared: str
) -> None:
    reader, other = env.create_token("read"), env.create_token("read", "write", project=env.other)

    for made, status in ((reader, 403), (other, 404)):
        for method, path in (("POST", ""), ("DELETE", "/x")):
            answer = await client.request(
                method,
                f"/api/sessions/{shared}/shares{path}",
                headers={**build_auth_headers(made), "content-type": "application/json"},
            )
            assert answer.status_code == status, (method, answer.text)


async def test_a_link_to_a_branch_that_was_renamed_shows_nothing(client: httpx.AsyncClient, shared: str) -> None:
    share = await create_share(client, shared, branch="quasar")
    with st.open(shared) as session:
        session.rename_branch("quasar", "other")

    answer = await open_share(client, share["path"])
    assert answer.status_code == 404
    assert "<h1>Nothing is shared here</h1>" in answer.text
    assert "quasar" not in answer.text


@pytest.mark.parametrize("body", [{"branch": "nothing"}, {"seconds": 5}, {"seconds": 10**9}, {"entry": "x"}])
async def test_a_share_of_a_missing_branch_or_session_is_refused(
    client: httpx.AsyncClient, shared: str, body: dict[str, Any]
) -> None:
    answer = await client.post(f"/api/sessions/{shared}/shares", json=body)

    assert answer.status_code in (404, 422)
