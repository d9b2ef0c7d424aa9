"""Sessions over HTTP: listing, search, creation, names, archiving and exports."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

import sessiontree as st
from sessiontree._version import __version__
from sessiontree.library import catalog
from sessiontree.library.foreign_import import import_sessions
from sessiontree.model.selection import list_model_names
from sessiontree.server.session_cache import OpenSession
from sessiontree.session import Session
from tests.interop.conformance import FIXTURES
from tests.server.conftest import ServerEnv, build_auth_headers, open_client


async def list_ids(client: httpx.AsyncClient, **params: str) -> list[str]:
    return [session["id"] for session in (await client.get("/api/sessions", params=params)).json()["sessions"]]


async def test_the_server_reports_its_version_and_the_rights_of_the_token(env: ServerEnv) -> None:
    made = env.create_token("read", project=env.project)
    async with open_client(env.build_app(), made) as client:
        health = (await client.get("/api/health")).json()
        me = (await client.get("/api/me")).json()
        models = (await client.get("/api/models")).json()

    assert (health["status"], health["version"]) == ("ok", __version__)
    assert health["uptime"] >= 0
    assert me == {
        "kind": "program",
        "scopes": ["read"],
        "projects": [str(env.project)],
        "allowRun": True,
        "permissionMode": "ask",
        "version": __version__,
    }
    assert models["default"] == "scripted:scripted"
    assert models["models"][0]["provider"] == "scripted"


async def test_sessions_are_listed_newest_first_and_paginated(env: ServerEnv, client: httpx.AsyncClient) -> None:
    made = [env.create_session() for _ in range(5)]

    whole = await client.get("/api/sessions")
    pages: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": "2", **({} if cursor is None else {"cursor": cursor})}
        page = (await client.get("/api/sessions", params=params)).json()
        pages += [session["id"] for session in page["sessions"]]
        cursor = page["next"]
        if cursor is None:
            break

    assert [session["id"] for session in whole.json()["sessions"]] == made[::-1]
    assert pages == made[::-1]
    first = whole.json()["sessions"][0]
    assert (first["name"], first["firstMessage"], first["entries"]) == ("auth", "How do I make this faster?", 3)


async def test_a_listing_is_filtered_by_words_folders_and_archive_state(
    env: ServerEnv, client: httpx.AsyncClient
) -> None:
    here, there = env.create_session(), env.create_session(env.other)
    catalog.archive(there)

    assert await list_ids(client) == [here]
    assert await list_ids(client, archived="true") == [there]
    assert await list_ids(client, project=str(env.project)) == [here]
    assert await list_ids(client, project=str(env.other)) == []
    assert await list_ids(client, q="FASTER auth") == [here]
    assert await list_ids(client, q="nothing of the kind") == []


async def test_a_project_token_lists_and_finds_only_its_project(env: ServerEnv) -> None:
    here, there = env.create_session(), env.create_session(env.other)
    async with open_client(env.build_app(), env.create_token("read", project=env.project)) as client:
        hits = (await client.get("/api/search", params={"q": "faster"})).json()["hits"]
        elsewhere = (await client.get("/api/search", params={"q": "faster", "session": there})).json()["hits"]

        assert await list_ids(client) == [here]
        assert await list_ids(client, project=str(env.other)) == []
    assert [hit["session"] for hit in hits] == [here]
    assert elsewhere == []


async def test_entries_are_found_in_all_sessions_or_in_one(env: ServerEnv, client: httpx.AsyncClient) -> None:
    made = {env.create_session(), env.create_session()}
    one = next(iter(made))

    everywhere = (await client.get("/api/search", params={"q": "faster"})).json()["hits"]
    there = (await client.get("/api/search", params={"q": "faster", "session": one})).json()["hits"]
    first = (await client.get("/api/search", params={"q": "faster", "limit": "1"})).json()
    second = (await client.get("/api/search", params={"q": "faster", "limit": "1", "cursor": first["next"]})).json()

    assert {hit["session"] for hit in everywhere} == made
    assert [hit["session"] for hit in there] == [one]
    assert everywhere[0]["role"] == "user"
    assert [*first["hits"], *second["hits"]] == everywhere
    assert second["next"] is None
    assert (await client.get("/api/search", params={"q": "since:nonsense"})).status_code == 422


async def test_a_search_reports_the_number_of_unreadable_sessions(env: ServerEnv, client: httpx.AsyncClient) -> None:
    file = catalog.find(env.create_session())

    before = (await client.get("/api/search", params={"q": "faster"})).json()["unread"]
    Path(file).with_name("broken.jsonl").write_text("no session\n")
    after = (await client.get("/api/search", params={"q": "faster"})).json()

    assert (before, after["unread"], len(after["hits"]) > 0) == (0, 1, True)


async def test_a_session_is_created_where_the_token_allows(env: ServerEnv) -> None:
    async with open_client(env.build_app(), env.owner) as client:
        usual = (await client.post("/api/sessions", json={})).json()
        named = (await client.post("/api/sessions", json={"name": "x", "cwd": str(env.other)})).json()
        relative = await client.post("/api/sessions", json={"cwd": "a"})
        missing = await client.post("/api/sessions", json={"cwd": "/there/is/no/such/folder"})
        made = env.create_token("read", "write", project=env.other)
        own = await client.post("/api/sessions", json={}, headers=build_auth_headers(made))
        foreign = await client.post("/api/sessions", json={"cwd": str(env.project)}, headers=build_auth_headers(made))
        out = await client.post("/api/sessions", json={"cwd": f"{env.other}/../a"}, headers=build_auth_headers(made))

    assert usual["cwd"] == str(env.project)
    assert (named["name"], named["cwd"]) == ("x", str(env.other))
    assert (relative.status_code, missing.status_code) == (422, 422)
    assert own.json()["cwd"] == str(env.other)
    assert (foreign.status_code, out.status_code) == (403, 403)


async def test_a_session_response_has_all_fields(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    with st.open(id) as session:
        usage = {"input": 10, "output": 5, "cost": 0.01}
        session.head.append(st.assistant("An index.", provider="openai", model="gpt", usage=usage))

    answer = await client.get(f"/api/sessions/{id}")
    info = answer.json()

    assert (info["id"], info["name"], info["branch"], info["entries"]) == (id, "auth", "main", 4)
    assert (info["cost"], info["tokens"], info["models"]) == (0.01, 15, ["openai:gpt"])
    assert (info["readOnly"], info["problems"], info["running"], info["archived"]) == (None, [], [], False)
    assert answer.headers["etag"].startswith('"4-')


async def test_a_session_is_named_and_archived(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()

    named = await client.patch(f"/api/sessions/{id}", json={"name": "faster\nnow"})
    archived = await client.post(f"/api/sessions/{id}/archive", json={"archived": True})
    info = (await client.get(f"/api/sessions/{id}")).json()
    await client.post(f"/api/sessions/{id}/archive", json={"archived": False})

    assert named.json() == {"id": id, "name": "faster now"}
    assert archived.json() == {"id": id, "archived": True}
    assert info["archived"] is True
    assert await list_ids(client) == [id]


@pytest.mark.parametrize(
    ("form", "media"),
    [("html", "text/html"), ("md", "text/markdown"), ("json", "application/json"), ("text", "text/plain")],
)
async def test_a_session_is_exported_as_a_file(
    env: ServerEnv, client: httpx.AsyncClient, form: str, media: str
) -> None:
    answer = await client.get(f"/api/sessions/{env.create_session()}/export", params={"format": form})

    assert answer.headers["content-type"].startswith(media)
    assert answer.headers["content-disposition"].startswith('attachment; filename="session-')
    assert "How do I make this faster?" in answer.text


async def test_jsonl_is_the_file_byte_for_byte_unless_redacted(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    with st.open(id) as session:
        session.head.append(st.user("the key is sk-ant-REDACTED"))
        file = session.file
    assert file is not None

    whole = await client.get(f"/api/sessions/{id}/export", params={"format": "jsonl"})
    redacted = await client.get(f"/api/sessions/{id}/export", params={"format": "jsonl", "redact": "1"})

    assert whole.content == file.read_bytes()
    assert "sk-ant-api03" not in redacted.text


async def test_a_subtree_is_exported_without_the_rest_of_the_session(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()

    part = await client.get(f"/api/sessions/{id}/export", params={"format": "md", "subtree": "HEAD"})
    both = await client.get(f"/api/sessions/{id}/export", params={"branch": "HEAD", "subtree": "HEAD"})

    assert "With a **cache**." in part.text
    assert "How do I make this faster?" not in part.text
    assert both.status_code == 422


async def test_a_redacted_export_reports_the_redactions(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    with st.open(id) as session:
        session.head.append(st.user("the key is sk-ant-api03-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"))

    redacted = await client.get(f"/api/sessions/{id}/export", params={"redact": "1"})
    whole = await client.get(f"/api/sessions/{id}/export")

    report = json.loads(redacted.headers["redaction-report"])
    assert sum(report["counts"].values()) >= 1
    assert report["linesLeftOut"] == 0
    assert "redaction-report" not in whole.headers


@pytest.mark.parametrize(
    "id", ["..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "a/b", "%00", "x" * 5000, "é", "CON", "@", "auth"]
)
async def test_an_id_is_never_used_as_a_path(env: ServerEnv, client: httpx.AsyncClient, id: str) -> None:
    env.create_session()

    answer = await client.get(f"/api/sessions/{id}/branches")

    assert answer.status_code in (404, 405, 401), answer.text


async def test_a_deleted_session_is_not_found(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    assert (await client.get(f"/api/sessions/{id}")).status_code == 200

    catalog.delete(id)

    assert (await client.get(f"/api/sessions/{id}")).status_code == 404
    assert (await client.post(f"/api/sessions/{id}/label", json={"entry": "HEAD", "label": "x"})).status_code == 404


@pytest.mark.parametrize(
    ("path", "owner", "name"),
    [
        ("", OpenSession, "compute_totals"),
        ("/export?format=jsonl", Session, "hold_lock"),
        ("/export?format=md", Session, "hold_lock"),
    ],
    ids=["what it is", "as it is", "as text"],
)
async def test_a_session_deleted_during_a_request_is_not_found(
    env: ServerEnv, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str, owner: type[Any], name: str
) -> None:
    id = env.create_session()
    with st.open(id) as session:
        file = Path(str(session.file))
    found = getattr(owner, name)

    def delete_and_find(self: Any) -> Any:
        file.unlink()
        return found(self)

    monkeypatch.setattr(owner, name, delete_and_find)
    answer = await client.get(f"/api/sessions/{id}{path}")

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_a_large_session_is_described_at_once_without_totals(
    env: ServerEnv, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiontree.server.session_cache.COUNTED_TOGETHER", 2)
    id = env.create_session()

    first = (await client.get(f"/api/sessions/{id}", params={"wait": "false"})).json()
    whole = (await client.get(f"/api/sessions/{id}")).json()
    again = (await client.get(f"/api/sessions/{id}", params={"wait": "false"})).json()

    totals = ("cost", "tokens", "models", "problems")
    assert [first[name] for name in totals] == [None] * 4
    assert None not in [whole[name] for name in totals]
    assert {**first, **{name: whole[name] for name in totals}} == whole == again


async def test_a_replaced_file_is_read_again(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    with st.open(id) as session:
        file = Path(str(session.file))
    before = (await client.get(f"/api/sessions/{id}")).headers["etag"]
    lines = file.read_bytes().splitlines(keepends=True)
    other = file.with_suffix(".new")
    other.write_bytes(b"".join(lines[:3]))
    os.replace(other, file)

    answer = await client.get(f"/api/sessions/{id}")

    assert answer.json()["entries"] == 2
    assert answer.headers["etag"] != before


async def test_a_damaged_session_is_read_with_its_problems(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    with st.open(id) as session:
        file = Path(str(session.file))
    with file.open("ab") as damaged:
        damaged.write(b'{"type":"message","id":"broken"\n{"torn')

    info = (await client.get(f"/api/sessions/{id}")).json()

    assert "fault" in {problem["severity"] for problem in info["problems"]}
    for path in ("tree", "entries", "path", "context", "branches"):
        assert (await client.get(f"/api/sessions/{id}/{path}")).status_code == 200, path


async def test_models_are_listed_with_the_default(env: ServerEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    async with open_client(env.build_app(models=None), env.owner) as client:
        told = (await client.get("/api/models")).json()

    ready = [model["name"] for model in told["models"] if model["ready"]]
    assert ready == list_model_names()
    assert len([name for name in ready if name.startswith("openai:")]) > 5
    assert told["default"] == ready[0]
    assert all(model["reason"] for model in told["models"])


@pytest.fixture
def claude_file(env: ServerEnv, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A session of Claude Code at its real place, which the configuration shows."""
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    shutil.copytree(FIXTURES / "claude/subagent/projects", home / ".claude/projects")
    (home / ".sessiontree").mkdir(exist_ok=True)
    (home / ".sessiontree/config.toml").write_text('[sources]\nshow = ["claude"]\n')
    return next((home / ".claude/projects/-project").glob("*.jsonl"))


