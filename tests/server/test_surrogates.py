"""Lone surrogates in any text of any session: every route answers, and other sessions are not affected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

import sessiontree as st
from tests.reliability.harness import times
from tests.server.conftest import ServerEnv, open_client
from tests.surrogates import write_hostile_files

ROUTES = (
    *("", "/tree", "/entries", "/entries/00000001", "/path", "/context", "/branches", "/export?format=html"),
    *("/export?format=md", "/export?format=jsonl", "/export?format=json", "/diff?a=main&b=other", "/swarms"),
    "/experiments",
)
EVERY = times(4, torture=1)


WRITES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/entries", {"role": "user", "text": "more"}),
    ("/label", {"entry": "00000001", "label": "first"}),
    ("/navigate", {"to": "00000001"}),
    ("/undo", {}),
    ("/branches", {"name": "new"}),
    ("/fork", {}),
)


async def test_no_route_fails_on_a_lone_surrogate_in_any_text(tmp_path: Path) -> None:
    env = ServerEnv(tmp_path)
    good = env.create_session()
    file = st.open(good).file
    assert file is not None
    files = write_hostile_files(Path(file).parent, env.project)
    failed: list[str] = []
    answered = 0
    async with open_client(env.build_app(), env.owner) as client:

        async def ask(method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
            answer = await client.request(method, f"/api{path}", json=body)
            if answer.status_code >= 500:
                failed.append(f"{path}: {answer.text}")
            return answer

        for _ in range(2):  # without an index, and with one
            assert (await ask("GET", "/sessions?limit=200")).json()["sessions"]
            found = (await ask("GET", "/search?q=faster")).json()["hits"]
            assert good in [hit["session"] for hit in found]
        for number, path in enumerate(files):
            for place, route in enumerate(ROUTES):
                if place % EVERY == number % EVERY:
                    answer = await ask("GET", f"/sessions/{path.stem}{route}")
                    answered += answer.status_code == 200
            for place, (route, body) in enumerate(WRITES):
                if place % EVERY == number % EVERY:
                    await ask("POST", f"/sessions/{path.stem}{route}", body)
    assert not failed, "\n".join(failed)
    assert answered > len(files)
