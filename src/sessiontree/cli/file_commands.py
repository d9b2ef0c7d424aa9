"""Commands about the files of conversations: files, blame, why."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from sessiontree.cli.app import app, format_id, json_option, open_session, session_argument, session_option
from sessiontree.cli.file_options import find_files, print_restored
from sessiontree.cli.output import bold, dim, echo, echo_json, escape_line, print_table
from sessiontree.core.number_text import pluralize
from sessiontree.core.timestamps import format_timestamp
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.library import catalog
from sessiontree.slash_commands.formatting import format_local_time

if TYPE_CHECKING:
    from sessiontree.files.restore import InterruptedRestore, RecoveryChoice, RestoreOutcome
    from sessiontree.files.snapshot_store import CommitInfo, SnapshotStore

TRAILER = "Sessiontree-Entry"
"""The trailer of a commit that names the session and the entry: `SESSION/ENTRY`."""
GIT_SECONDS = 30.0


@app.group(epilog="\b\nExamples:\n  sessiontree files du\n  sessiontree files log src/app.py")
def files() -> None:
    """Show and use the snapshots of files that agents changed."""


def _open_store(path: str | None = None) -> tuple[SnapshotStore, str]:
    """Return the store of the folder that contains `path`, or of the current one, and the path in that folder."""
    from sessiontree.files.private_folder import find_folder_of_path, find_snapshot_store

    full = os.path.realpath(path or os.curdir)
    private = find_folder_of_path(full)
    folder = private.path if private is not None else full if path is None else os.path.dirname(full)
    while True:
        store = find_snapshot_store(folder)
        if store is not None:
            return store, os.path.relpath(full, folder)
        above = os.path.dirname(folder)
        if above == folder:
            raise NotFound("snapshot", path or os.getcwd(), "no agent has changed files in this folder")
        folder = above


@files.command(epilog="\b\nExample:\n  sessiontree files du")
@json_option
def du(as_json: bool) -> None:
    """Show the disk use of all snapshots by folder, and that of private folders."""
    from sessiontree.files.private_folder import count_private_bytes, get_folders_root, list_private_folders
    from sessiontree.files.snapshot_store import list_stores

    used = [(store.folder, store.count_bytes(), len(store.list_branches())) for store in list_stores()]
    if private := count_private_bytes():
        used.append((get_folders_root(), private, len(list_private_folders())))
    if as_json:
        echo_json([{"folder": folder, "bytes": size, "branches": count} for folder, size, count in used])
        return
    rows = [[f"{size / 1e6:.1f} MB", str(count), escape_line(folder)] for folder, size, count in used]
    print_table([["size", "branches", "folder"], *rows, [f"{sum(item[1] for item in used) / 1e6:.1f} MB", "", "total"]])


@files.command(epilog="\b\nExample:\n  sessiontree files log src/app.py --session @")
@click.argument("path", type=click.Path())
@session_option("--session", help="Only the snapshots of this session.")
@json_option
def log(path: str, session: str | None, as_json: bool) -> None:
    """List the turns that changed a file, newest first."""
    from sessiontree.files.file_history import read_log

    store, relative = _open_store(path)
    for info in read_log(store, relative, None if session is None else open_session(session, read_only=True).id):
        if as_json:
            echo_json(_encode_commit(info))
        else:
            echo(
                dim(f"{info.commit[:8]}  {_format_time(info.time)}"),
                bold(info.author),
                escape_line(info.prompt) if info.author == "agent" else dim("changed outside of tool calls"),
                dim(f"entry {format_id(info.entry)} of {escape_line(info.session or '')}"),
            )


def _format_time(seconds: int) -> str:
    return format_local_time(format_timestamp(seconds * 1000), seconds=True)


def _encode_commit(info: CommitInfo) -> dict[str, object]:
    return {
        "commit": info.commit,
        "author": info.author,
        "time": format_timestamp(info.time * 1000),
        "session": info.session,
        "entry": info.entry,
        "prompt": info.prompt,
    }


@files.command(epilog="\b\nExample:\n  sessiontree files fetch @ cache --run")
@session_argument
@click.argument("branch", required=False)
@click.option("--run", "runs", is_flag=True, help="Run the command in the current folder instead of printing it.")
def fetch(session: str, branch: str | None, runs: bool) -> None:
    """Print the git command that fetches the snapshots of a branch into this project.

    They become ordinary commits on the branch sessiontree/NAME.
    """
    opened = open_session(session, read_only=True)
    name = opened.head.name if branch is None else opened.branch(branch).name
    store = find_files(opened.branch(name)).store
    ref = None if store is None else store.get_ref(opened.id, name)
    if store is None or ref is None or store.read_ref(ref) is None:
        raise NotFound("snapshot", name, "the agent has not changed files on this branch")
    target = re.sub(r"[^\w-]+", "-", name).strip("-") or "branch"
    command = ["git", "fetch", "--no-tags", store.path, f"{ref}:refs/heads/sessiontree/{target}"]
    if not runs:
        click.echo(shlex.join(command))
        return
    code = subprocess.run(command, timeout=GIT_SECONDS * 10, check=False).returncode
    if code:
        raise InvalidOperation(f"git fetch failed with code {code}")


@files.command(epilog='\b\nExample:\n  git commit --trailer "$(sessiontree files trailer @)"')
@session_argument
@click.option("--install-hook", is_flag=True, help="Let git add the trailer to every commit of this project.")
def trailer(session: str, install_hook: bool) -> None:
    """Print a trailer for a commit message that leads back to this place of the conversation.

    With --install-hook, write the git hook prepare-commit-msg of the project in the current folder. A hook that exists
    is never overwritten. SESSION can be `@`, the newest session at the time of each commit.
    """
    opened = open_session(session, read_only=True)
    if install_hook:
        name = session if session == "@" else opened.id
        click.echo(f"wrote {escape_line(_install_hook(name))}")
        return
    click.echo(f"{TRAILER}: {escape_line(opened.id)}/{escape_line(opened.heads.leaf or 'root')}")


HOOK = """#!/bin/sh
# Written by `sessiontree files trailer --install-hook`. Delete this file to stop it.
# A commit never fails because of it.
trailer=$({command} files trailer {session} 2>/dev/null) || exit 0
git interpret-trailers --in-place --if-exists doNothing --trailer "$trailer" "$1" || exit 0
"""


def _install_hook(session: str) -> str:
    """Write the hook of the project and return its path. Raises `InvalidOperation` if there is one."""
    ran = subprocess.run(
        ["git", "rev-parse", "--git-path", "hooks/prepare-commit-msg"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=GIT_SECONDS,
        check=False,
    )
    if ran.returncode:
        raise NotFound("git repository", os.getcwd(), "run this in the folder of your project")
    path = os.path.abspath(ran.stdout.rstrip("\n"))
    command = shlex.join([sys.executable, "-m", "sessiontree"])
    text = HOOK.format(command=command, session=shlex.quote(session))
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o777), "w") as file:
            file.write(text)
    except FileExistsError:
        raise InvalidOperation(f"{path} exists and is not changed; add this to it: {command} files trailer") from None
    except OSError as error:
        raise InvalidOperation(f"cannot write {path}: {error.strerror}") from error
    return path


@files.command(epilog="\b\nExample:\n  sessiontree files recover --finish")
@click.argument("session", metavar="[SESSION]", required=False)
@click.option("--finish/--revert", "finish", default=None, help="Restore the remaining files, or bring all back.")
def recover(session: str | None, finish: bool | None) -> None:
    """List restores that were killed half way, and finish or revert them.

    Without SESSION, these are the restores in the current folder, of any session.
    """
    from sessiontree.config import load_config
    from sessiontree.ops.move_files import find_interrupted_restores, recover_restore

    if session is not None:
        with open_session(session) as opened:
            mover = find_files(opened.head)
            _recover_all(mover.find_interrupted(), finish, mover.recover)
        return
    settings = load_config().files
    found = find_interrupted_restores(_open_store()[0].folder)
    _recover_all(found, finish, lambda interrupted, choice: recover_restore(interrupted, choice, settings))


def _recover_all(
    found: Sequence[InterruptedRestore],
    finish: bool | None,
    recover_one: Callable[[InterruptedRestore, RecoveryChoice], RestoreOutcome],
) -> None:
    if not found:
        click.echo("no interrupted restore")
    for interrupted in found:
        if finish is None:
            count, owner = pluralize(len(interrupted.changes), "file"), escape_line(interrupted.session)
            click.echo(f"interrupted: {count} of session {owner}; use --finish or --revert")
        else:
            print_restored(recover_one(interrupted, "finish" if finish else "revert"))


@app.command(epilog="\b\nExamples:\n  sessiontree blame src/app.py\n  sessiontree blame src/app.py --session @ --json")
@click.argument("file", type=click.Path())
@session_option("--session", help="Only the snapshots of this session.")
@json_option
def blame(file: str, session: str | None, as_json: bool) -> None:
    """Show for every line of a file which turn wrote it, or that a person did."""
    from sessiontree.files.file_history import blame as find_authors

    store, relative = _open_store(file)
    lines = find_authors(store, relative, None if session is None else open_session(session, read_only=True).id)
    if as_json:
        echo_json(
            [
                {
                    "line": line.number,
                    "author": line.author,
                    "session": line.session,
                    "entry": line.entry,
                    "prompt": line.prompt,
                    "text": line.text,
                }
                for line in lines
            ]
        )
        return
    for line in lines:
        who = f"{format_id(line.entry)} {escape_line(line.prompt)}" if line.author == "agent" else "you"
        click.echo(f"{dim(f'{who[:40]:40} {line.number:4}')} {escape_line(line.text)}")


@app.command(epilog="\b\nExample:\n  sessiontree why HEAD")
@click.argument("commit")
@json_option
def why(commit: str, as_json: bool) -> None:
    """Show the place of the conversation that a commit of this project came from."""
    ran = subprocess.run(
        ["git", "log", "-1", f"--format=%(trailers:key={TRAILER},valueonly)", "--end-of-options", commit, "--"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=GIT_SECONDS,
        check=False,
    )
    if ran.returncode:
        raise NotFound("commit", commit, " ".join(ran.stderr.split()))
    session, _, entry = (ran.stdout.split() or [""])[-1].partition("/")
    if not session or not entry:
        raise NotFound("conversation", commit, f"the commit has no trailer {TRAILER}")
    opened = catalog.open(session, read_only=True)
    place = None if entry == "root" else opened.tree[entry].id
    texts = [item.text for item in opened.tree.path(place) if item.role == "user"]
    prompt = texts[-1].strip().splitlines()[0] if texts and texts[-1].strip() else ""
    if as_json:
        echo_json({"session": opened.id, "name": opened.name, "entry": place, "prompt": prompt})
        return
    echo(bold(escape_line(opened.name or "unnamed")), dim(f"{escape_line(opened.id)} at {format_id(place)}"))
    if prompt:
        click.echo(escape_line(prompt))