async def test_sessions_of_other_programs_are_listed_and_read_but_not_changed(
    claude_file: Path, env: ServerEnv, client: httpx.AsyncClient
) -> None:
    ours = env.create_session()
    before = {path: path.read_bytes() for path in claude_file.parent.rglob("*") if path.is_file()}
    url = f"/api/sessions/{claude_file.stem}"

    listed = (await client.get("/api/sessions")).json()["sessions"]
    info = (await client.get(url)).json()
    tree = (await client.get(f"{url}/tree")).json()
    path = (await client.get(f"{url}/path")).json()
    found = (await client.get("/api/search", params={"q": path["entries"][0]["text"].split()[0]})).json()
    refused = [
        await client.post(f"{url}/label", json={"entry": "HEAD", "label": "good"}),
        await client.post(f"{url}/archive", json={"archived": True}),
        await client.patch(url, json={"name": "other"}),
    ]
    forked = await client.post(f"{url}/fork", json={})

    assert {one["id"]: one["source"] for one in listed} == {ours: None, claude_file.stem: "claude"}
    assert (info["origin"], info["readOnly"][:31]) == ("claude 2.1.326", "it is a session of Claude Code;")
    assert "agent-" in json.dumps(tree)
    assert claude_file.stem in {hit["session"] for hit in found["hits"]}
    assert [answer.status_code for answer in refused] == [409, 409, 409], [answer.text for answer in refused]
    assert forked.status_code == 201
    assert {path: path.read_bytes() for path in claude_file.parent.rglob("*") if path.is_file()} == before


