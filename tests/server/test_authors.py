"""Who wrote what: messages have the name of the token that sent them, and the model does not see it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_ai.models.test import TestModel

import sessiontree as st
from sessiontree.model.adapter.conversion import build_messages
from sessiontree.server.auth import TokenStore, issue_token
from tests.server.conftest import ServerEnv, build_auth_headers, open_client
from tests.server.test_runs import wait_until_idle


@pytest.fixture
def env(tmp_path: Path) -> ServerEnv:
    return ServerEnv(tmp_path, "With an index.")


async def test_messages_have_the_name_of_their_token(env: ServerEnv) -> None:
    id = env.create_session()
    anna = issue_token(("read", "write", "run"), name="anna")
    TokenStore().add(anna.token)
    async with open_client(env.build_app(), env.owner) as client:
        by_anna = build_auth_headers(anna)
        await client.post(f"/api/sessions/{id}/entries", json={"role": "user", "text": "Note."}, headers=by_anna)
        await client.post(f"/api/sessions/{id}/prompt", json={"text": "How?"}, headers=by_anna)
        await wait_until_idle(client, id)
        await client.post(f"/api/sessions/{id}/entries", json={"role": "user", "text": "Mine."})
        path = (await client.get(f"/api/sessions/{id}/path")).json()["entries"]

    assert {row["text"]: row.get("author") for row in path if row["role"] == "user"} == {
        "How do I make this faster?": None,
        "Note.": "anna",
        "How?": "anna",
        "Mine.": None,
    }
    sent = build_messages(env.models.model.requests[-1], env.models.model.info, TestModel())
    assert "How?" in str(sent)
    assert "anna" not in str(sent)
    with st.open(id) as session:
        assert "anna" in str(session.tree[path[-3]["id"]].decode())


async def test_a_browser_has_the_name_of_its_link(env: ServerEnv) -> None:
    code = issue_token(("read", "write"), kind="code", name="ben")
    TokenStore().add(code.token)

    signed_in = TokenStore().sign_in(code.secret, "code")

    assert signed_in is not None
    assert signed_in.token.name == "ben"
