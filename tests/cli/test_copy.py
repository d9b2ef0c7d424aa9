"""Commands on sessions in a database, and copies between databases and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.cli import doctor
from sessiontree.store.postgres import connection
from sessiontree.store.postgres.address import parse_address
from tests.cli.conftest import Run
from tests.postgres import Proxy, Server, lose_a_line


def test_every_kind_of_command_works_with_a_database(cli: Run, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONTREE_STORE", database)

    made = json.loads(cli("new", "--name", "auth", "--json"))
    cli("append", "@", "--role", "user", "How?")
    cli("branch", "@", "try")
    cli("append", "auth", "--role", "user", "Otherwise")
    cli("rename", "auth", "login")

    assert made["file"] == f"{database}#{made['session']}"
    assert "Otherwise" in cli("tree", "login")
    assert json.loads(cli("context", made["file"], "--json"))
    assert [json.loads(line)["name"] for line in cli("ls", "--json").splitlines()] == ["login"]
    assert "Otherwise" in cli("search", "otherwise")
    forked = json.loads(cli("fork", "login", "--json"))
    assert forked["file"].startswith(database)
    assert f"fork of {made['session']}" in cli("ls")
    assert "no problems found" in cli("doctor", "login")
    cli("archive", "login")
    cli("delete", forked["session"], "--yes")
    assert forked["session"] in cli("ls", "--trash")
    assert "Otherwise" in cli("export", "login", "--format", "md", "-o", "-")


def test_a_session_is_copied_to_a_database_and_back(cli: Run, database: str, here: Path) -> None:
    cli("new", "--name", "auth", "-o", "s.jsonl")
    cli("append", "s.jsonl", "--role", "user", "How?")

    (copied,) = map(json.loads, cli("copy", "s.jsonl", database, "--json").splitlines())
    assert copied["state"] == "copied"
    assert "same" in cli("verify", "s.jsonl", database)
    assert "copied" in cli("copy", f"{database}#auth", "t.jsonl")

    assert (here / "s.jsonl").read_bytes() == (here / "t.jsonl").read_bytes()
    cli("append", "s.jsonl", "--role", "user", "More")
    assert "different" in cli("verify", "s.jsonl", database, code=1)
    assert "resumed" in cli("copy", "s.jsonl", database)


def test_doctor_examines_every_session_of_a_database(cli: Run, database: str, here: Path) -> None:
    (here / "bad.jsonl").write_text('{"type":"session","version":3,"id":"bad","timestamp":"","cwd":"/p"}\nnoise\n')
    cli("copy", "bad.jsonl", database)
    cli("new", "-o", "good.jsonl")
    cli("copy", "good.jsonl", database)

    results = [json.loads(line) for line in cli("doctor", database, "--json", code=1).splitlines()]

    assert [[problem["kind"] for problem in one["problems"]] for one in results] == [[], ["malformed_line"]]
    assert results[1]["file"] == f"{database}#bad"


def test_doctor_continues_after_an_unreadable_session(cli: Run, database: str) -> None:
    made = [st.create(name, dir=database).id for name in ("one", "two", "three")]
    lose_a_line(f"{database}#{made[1]}")

    results = [json.loads(line) for line in cli("doctor", database, "--json", code=1).splitlines()]

    found = {one["file"]: [(problem["kind"], problem["message"]) for problem in one["problems"]] for one in results}
    assert [found[f"{database}#{id}"] for id in made] == [[], [("no_session", "lines are missing")], []]
    assert "fault no_session  lines are missing" in cli("doctor", f"{database}#two", "--repair", code=1)


def test_doctor_stops_if_the_database_connection_is_lost(server: Server, database: str) -> None:
    for name in ("one", "two"):
        st.create(name, dir=database)
    proxy = Proxy(server.port)
    far = f"postgresql://postgres@127.0.0.1:{proxy.port}/{database.rpartition('/')[2]}"
    several = doctor._examine_all(far, repair=False)  # pyright: ignore[reportPrivateUsage]
    assert next(several).problems == []
    proxy.is_down = True
    proxy.cut_all()
    connection.get_database(parse_address(far)).retry_seconds = 0.1

    with pytest.raises(st.StoreError, match="cannot be reached"):
        next(several)
    proxy.close()


def test_copy_and_verify_fail_without_sessions(fails: Run, database: str, here: Path) -> None:
    (here / "empty").mkdir()

    for source in (database, "empty"):
        for command in ("copy", "verify"):
            assert "no sessions found" in fails(command, source, str(here / "out"))
            assert "no sessions found" in fails(command, source, str(here / "out"), "--json")


@pytest.mark.parametrize("command", [("copy", "out"), ("verify", "out"), ("doctor",)])
def test_a_name_of_both_a_session_and_a_folder_is_ambiguous(
    command: tuple[str, ...], cli: Run, fails: Run, here: Path
) -> None:
    verb, *rest = command
    with st.create("auth") as session:
        session.append(st.user("Hello"))
    cli("copy", "auth", "out")
    (here / "auth").mkdir()
    (here / "@").mkdir()

    message = fails(verb, "auth", *rest)

    assert "session or folder 'auth' is ambiguous; use one of: ./auth, " in message
    assert str(session.file) in message
    for clear in ("@", session.id, str(session.file)):
        assert cli(verb, clear, *rest)
    st.create(file=here / "auth" / "other.jsonl").close()
    assert "other" in cli(verb, "./auth", *rest, "--json", code=1 if verb == "verify" else 0)


def test_a_name_of_several_sessions_is_ambiguous_even_if_a_folder_has_it(cli: Run, fails: Run, here: Path) -> None:
    for _ in range(2):
        st.create("auth").close()
    (here / "auth").mkdir()

    assert "session or folder 'auth' is ambiguous; use one of: ./auth, " in fails("copy", "auth", "out")


def test_a_name_without_a_session_means_the_folder(cli: Run, here: Path) -> None:
    st.create(file=here / "auth" / "other.jsonl").close()
    st.create(".").close()

    assert "auth/other.jsonl" in cli("doctor", "auth")
    assert "copied out/other.jsonl" in cli("copy", "auth", "out")
    assert "./auth/other.jsonl" in cli("doctor", ".")


def test_a_folder_needs_no_database(cli: Run, here: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    st.create(file=here / "auth" / "other.jsonl").close()
    monkeypatch.setenv("SESSIONTREE_STORE", server.url("nowhere"))

    assert "auth/other.jsonl" in cli("doctor", "auth")
    assert "copied out/other.jsonl" in cli("copy", "auth", "out")
    assert cli("verify", "auth", "out")


def test_an_unreachable_database_is_reported_on_one_line(fails: Run, server: object) -> None:
    url = f"{server.url('nowhere', password='s3cret')}#x"  # type: ignore[attr-defined]

    message = fails("tree", url)

    assert "nowhere" in message
    assert "s3cret" not in message