async def test_sessions_in_the_database_of_another_program_are_read_but_not_changed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: ServerEnv, client: httpx.AsyncClient
) -> None:
    (home / ".sessiontree").mkdir(parents=True, exist_ok=True)
    (home / ".sessiontree/config.toml").write_text('[sources]\nshow = ["opencode"]\n')
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    database = tmp_path / "opencode/opencode.db"
    database.parent.mkdir(parents=True)
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript((FIXTURES / "opencode/subagent/opencode.db.sql").read_text())
    before = database.read_bytes()

    [listed] = (await client.get("/api/sessions")).json()["sessions"]
    url = f"/api/sessions/{listed['id']}"
    info = (await client.get(url)).json()
    tree = (await client.get(f"{url}/tree")).json()
    found = (await client.get("/api/search", params={"q": "helper"})).json()
    refused = [
        await client.post(f"{url}/label", json={"entry": "HEAD", "label": "good"}),
        await client.post(f"{url}/archive", json={"archived": True}),
    ]

    assert (listed["source"], listed["name"], info["origin"]) == ("opencode", "With a helper", "opencode 1.18.33")
    assert "agent-general" in json.dumps(tree)
    assert {hit["session"] for hit in found["hits"]} == {listed["id"]}
    assert [answer.status_code for answer in refused] == [409, 409], [answer.text for answer in refused]
    assert database.read_bytes() == before


async def test_an_import_is_listed_and_found_instead_of_its_original(
    claude_file: Path, client: httpx.AsyncClient
) -> None:
    [result] = import_sessions(str(claude_file))
    word = st.open(result.session).head.path()[0].text.split()[0]

    listed = (await client.get("/api/sessions")).json()["sessions"]
    hits = (await client.get("/api/search", params={"q": word})).json()["hits"]
    info = (await client.get(f"/api/sessions/{claude_file.stem}")).json()

    assert [(one["id"], one["source"]) for one in listed] == [(claude_file.stem, None)]
    assert hits
    assert len({hit["entry"] for hit in hits}) == len(hits)
    assert info["readOnly"] is None


async def test_a_token_for_a_project_does_not_see_other_programs_elsewhere(claude_file: Path, env: ServerEnv) -> None:
    made = env.create_token("read", project=env.project)
    async with open_client(env.build_app(), made) as client:
        listed = (await client.get("/api/sessions")).json()["sessions"]
        info = await client.get(f"/api/sessions/{claude_file.stem}")

    assert (listed, info.status_code) == ([], 404)
