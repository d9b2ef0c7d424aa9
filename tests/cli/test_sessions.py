"""Commands that list, search, archive and delete sessions."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.cli.app import run
from sessiontree.library import catalog
from tests.cli.conftest import HOSTILE, Run, run_process


@pytest.fixture
def rows(cli: Run) -> Callable[..., list[Any]]:
    """Run a command with --json and return the printed objects, one per line."""

    def command(*arguments: str) -> list[Any]:
        return [json.loads(line) for line in cli(*arguments, "--json").splitlines()]

    return command


@pytest.fixture
def talk(here: Path) -> st.Session:
    session = st.create(name="auth", cwd=here)
    session.append(st.user("How do I make it faster?"))
    session.append(st.assistant("With a cache, or a dict.", usage={"input": 10, "cost": 0.5}))
    return session


def test_ls_prints_one_json_line_per_session(rows, talk: st.Session, here: Path) -> None:
    (row,) = rows("ls")

    assert row == {
        "id": talk.id,
        "name": "auth",
        "firstMessage": "How do I make it faster?",
        "messages": 2,
        "entries": 3,
        "branches": 1,
        "branch": "main",
        "cost": 0.5,
        "created": talk.header.timestamp,
        "modified": row["modified"],
        "cwd": str(here),
        "parentSession": None,
        "archived": False,
        "damaged": False,
        "damage": None,
        "file": str(talk.file),
    }


def test_ls_shows_name_times_counts_and_first_message(cli, talk: st.Session) -> None:
    assert talk.file is not None
    fork = talk.fork(at="HEAD~1")
    (talk.file.parent / "x_bad.jsonl").write_bytes(b"garbage")

    text = cli("ls")

    for part in (
        f"{talk.id} auth\n",
        "2 messages, 3 entries, 1 branch, $0.5000",
        "How do I make it faster?",
        f"fork of {talk.id}",
        "bad damaged",
        "no session header",
    ):
        assert part in text
    assert text.index("bad damaged") < text.index(fork.id) < text.index(f"{talk.id} auth")


def test_ls_lists_this_folder_all_folders_another_folder_or_other_programs(rows, cli, talk, home: Path) -> None:
    other = st.create(cwd="/q")
    pi = st.create(dir=home / ".pi" / "agent" / "sessions" / "--q--", cwd="/q")

    def ids(*arguments: str) -> list[str]:
        return [row["id"] for row in rows("ls", *arguments)]

    assert ids() == [talk.id]
    assert ids("--all") == [other.id, talk.id]
    assert ids("--source", "pi", "--all") == [pi.id]
    assert ids("--source", "pi") == []
    assert ids("--dir", str(pi.file.parent)) == [pi.id]
    assert "/q" in cli("ls", "--all")
    for arguments in (("--source", "pi", "--all"), ("--dir", str(pi.file.parent))):
        assert str(pi.file) in cli("ls", *arguments)
    assert str(talk.file) not in cli("ls", "--all")
    assert "no sessions" in cli("ls", "--source", "omp", "--all")


def test_archived_sessions_are_listed_on_request(rows, cli, fails, talk: st.Session) -> None:
    assert rows("archive", "@") == [{"archived": True, "file": str(talk.file)}]

    assert (rows("ls"), [row["id"] for row in rows("ls", "--archived")]) == ([], [talk.id])
    assert "no sessions in this folder" in cli("ls")
    assert "this folder has none, or only archived ones, which `sessiontree ls --archived` shows" in fails("tree", "@")
    assert "unarchived" in cli("archive", "auth", "--undo")
    assert len(rows("ls")) == 1
    assert "archived" in cli("archive", "auth")


def test_search_prints_ids_that_other_commands_accept(rows, cli, talk: st.Session) -> None:
    (hit,) = rows("search", "cache")
    text = cli("search", "cach*", "role:assistant", "since:7d")

    assert set(hit) == {
        "session", "name", "entry", "type", "role", "timestamp", "branch", "inContext", "snippet", "file",
    }  # fmt: skip
    assert (hit["branch"], hit["inContext"], hit["role"]) == ("main", True, "assistant")
    for command in ("context", "log"):
        assert cli(command, hit["session"], "--at", hit["entry"])
    assert rows("fork", hit["session"], "--at", hit["entry"])[0]["forkedFrom"] == hit["entry"]
    assert text.splitlines()[0] == f"{talk.id} auth"
    assert f"  {hit['entry'][:8]} " in text
    assert " main in context assistant\n    With a cache, or a dict.\n" in text


def test_ids_with_the_same_prefix_are_distinguished(cli, here: Path) -> None:
    line = '{{"type":"message","id":"message-0000000{0}","message":{{"role":"user","content":"apple"}}}}'
    lines = ['{"type":"session","version":3,"id":"s"}', line.format(1), line.format(2)]
    (here / "s.jsonl").write_text("\n".join(lines) + "\n")

    text = cli("search", "apple", "--dir", ".")

    assert cli("context", "s.jsonl", "--at", "message-00000002")
    assert "message-00000001" in text
    assert "message-00000002" in text


def test_search_covers_all_folders_on_request_and_reports_no_matches(rows, cli, talk, home: Path) -> None:
    other = st.create(cwd="/q")
    other.append(st.user("a cache"))
    pi = st.create(dir=home / ".pi" / "agent" / "sessions" / "--q--", cwd="/q")
    left = pi.append(st.user("a cache"))
    pi.switch("root")

    assert len(rows("search", "cache")) == 1
    assert len(rows("search", "cache", "--all")) == 2
    assert len(rows("search", "cache", "--all", "--limit", "1")) == 1
    assert rows("search", "cache", "--source", "pi", "--all")[0]["entry"] == left.id
    text = cli("search", "cache", "--source", "pi", "--all")
    assert text.startswith(str(pi.file))
    assert "no branch not in context" in text
    assert cli("search", "nowhere").strip() == "no matches in sessions of this folder"
    assert cli("search", "nowhere", "--all").strip() == "no matches"


def test_copies_of_a_session_are_listed_with_their_files(cli, talk: st.Session) -> None:
    other = st.create(name="other")
    other.append(st.user("a cache too"))
    assert talk.file is not None
    copy = talk.file.with_name("copy.jsonl")
    copy.write_bytes(talk.file.read_bytes())

    for listed in (cli("ls"), cli("search", "cache")):
        assert str(talk.file) in listed
        assert str(copy) in listed
        assert other.id in listed
        assert str(other.file) not in listed


@pytest.mark.parametrize("where", ["beside", "archived", "in another folder"])
def test_a_hidden_copy_makes_an_id_ambiguous(cli, talk: st.Session, where: str) -> None:
    assert talk.file is not None
    folder = talk.file.parent
    if where == "in another folder":
        folder = folder.with_name("--q--")
        folder.mkdir()
    copy = folder / "backup.jsonl"
    copy.write_bytes(talk.file.read_bytes())
    if where == "archived":
        catalog.archive(copy)
    message = talk.append(st.user("only here"))

    first, *_ = cli("search", "only here").splitlines()

    assert first == f"{talk.file} auth"
    assert "only here" in cli("context", first.removesuffix(" auth"), "--at", message.id)
    assert str(talk.file) in cli("ls")
    assert (str(copy) in cli("ls", "--archived")) == (where == "archived")


def test_an_id_that_resolves_to_another_file_is_listed_with_its_file(cli, talk: st.Session) -> None:
    other = st.create(name="other")
    assert talk.file is not None
    assert other.file is not None
    other.file.write_bytes(talk.file.read_bytes())

    for listed in (cli("ls"), cli("search", "cache")):
        assert str(other.file) in listed


def test_deleted_copies_are_listed_with_their_files(cli, talk: st.Session) -> None:
    assert talk.file is not None
    before = talk.file.read_bytes()
    first = catalog.delete(talk.file)
    assert first not in cli("ls", "--trash")

    talk.file.with_name("backup.jsonl").write_bytes(before)
    second = catalog.delete(talk.file.with_name("backup.jsonl"))

    shown = cli("ls", "--trash")
    assert first in shown
    assert second in shown


def test_an_invalid_configuration_does_not_prevent_listing_a_folder(cli, talk: st.Session, home: Path) -> None:
    assert talk.file is not None
    (home / ".sessiontree" / "config.toml").write_text("nonsense")

    assert talk.id in cli("ls", "--dir", str(talk.file.parent))
    assert str(talk.file) in cli("search", "cache", "--dir", str(talk.file.parent))


def test_search_reports_unreadable_files_on_standard_error(talk: st.Session, here: Path, capsys) -> None:
    assert run(["search", "cache"]) == 0
    assert capsys.readouterr().err == ""
    assert talk.file is not None
    talk.file.with_name("bad.jsonl").write_bytes(b"garbage")

    assert run(["search", "cache", "--json"]) == 0

    captured = capsys.readouterr()
    assert json.loads(captured.out)["session"] == talk.id
    assert captured.err == "sessiontree: cannot read 1 file; run `sessiontree ls` for details\n"


def test_search_reports_when_the_limit_is_reached(cli, talk: st.Session) -> None:
    talk.append(st.user("another cache"))

    assert "showing the newest 1; use --limit for more" in cli("search", "cache", "--limit", "1")
    assert "newest" not in cli("search", "cache", "--limit", "3")


def test_delete_requires_yes_without_a_terminal(cli, rows, fails, talk: st.Session) -> None:
    assert "--yes" in fails("delete", "auth", code=2)
    assert "--restore and --purge are mutually exclusive" in fails("delete", "auth", "--restore", "--purge", code=2)
    assert len(rows("ls")) == 1

    (deleted,) = rows("delete", "auth", "--yes")
    assert deleted["done"] == "deleted"
    assert (rows("ls"), [row["id"] for row in rows("ls", "--trash")]) == ([], [talk.id])
    assert "auth" in cli("ls", "--trash")
    assert "session 'auth' not found" in fails("delete", "auth", "--yes")
    assert rows("delete", "auth", "--restore") == [{"done": "restored", "file": str(talk.file)}]
    assert cli("delete", talk.id, "--purge", "--yes").startswith("removed")
    assert (rows("ls"), rows("ls", "--trash")) == ([], [])


def run_at_terminal(*arguments: str, answer: bytes = b"") -> tuple[int, bytes]:
    """Run the command on a new terminal, and return its exit code and output."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from sessiontree.cli import main; main()", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as child:
        os.write(ours, answer)
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # the other end is closed
            pass
        os.close(ours)
    return child.returncode, shown


