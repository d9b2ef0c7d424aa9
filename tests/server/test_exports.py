"""Exports over HTTP: separate processes, limits and progress."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

import sessiontree as st
from sessiontree.export import export
from sessiontree.server.jobs.export_jobs import ExportJob
from sessiontree.server.request_checks import ServerLimits
from tests.server.conftest import ServerEnv, open_client
from tests.shapes import build_content

SECRET = "sk-" + "a1b2c3d4" * 4
LIMITS = ServerLimits(rate=1e6, burst=1_000_000)


def write_session_file(env: ServerEnv, content: bytes) -> str:
    """Write a session of the catalog with other lines."""
    id = env.create_session()
    with st.open(id) as session:
        file = Path(str(session.file))
    header = file.read_bytes().split(b"\n", 1)[0]
    file.write_bytes(header + b"\n" + content.split(b"\n", 1)[1])
    return id


async def wait_until_finished(client: httpx.AsyncClient, job: dict[str, Any]) -> dict[str, Any]:
    while job["state"] in ("queued", "running"):
        await asyncio.sleep(0.02)
        job = (await client.get(f"/api/exports/{job['id']}")).json()
    return job


@pytest.mark.parametrize("form", ["html", "md", "json", "text", "jsonl"])
async def test_an_exported_file_matches_the_library(env: ServerEnv, client: httpx.AsyncClient, form: str) -> None:
    id = write_session_file(env, build_content("comb", 30))
    with st.open(id) as session:
        lines = session.read_lines()

    answer = await client.get(f"/api/sessions/{id}/export", params={"format": form, "branch": "HEAD"})

    assert answer.content == export(lines, form, branch="HEAD").content
    assert int(answer.headers["content-length"]) == len(answer.content)


async def test_a_job_reports_progress_and_has_the_file_and_the_report(
    env: ServerEnv, client: httpx.AsyncClient
) -> None:
    id = env.create_session()
    with st.open(id) as session:
        session.head.append(st.user(f"the key is {SECRET}"))
        count = len(session.read_lines())

    begun = await client.post(f"/api/sessions/{id}/exports", json={"format": "md", "redact": True})
    job = await wait_until_finished(client, begun.json())
    file = await client.get(f"/api/exports/{job['id']}/file")

    assert begun.status_code == 202
    assert (job["state"], job["lines"], job["redacted"], job["written"]) == ("done", count, count, len(file.content))
    assert job["takenOut"] == {"token": 1}
    assert job["file"].endswith(".md")
    assert SECRET.encode() not in file.content


async def test_other_tokens_cannot_see_an_export(env: ServerEnv, client: httpx.AsyncClient) -> None:
    job = (await client.post(f"/api/sessions/{env.create_session()}/exports", json={})).json()
    other = {"authorization": f"Bearer {env.create_token('read').secret}"}

    for method, path in (("GET", ""), ("GET", "/file"), ("DELETE", "")):
        answer = await client.request(method, f"/api/exports/{job['id']}{path}", headers=other)
        assert answer.status_code == 404
    assert (await wait_until_finished(client, job))["state"] == "done"


async def test_invalid_exports_are_refused(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()

    answer = await client.get(f"/api/sessions/{id}/export", params={"branch": "nowhere"})
    job = await wait_until_finished(
        client, (await client.post(f"/api/sessions/{id}/exports", json={"branch": "nowhere"})).json()
    )

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert (job["state"], job["error"]) == ("failed", answer.json()["error"]["message"])
    assert (await client.get(f"/api/exports/{job['id']}/file")).status_code == 404


async def test_exports_beyond_the_queue_limit_are_refused(env: ServerEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    run = ExportJob.run

    def run_later(self: ExportJob, seconds: float) -> None:
        gate.wait(60)
        run(self, seconds)

    monkeypatch.setattr(ExportJob, "run", run_later)
    app = env.build_app(limits=replace(LIMITS, exports=1, export_queue=3))
    async with open_client(app, env.owner) as client:
        id = env.create_session()
        other = {"authorization": f"Bearer {env.create_token('read').secret}"}
        mine = [await client.post(f"/api/sessions/{id}/exports", json={}) for _ in range(3)]
        theirs = [await client.post(f"/api/sessions/{id}/exports", json={}, headers=other) for _ in range(3)]
        gate.set()
        for job in mine[:2]:
            assert (await wait_until_finished(client, job.json()))["state"] == "done"

    assert [answer.status_code for answer in mine] == [202, 202, 429]
    assert [answer.status_code for answer in theirs] == [202, 202, 429]
    assert mine[2].json()["error"]["code"] == "too_many_exports"


@pytest.mark.parametrize(
    ("limit", "words"),
    [({"export_size": 50_000}, "the export exceeds"), ({"export_seconds": 0.01}, "took longer than 0.01 s")],
    ids=["size", "time"],
)
async def test_an_export_is_stopped_at_its_limits(env: ServerEnv, limit: dict[str, Any], words: str) -> None:
    app = env.build_app(limits=replace(LIMITS, **limit))
    async with open_client(app, env.owner) as client:
        answer = await client.get(f"/api/sessions/{write_session_file(env, build_content('wide', 500))}/export")

    assert answer.status_code == 413
    assert words in answer.json()["error"]["message"]


@pytest.mark.skipif(os.name != "posix", reason="limits of memory are of POSIX")
async def test_an_export_is_stopped_at_its_memory_limit(env: ServerEnv) -> None:
    id = write_session_file(env, build_content("chain", 200_000))
    app = env.build_app(limits=replace(LIMITS, export_memory=120 << 20))
    async with open_client(app, env.owner) as client:
        answer = await client.get(f"/api/sessions/{id}/export", params={"format": "json"})

    assert answer.status_code == 413
    assert "memory" in answer.json()["error"]["message"]


async def test_a_cancelled_export_ends_its_process(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = write_session_file(env, build_content("wide", 20_000))
    job = (await client.post(f"/api/sessions/{id}/exports", json={"redact": True})).json()
    while (await client.get(f"/api/exports/{job['id']}")).json()["state"] == "queued":
        await asyncio.sleep(0.01)
    running = client._transport.app.state.app_state.exports._jobs[job["id"]]  # type: ignore[attr-defined]

    await client.delete(f"/api/exports/{job['id']}")
    await asyncio.to_thread(running.ended.wait, 60)

    assert running._process.returncode == -9
    assert (await client.get(f"/api/exports/{job['id']}")).status_code == 404


async def test_the_process_of_an_export_gets_neither_environment_nor_token(
    env: ServerEnv, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    given: list[dict[str, Any]] = []
    from sessiontree.server.jobs import export_jobs

    popen = export_jobs.subprocess.Popen

    def noted(command: Any, **options: Any) -> Any:
        given.append({"command": command, **options})
        return popen(command, **options)

    monkeypatch.setattr(export_jobs.subprocess, "Popen", noted)
    answer = await client.get(f"/api/sessions/{env.create_session()}/export")

    assert answer.status_code == 200
    assert set(given[0]["env"]) == {"LANG", "PATH"}
    assert env.owner.secret not in str(given[0]["command"])
