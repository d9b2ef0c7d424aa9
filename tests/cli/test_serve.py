"""`sessiontree serve` and `sessiontree token`, run as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import sessiontree as st
from sessiontree.cli.app import run
from sessiontree.home import get_home as home_folder
from sessiontree.server.auth import TokenStore
from sessiontree.server.request_checks import ServerLimits
from tests.shapes import build_lines


@contextmanager
def run_server(*options: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Run a server, and yield its process, address and token."""
    command = [sys.executable, "-m", "sessiontree", "serve", "--port", "0", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"serving at (http://\S+:(\d+))/#code=(\S+)\n", line)
        assert found, (line, process.stderr and process.stderr.read() if process.poll() is not None else "")
        yield process, found[1], Path(home_folder(), f"serve-{found[2]}.token").read_text().strip()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)


def test_a_server_starts_answers_and_stops_on_ctrl_c(home: Path) -> None:
    with st.create("auth") as session:
        session.head.append(st.user("How?"))
    with run_server() as (process, base, token):
        port = base.rpartition(":")[2]
        file = home / ".sessiontree" / f"serve-{port}.token"
        assert file.read_text().strip() == token
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        headers = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{base}/api/health").status_code == 401
        assert httpx.get(f"{base}/api/me", headers=headers).json()["allowRun"] is False
        tree = httpx.get(f"{base}/api/sessions/{session.id}/tree", headers=headers).json()
        assert [row["text"] for row in tree["entries"]] == ["How?"]
        page = httpx.get(f"{base}/")
        assert page.headers["content-type"].startswith("text/html")
        assert "script-src 'self'" in page.headers["content-security-policy"]

        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)

    assert process.returncode == 0
    assert out.endswith("stopped\n")
    assert err == ""
    assert token not in out
    assert not file.exists()


def test_a_port_in_use_is_reported_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        code = run(["serve", "--port", str(port)])

    assert code == 1
    message = capsys.readouterr().err
    assert message.startswith(f"sessiontree: port {port} on 127.0.0.1 is in use")
    assert message.count("\n") == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_a_remote_host_needs_the_flag(host: str, capsys: pytest.CaptureFixture[str], home: Path) -> None:
    assert run(["serve", "--host", host, "--port", "0"]) == 1

    assert "--allow-remote" in capsys.readouterr().err
    assert not list(home.rglob("serve-*.token"))


def test_a_remote_server_runs_agents_but_requires_the_token() -> None:
    options = ("--host", "0.0.0.0", "--allow-remote", "--name", "tower.local", "--allow-run")
    with run_server(*options) as (_, address, token):
        assert address.startswith("http://tower.local:")
        port = address.rpartition(":")[2]
        base = f"http://127.0.0.1:{port}"
        headers = {"authorization": f"Bearer {token}"}
        assert httpx.get(f"{base}/api/health").status_code == 401
        assert httpx.get(f"{base}/api/me", headers=headers).json()["allowRun"] is True
        for host, status in ((f"tower.local:{port}", 200), (f"evil.example:{port}", 403), (f"10.1.2.3:{port}", 200)):
            assert httpx.get(f"{base}/api/health", headers={**headers, "host": host}).status_code == status


def test_a_remote_server_prints_a_reachable_address_and_a_warning() -> None:
    with run_server("--host", "0.0.0.0", "--allow-remote") as (process, address, token):
        host = address.removeprefix("http://").rpartition(":")[0]
        assert host not in ("0.0.0.0", "127.0.0.1", "localhost")
        assert httpx.get(f"{address}/api/health", headers={"authorization": f"Bearer {token}"}).status_code == 200

        assert process.stdout is not None
        message = "".join(process.stdout.readline() for _ in range(3))

    assert "plain HTTP" in message
    assert "ssh -L" in message


def test_a_link_points_to_a_running_server_not_a_killed_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with run_server() as (process, base, _):
        left = home / ".sessiontree" / f"serve-{base.rpartition(':')[2]}.address"
        process.kill()
        process.wait(timeout=20)
        assert left.exists()

        assert run(["token", "link"]) == 1
        assert "no server is running" in capsys.readouterr().err
        with run_server() as (_, other, _):
            assert run(["token", "link"]) == 0
            assert capsys.readouterr().out.startswith(f"{other}/#code=")