def test_delete_asks_for_confirmation_on_a_terminal(talk: st.Session) -> None:
    assert talk.file is not None

    code, shown = run_at_terminal("delete", "@", answer=b"n\n")
    assert (code, talk.file.exists()) == (130, True)
    assert b'Move auth "How do I make it faster?" to the trash? [y/N]' in shown

    code, _ = run_at_terminal("delete", "@", answer=b"y\n")
    assert (code, talk.file.exists()) == (0, False)

    code, shown = run_at_terminal("delete", talk.id, "--purge", answer=b"y\n")
    assert b'Permanently delete auth "How do I make it faster?"? [y/N]' in shown
    assert (code, catalog.list_trash()) == (0, [])


def test_delete_describes_a_session_by_its_id_or_file_if_it_has_no_name(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIONTREE_HOME", str(here / ("deep" * 60)))  # long enough to be shortened in lists
    empty, broken = st.create(cwd=here), st.create(cwd=here)
    assert broken.file is not None
    broken.file.write_bytes(b"garbage\n")

    for place, named in ((empty.id, f"{empty.id} (empty)"), (str(broken.file), str(broken.file))):
        code, shown = run_at_terminal("delete", place, answer=b"y\n")
        assert code == 0
        assert f"Move {named} to the trash?".encode() in shown.replace(b"\r\n", b"")


def test_progress_is_shown_only_on_a_terminal_and_only_for_slow_work(talk, monkeypatch, capsys) -> None:
    from sessiontree.cli import output

    assert output.create_progress("reading") is None
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    quick, slow = output.create_progress("reading"), output.create_progress("reading")
    assert quick is not None
    assert slow is not None
    quick(1, 2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(output, "SLOW_SECONDS", -1)
    slow(1, 2)
    slow(1, 2)
    slow(2, 2)

    assert capsys.readouterr().err == "\r\x1b[Kreading: 50 %\r\x1b[K"


def test_listed_text_cannot_control_the_terminal(cli, here: Path) -> None:
    session = st.create(name=HOSTILE.replace("\n", " "), cwd=here)
    session.append(st.user(f"apple {HOSTILE}"))
    (here / "a\x1b[2J.jsonl").write_bytes(b"garbage")

    for command in (["ls"], ["ls", "--dir", "."], ["search", "apple"]):
        for options in ([], ["--json"]):
            out = cli(*command, *options)
            assert not set(out) & {"\x1b", "\x07", "\x9b", "\u202e", "\u2028", "\x7f", "\r", "\ud800"}


def test_a_file_with_very_long_names_does_not_fill_the_terminal(cli, here: Path) -> None:
    message = {"type": "message", "id": "i" * 9999, "parentId": "p" * 9999, "timestamp": "t" * 9999}
    lines = [
        {"type": "session", "version": 3, "id": "s" * 9999, "cwd": "/" * 9999, "parentSession": "p" * 9999},
        {**message, "message": {"role": "r" * 9999, "content": "apple " * 999}},
        {"type": "session_info", "id": "n", "parentId": "i" * 9999, "name": "n" * 9999},
    ]
    (here / "long.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")

    for command in (["ls", "--dir", "."], ["search", "apple", "--dir", "."]):
        assert 200 < len(cli(*command)) < 2000
    assert len(cli("doctor", "long.jsonl", code=1)) < 2000


@pytest.mark.parametrize(
    "arguments",
    [
        ("search",),
        ("search", "x", "--limit", "0"),
        ("search", "x", "--source", "pi", "--dir", "."),
        ("ls", "--source", "emacs"),
        ("ls", "--source", "pi", "--dir", "."),
        ("ls", "--trash", "--archived"),
        ("ls", "--trash", "--dir", "."),
        ("archive",),
    ],
)
def test_wrong_usage_is_reported(fails, arguments) -> None:
    assert f"sessiontree {arguments[0]} --help" in fails(*arguments, code=2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("search", ""),
        ("search", "since:soon"),
        ("ls", "--dir", "nowhere"),
        ("archive", "nope"),
        ("delete", "x", "--yes"),
    ],
)
def test_errors_are_one_line(fails, arguments) -> None:
    assert len(fails(*arguments)) > 20


def test_ordinary_commands_do_not_import_sqlite(talk: st.Session) -> None:
    script = "import sys; from sessiontree.cli.app import run; run(sys.argv[1:]); sys.exit('sqlite3' in sys.modules)"
    for arguments in (["tree", "@"], ["context", talk.id], ["append", "@", "--role", "user", "x"]):
        done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
    assert run(["ls"]) == 0


def test_a_listing_to_a_closed_pipe_causes_no_traceback(talk) -> None:
    script = f"{sys.executable} -c 'from sessiontree.cli import main; main()' ls --json | true"

    assert subprocess.run(["bash", "-c", script], capture_output=True, check=False).stderr == b""
    assert run_process("ls", "--json").stdout.count("\n") == 1
