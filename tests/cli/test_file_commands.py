"""Commands that move files with the conversation, and that show their history."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.agent.tools import builtin_tools
from sessiontree.cli.app import run
from sessiontree.config import FileSettings
from sessiontree.core.messages import ToolCall
from sessiontree.files.private_folder import get_folders_root, list_private_folders, remove_private_folder
from sessiontree.files.snapshot_store import list_stores
from tests.cli.conftest import Run
from tests.files.conftest import interrupt_restore, run_git


def run_turns(session: st.Session, folder: Path, *commands: tuple[str, str]) -> None:
    """Let an agent run one command for each prompt."""

    async def run() -> None:
        for number, (prompt, command) in enumerate(commands):
            model = st.ScriptedModel([[ToolCall(f"c{number}", "bash", {"command": command})], "Done."])
            async with Agent(session, model, builtin_tools(), cwd=str(folder), snapshots=True) as agent:
                await agent.run(prompt)

    asyncio.run(run())


@pytest.fixture
def talk(here: Path) -> Iterator[Path]:
    """A session with two turns that write the same file. Private folders of its branches are removed at the end."""
    file = here / "talk.jsonl"
    with st.create(file=file, name="talk") as session:
        run_turns(
            session,
            here,
            ("Write a poem", "printf 'one\\ntwo\\n' > poem"),
            ("Make it longer", "printf 'one\\ntwo\\nthree\\n' > poem; touch notes"),
        )
    yield file
    for private in list_private_folders():  # an overlay would stay mounted
        remove_private_folder(private, FileSettings())


def get_prompt(file: Path, text: str) -> str:
    with st.open(file, read_only=True) as session:
        return next(entry.id for entry in session.tree if entry.text == text)


def test_navigate_previews_restores_and_undoes_files(cli: Run, here: Path, talk: Path) -> None:
    place = get_prompt(talk, "Make it longer")

    preview = cli("navigate", str(talk), place, "--files", "--dry-run")
    assert preview.splitlines()[-3:] == [
        "1 file to change, 1 file to delete",
        "  delete notes",
        "  change poem",
    ]
    assert (here / "notes").exists()

    assert "restored 1 file, deleted 1 file" in cli("navigate", str(talk), place, "--files")
    assert (here / "poem").read_text() == "one\ntwo\n"
    assert not (here / "notes").exists()

    assert "restored 2 files" in cli("undo", str(talk), "--files")
    assert (here / "poem").read_text() == "one\ntwo\nthree\n"
    assert (here / "notes").exists()


def test_a_preview_shows_the_changes_as_a_diff_on_request(cli: Run, fails: Run, here: Path, talk: Path) -> None:
    place = get_prompt(talk, "Make it longer")

    for command in (["navigate", str(talk), place], ["pop", str(talk), place], ["switch", str(talk), place]):
        out = cli(*command, "--files", "--dry-run", "--diff").splitlines()
        assert "  change poem" in out
        assert out[-4:] == ["@@ -1,3 +1,2 @@", " one", " two", "-three"]
    found = json.loads(cli("pop", str(talk), "--files-only", "--dry-run", "--diff", "--json"))
    assert found["files"]["diff"].endswith("\n-three\n")
    assert (here / "poem").read_text() == "one\ntwo\nthree\n"
    assert "--diff requires --dry-run" in fails("undo", str(talk), "--files", "--diff", code=2)
    assert "--diff requires --dry-run" in fails("navigate", str(talk), place, "--dry-run", "--diff", code=2)


def test_pop_previews_where_it_leads(cli: Run, talk: Path) -> None:
    out = cli("pop", str(talk), "--dry-run")

    assert "Make it longer" in out
    with st.open(talk, read_only=True) as session:
        assert session.heads.moves == []


def test_the_tree_shows_how_many_files_a_call_changed(cli: Run, talk: Path) -> None:
    rows = [row for row in cli("tree", str(talk)).splitlines() if "file" in row]

    assert [row.partition("] ")[2] for row in rows] == ["· 1 file", "· 2 files"]


def test_the_default_moves_only_the_conversation(cli: Run, here: Path, talk: Path) -> None:
    cli("navigate", str(talk), get_prompt(talk, "Make it longer"))

    assert (here / "poem").read_text() == "one\ntwo\nthree\n"


def test_files_only_leaves_the_conversation(cli: Run, here: Path, talk: Path) -> None:
    with st.open(talk, read_only=True) as session:
        leaf = session.heads.leaf

    out = json.loads(cli("navigate", str(talk), "root", "--files-only", "--json"))

    assert out["files"]["deleted"] == ["notes", "poem"]
    with st.open(talk, read_only=True) as session:
        assert session.heads.leaf == leaf
    assert sorted(path.name for path in here.iterdir()) == ["talk.jsonl", "talk.jsonl.lock"]


def test_undo_reverts_a_restore_of_files_alone(cli: Run, fails: Run, here: Path, talk: Path) -> None:
    place, leaf = get_prompt(talk, "Make it longer"), cli("log", str(talk), "--json")
    (here / "poem").write_text("mine\n")
    cli("navigate", str(talk), place, "--files-only", "--take", "poem")

    preview = cli("undo", str(talk), "--files", "--dry-run")
    assert preview.splitlines()[0] == "would undo the restore of files"
    assert "change poem" in preview
    assert json.loads(cli("undo", str(talk), "--files", "--dry-run", "--json"))["files"]["conflicts"] == []
    undone = cli("undo", str(talk), "--files")

    assert undone.splitlines() == ["undid the restore of files", "restored 2 files"]
    assert (here / "poem").read_text() == "mine\n"
    assert cli("log", str(talk), "--json") == leaf
    assert "nothing to undo" in fails("undo", str(talk), "--files")


def test_conflicts_are_kept_and_taken_by_name(cli: Run, fails: Run, here: Path, talk: Path) -> None:
    place = get_prompt(talk, "Make it longer")
    (here / "poem").write_text("mine")

    assert "keep   poem (changed on disk since)" in cli("navigate", str(talk), place, "--files")
    assert (here / "poem").read_text() == "mine"
    cli("undo", str(talk), "--files")
    cli("navigate", str(talk), place, "--files", "--take", "poem")
    assert (here / "poem").read_text() == "one\ntwo\n"
    cli("undo", str(talk), "--files")
    assert (here / "poem").read_text() == "mine"
    assert "--take requires --files" in fails("navigate", str(talk), place, "--take", "poem", code=2)


def test_pop_and_switch_take_files_along(cli: Run, here: Path, talk: Path) -> None:
    cli("branch", str(talk), "other", "--at", get_prompt(talk, "Write a poem"))
    cli("switch", str(talk), "main")

    assert "deleted 2 files" in cli("switch", str(talk), "other", "--files")
    assert not (here / "poem").exists()
    assert "restored 2 files" in cli("switch", str(talk), "main", "--files")
    assert (here / "poem").read_text() == "one\ntwo\nthree\n"
    assert "restored 1 file" in cli("pop", str(talk), "--no-summary", "--files")
    assert (here / "poem").read_text() == "one\ntwo\n"


def test_diff_shows_what_two_places_did_to_files(cli: Run, talk: Path) -> None:
    out = cli("diff", str(talk), get_prompt(talk, "Make it longer"), "HEAD")

    assert "files: 2 files differ" in out
    assert "  poem +1 -0" in out
    assert "+three" in out


def test_a_diff_knows_the_files_of_a_branch_without_changes(cli: Run, here: Path, talk: Path) -> None:
    cli("branch", str(talk), "bare", "--at", get_prompt(talk, "Write a poem"))
    with st.open(talk) as session:
        session.append(st.assistant("I did nothing."))

    found = json.loads(cli("diff", str(talk), "bare", "main", "--json"))["files"]

    assert (found["missing"], [item["path"] for item in found["paths"]]) == (None, ["notes", "poem"])


def test_a_diff_shows_what_turns_did_also_after_a_restore_that_kept_a_conflict(
    cli: Run, here: Path, talk: Path
) -> None:
    place = get_prompt(talk, "Make it longer")
    (here / "notes").write_text("mine\n")
    (here / "poem").write_text("mine\n")
    cli("navigate", str(talk), place, "--files-only")

    stats = json.loads(cli("diff", str(talk), place, "HEAD", "--json"))["files"]["paths"]

    assert stats == [{"path": "notes", "added": 0, "deleted": 0}, {"path": "poem", "added": 1, "deleted": 0}]


def test_blame_names_the_turn_of_each_line(cli: Run, here: Path, talk: Path) -> None:
    (here / "poem").write_text("one\nmine\nthree\n")

    lines = json.loads(cli("blame", "poem", "--json"))

    assert [(line["author"], line["prompt"], line["text"]) for line in lines] == [
        ("agent", "Write a poem", "one"),
        ("person", "", "mine"),
        ("agent", "Make it longer", "three"),
    ]
    shown = cli("blame", "poem", "--session", str(talk)).splitlines()
    assert [line.split()[-1] for line in shown] == ["one", "mine", "three"]
    assert shown[1].startswith("you ")


def test_blame_works_across_sessions(cli: Run, here: Path, talk: Path) -> None:
    with st.create(file=here / "second.jsonl") as session:
        run_turns(session, here, ("Add a line", "echo four >> poem"))

    lines = json.loads(cli("blame", "poem", "--json"))

    assert [line["prompt"] for line in lines] == ["Write a poem", "Write a poem", "Make it longer", "Add a line"]
    assert len({line["session"] for line in lines}) == 2


def test_files_log_lists_the_turns_that_changed_a_file(cli: Run, here: Path, talk: Path) -> None:
    out = [json.loads(line) for line in cli("files", "log", "poem", "--json").splitlines()]

    assert [item["prompt"] for item in out] == ["Make it longer", "Write a poem"]
    assert "Make it longer" in cli("files", "log", "poem", "--session", str(talk))


def test_files_du_shows_the_folder(cli: Run, here: Path, talk: Path) -> None:
    assert str(here) in cli("files", "du")
    (shown,) = json.loads(cli("files", "du", "--json"))
    assert (shown["folder"], shown["branches"]) == (str(here), 1)
    assert shown["bytes"] > 0


def test_files_du_counts_private_folders_once(cli: Run, here: Path, talk: Path) -> None:
    (here / "large").write_bytes(os.urandom(1 << 20))
    cli("branch", str(talk), "cache", "--private")

    (_, private) = json.loads(cli("files", "du", "--json"))

    assert (private["folder"], private["branches"]) == (get_folders_root(), 1)
    assert 1 << 20 <= private["bytes"] < 3 << 19


def test_fetch_brings_a_branch_into_the_project_as_commits(cli: Run, here: Path, talk: Path) -> None:
    run_git(here, "init", "-q")

    assert cli("files", "fetch", str(talk)).startswith("git fetch --no-tags ")
    cli("files", "fetch", str(talk), "--run")

    assert run_git(here, "show", "sessiontree/main:poem") == "one\ntwo\nthree\n"
    subjects = run_git(here, "log", "--format=%s", "sessiontree/main").splitlines()
    assert [subject.partition(" ")[2] for subject in subjects[:2]] == ["Make it longer", "Write a poem"]


def test_why_leads_from_a_commit_to_the_conversation(
    cli: Run, fails: Run, here: Path, talk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = cli("new", "--name", "library").split()[0]
    cli("append", "@", "--role", "user", "Why so slow?")
    run_git(here, "init", "-q")
    run_git(here, "commit", "-q", "--allow-empty", "-m", "x", "--trailer", cli("files", "trailer", "@").strip())

    assert "Why so slow?" in cli("why", "HEAD")
    assert json.loads(cli("why", "HEAD", "--json"))["prompt"] == "Why so slow?"
    run_git(here, "commit", "-q", "--allow-empty", "-m", "no trailer")
    assert "has no trailer" in fails("why", "HEAD")
    assert "commit 'nothing' not found" in fails("why", "nothing")
    assert session


def test_the_hook_adds_the_trailer_and_never_overwrites_another_one(cli: Run, fails: Run, here: Path) -> None:
    cli("new", "--name", "library")
    cli("append", "@", "--role", "user", "Why so slow?")
    assert "git repository" in fails("files", "trailer", "@", "--install-hook")
    run_git(here, "init", "-q")

    hook = Path(cli("files", "trailer", "@", "--install-hook").removeprefix("wrote ").strip())
    run_git(here, "commit", "-q", "--allow-empty", "-m", "x")

    assert "Why so slow?" in cli("why", "HEAD")
    before = hook.read_text()
    assert "exists and is not changed" in fails("files", "trailer", "@", "--install-hook")
    assert hook.read_text() == before


def test_commands_without_snapshots_say_so(cli: Run, fails: Run, here: Path) -> None:
    cli("new", "-o", "empty.jsonl")
    (here / "a").write_text("a")

    assert "no interrupted restore" in cli("files", "recover", "empty.jsonl")
    assert "no agent has changed files" in fails("blame", "a")
    assert "not changed files on this branch" in fails("files", "fetch", "empty.jsonl")


@pytest.mark.parametrize(("option", "left"), [("--finish", []), ("--revert", ["notes", "poem"])])
def test_an_interrupted_restore_of_any_session_is_recovered_in_its_folder(
    cli: Run, here: Path, talk: Path, option: str, left: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with st.create(file=here / "other.jsonl") as other:
        run_turns(other, here, ("Add", "echo 1 > added"))
    with st.open(talk) as session:
        interrupt_restore(session, None)
        id = session.id

    assert run(["navigate", "other.jsonl", "root", "--files"]) == 1
    assert "run `sessiontree files recover` in this folder" in capsys.readouterr().err
    assert f"interrupted: 2 files of session {id}" in cli("files", "recover")
    cli("files", "recover", option)

    assert [name for name in ("notes", "poem") if (here / name).exists()] == left
    assert "deleted 1 file" in cli("navigate", "other.jsonl", "root", "--files")


def test_an_interrupted_restore_of_a_deleted_session_can_be_reverted(
    cli: Run, fails: Run, here: Path, talk: Path
) -> None:
    with st.open(talk) as session:
        interrupt_restore(session, None)
    talk.unlink()

    assert "can only be reverted" in fails("files", "recover", "--finish")
    cli("files", "recover", "--revert")

    assert (here / "poem").exists()
    assert "no interrupted restore" in cli("files", "recover")


def test_snapshots_are_deleted_with_the_session_for_good_and_not_from_the_trash(cli: Run, here: Path) -> None:
    with st.create("talk", cwd=here) as session:
        run_turns(session, here, ("Write", "echo 1 > a"))
    (store,) = list_stores()

    cli("delete", "talk", "--yes")
    assert store.list_refs()
    cli("delete", "talk", "--purge", "--yes")
    assert not store.list_refs()


def test_snapshots_stay_while_a_fork_of_the_session_exists(cli: Run, here: Path) -> None:
    with st.create("talk", cwd=here) as session:
        run_turns(session, here, ("Write", "echo 1 > a"))
        session.fork(whole=True, name="copy").close()
    (store,) = list_stores()

    cli("delete", "talk", "--purge", "--yes")

    assert store.list_refs()


def test_missing_snapshots_are_reported_and_the_conversation_moves(cli: Run, home: Path, talk: Path) -> None:
    shutil.rmtree(home / ".sessiontree/files")
    place = get_prompt(talk, "Make it longer")

    out = cli("navigate", str(talk), place, "--files")

    assert "moved from" in out
    assert "files were not restored: the snapshots of this session are not on this machine" in out


def test_a_private_branch_is_created_promoted_and_removed(
    cli: Run, capsys: pytest.CaptureFixture[str], here: Path, talk: Path
) -> None:
    assert run(["branch", str(talk), "own", "--private"]) == 0
    assert "private folder: " in capsys.readouterr().err
    (folder,) = list_private_folders()
    Path(folder.path, "poem").write_text("own words\n")

    assert run(["promote", str(talk), "own", "--into", "main", "--summary", "It is better."]) == 0

    assert "wrote 1 file in" in capsys.readouterr().err
    assert (here / "poem").read_text() == "own words\n"
    assert list_private_folders() == []


def test_blame_log_and_fetch_work_for_a_private_folder(cli: Run, here: Path, talk: Path) -> None:
    cli("branch", str(talk), "cache", "--private")
    (private,) = list_private_folders()
    with st.open(talk) as session:
        run_turns(session, Path(private.path), ("Number it", "mkdir -p deep; echo four >> poem; echo 1 > deep/new"))

    blamed = json.loads(cli("blame", f"{private.path}/poem", "--json"))
    assert [line["prompt"] for line in blamed] == ["Write a poem", "Write a poem", "Make it longer", "Number it"]
    assert "Number it" in cli("files", "log", f"{private.path}/deep/new")
    run_git(here, "init", "-q")
    cli("files", "fetch", str(talk), "cache", "--run")
    assert run_git(here, "show", "sessiontree/cache:deep/new") == "1\n"


def test_blame_names_the_turn_in_a_private_folder_after_a_merge(cli: Run, here: Path, talk: Path) -> None:
    cli("branch", str(talk), "cache", "--private")
    (private,) = list_private_folders()
    with st.open(talk) as session:
        run_turns(session, Path(private.path), ("Number it", "echo four >> poem"))
    (here / "poem").write_text("zero\n" + (here / "poem").read_text())
    cli("switch", str(talk), "main")
    cli("merge", str(talk), "cache", "--summary", "Numbered.")

    blamed = json.loads(cli("blame", "poem", "--json"))

    assert [(line["text"], line["prompt"]) for line in blamed] == [
        ("zero", ""),
        ("one", "Write a poem"),
        ("two", "Write a poem"),
        ("three", "Make it longer"),
        ("four", "Number it"),
    ]


def test_archiving_a_branch_removes_its_private_folder(cli: Run, talk: Path) -> None:
    cli("branch", str(talk), "own", "--private")
    assert len(list_private_folders()) == 1

    cli("switch", str(talk), "main")
    cli("branch", str(talk), "own", "--archive")

    assert list_private_folders() == []


def test_a_branch_with_a_private_folder_cannot_be_renamed(cli: Run, fails: Run, talk: Path) -> None:
    cli("branch", str(talk), "own", "--private")

    refused = fails("branch", str(talk), "own", "--rename", "other")

    assert "branch 'own' has a private folder; merge or archive it before renaming" in refused


def test_explain_and_diff_show_which_turns_changed_files(cli: Run, talk: Path) -> None:
    explained = cli("context", str(talk), "--explain")
    found = json.loads(cli("diff", str(talk), "HEAD~4", "HEAD", "--json"))

    assert "changed 1 file" in explained
    assert [item["path"] for item in found["files"]["paths"]] == ["notes", "poem"]
    assert "+three" in found["files"]["diff"]


def test_switch_and_undo_preview_files_and_move_files_alone(cli: Run, fails: Run, here: Path, talk: Path) -> None:
    cli("branch", str(talk), "early", "--at", get_prompt(talk, "Make it longer"))
    cli("switch", str(talk), "main")
    before = (here / "poem").read_text()

    preview = cli("switch", str(talk), "early", "--files", "--dry-run")
    assert "change poem" in preview
    assert (here / "poem").read_text() == before
    cli("switch", str(talk), "early", "--files-only")
    assert (here / "poem").read_text() == "one\ntwo\n"
    cli("switch", str(talk), "early", "--files")
    undo = cli("undo", str(talk), "--files", "--dry-run")
    assert "change poem" in undo
    assert "undid" not in undo
    cli("undo", str(talk), "--files")

    assert (here / "poem").read_text() == before
    assert "requires --files" in fails("undo", str(talk), "--dry-run", code=2)


def test_an_export_shows_what_each_call_did_to_files_on_request(cli: Run, fails: Run, here: Path, talk: Path) -> None:
    with st.open(talk) as session:
        run_turns(session, here, ("Sign it", "echo token=ghp_aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789 >> poem"))

    assert "+three" not in cli("export", str(talk), "--format", "md", "-o", "-")
    shown = cli("export", str(talk), "--format", "md", "--files", "-o", "-")
    assert "+three" in shown
    assert shown.count("diff --git a/poem b/poem") == 3
    part = cli("export", str(talk), "--branch", get_prompt(talk, "Sign it"), "--format", "text", "--files", "-o", "-")
    assert part.count("diff --git a/poem b/poem") == 2
    redacted = cli("export", str(talk), "--format", "text", "--files", "--redact", "-o", "-")
    assert "+three" in redacted
    assert "ghp_" not in redacted
    cli("export", str(talk), "--files", "-o", "page.html")
    assert "+three" in (here / "page.html").read_text()
    assert "--files requires --format html, md or text" in fails(
        "export", str(talk), "--format", "jsonl", "--files", "-o", "-", code=2
    )


def test_an_export_without_the_snapshots_counts_the_files_of_each_call(cli: Run, home: Path, talk: Path) -> None:
    shutil.rmtree(home / ".sessiontree/files")

    shown = cli("export", str(talk), "--format", "md", "--files", "-o", "-")

    assert "changed 2 files; the snapshots are not on this machine" in shown