def test_a_link_works_once_and_a_command_prints_another(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["token", "link"]) == 1
    assert "no server is running" in capsys.readouterr().err
    with run_server() as (_, base, _):
        run(["token", "link", "--scope", "read"])
        link = capsys.readouterr().out.strip()
        address, _, code = link.partition("/#code=")
        assert address == base

        with httpx.Client(base_url=base, headers={"origin": base}) as browser:
            first = browser.post("/sign-in", json={"code": code})
            assert first.status_code == 200
            assert browser.get("/api/me").json()["scopes"] == ["read"]
        again = httpx.post(f"{base}/sign-in", json={"code": code}, headers={"origin": base})

    assert (again.status_code, again.json()["error"]["code"]) == (401, "used_link")
    run(["token", "ls"])
    shown = capsys.readouterr().out
    assert "browser" in shown
    assert code not in shown


def test_an_invalid_lifetime_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["token", "create", "--expires", "soon"]) == 2
    assert "'soon' is not a duration; use a number and s, m, h, d or w, as in 7d" in capsys.readouterr().err
    assert run(["token", "create", "--expires", "7d", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert TokenStore().find(made["token"]) is not None
    assert made["expires"] > TokenStore().read_stored()[0].created


# Tokens


def test_a_token_is_created_shown_once_listed_and_revoked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(["token", "create", "--scope", "write", "--scope", "read", "--project", str(tmp_path), "--json"])
    made = json.loads(capsys.readouterr().out)
    run(["token", "ls", "--json"])
    listed = capsys.readouterr().out
    run(["token", "ls"])
    shown = capsys.readouterr().out

    assert made["scopes"] == ["read", "write"]
    assert made["projects"] == [str(tmp_path)]
    assert made["token"] not in listed + shown
    assert json.loads(listed)["id"] == made["id"]
    assert made["id"] in shown
    assert TokenStore().find(made["token"]) is not None

    assert run(["token", "revoke", made["id"]]) == 0
    assert TokenStore().find(made["token"]) is None
    assert run(["token", "revoke", made["id"]]) == 1


def test_a_running_server_accepts_a_new_token(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    with run_server() as (process, base, _):
        run(["token", "create", "--json"])
        made = json.loads(capsys.readouterr().out)
        headers = {"authorization": f"Bearer {made['token']}"}
        assert httpx.get(f"{base}/api/sessions", headers=headers).status_code == 200
        assert httpx.post(f"{base}/api/sessions", headers=headers, json={}).status_code == 403
        run(["token", "revoke", made["id"]])
        assert httpx.get(f"{base}/api/sessions", headers=headers).status_code == 401

        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out.endswith("stopped\n"), err) == (0, True, "")
    assert not list(home.rglob("serve-*"))


def test_a_missing_extra_is_explained(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sessiontree.server.app", None)

    assert run(["serve"]) == 1
    assert "pip install 'sessiontree[web]'" in capsys.readouterr().err


def create_large_session(count: int) -> str:
    """Create a session with many side branches that takes a while to export."""
    with st.create("large") as session:
        session.head.append(st.user("question"))
    assert session.file is not None
    header = session.file.read_bytes().split(b"\n", 1)[0]
    session.file.write_bytes(b"\n".join([header, *build_lines("comb", count)[1:], b""]))
    return session.id


def read_resident_memory(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def list_children(pid: int) -> list[str]:
    """Return the running child processes of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [child for task in tasks for child in (task / "children").read_text().split()]


needs_proc = pytest.mark.skipif(
    not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="this system does not list child processes"
)


@needs_proc
def test_a_large_export_does_not_grow_the_memory_of_the_server() -> None:
    large, small = create_large_session(3_000), create_large_session(1)
    with (
        run_server() as (process, base, token),
        httpx.Client(base_url=base, headers={"authorization": f"Bearer {token}"}, timeout=120) as client,
    ):

        def export(id: str) -> int:
            return len(client.get(f"/api/sessions/{id}/export?format=html&redact=true").raise_for_status().content)

        export(small)  # imports modules that stay loaded
        before = read_resident_memory(process.pid)

        size = export(large)

        assert size > 2_000_000
        assert read_resident_memory(process.pid) - before < 8_000_000


@needs_proc
def test_a_server_limits_parallel_exports_and_keeps_answering() -> None:
    large = create_large_session(1_500)
    with (
        run_server() as (process, base, token),
        httpx.Client(base_url=base, headers={"authorization": f"Bearer {token}"}, timeout=120) as client,
    ):
        jobs = [client.post(f"/api/sessions/{large}/exports", json={"redact": True}).json()["id"] for _ in range(5)]
        most, answered, states = 0, 0, set[str]()

        while not states or states & {"queued", "running"}:
            time.sleep(0.3)  # stay below the rate limit of the token
            assert client.get("/api/sessions").status_code == 200
            answered += 1
            most = max(most, len(list_children(process.pid)))
            states = {client.get(f"/api/exports/{job}").json()["state"] for job in jobs}

        assert states == {"done"}
        assert most == ServerLimits().exports
        assert answered > 1
