"""Run git without running anything of the project or writing to it.

Every call gets an empty environment, its own git directory and explicit settings. The project's config, hooks, filters
and attributes are never read. A call succeeds only if git exits with 0 and prints nothing on standard error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache

from sessiontree.errors import SessionTreeError

MIN_VERSION = (2, 38)
"""The oldest git that has everything that is needed, such as `merge-tree --write-tree`."""
NEEDS_GIT = "snapshots of files need git 2.38 or newer"

SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.autocrlf": "false",
    "core.fileMode": "true",
    "core.symlinks": "true",
    "core.ignoreCase": "false",
    "core.protectNTFS": "false",
    "core.protectHFS": "false",
    "core.quotePath": "false",
    "core.looseCompression": "1",
    "gc.auto": "0",
}
"""Settings of every call. They replace everything that a configuration file could set."""

AUTHOR_EMAIL = "sessiontree@localhost"
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
MAX_ERROR_LENGTH = 500


class SnapshotError(SessionTreeError):
    """A snapshot, a restore or another use of the saved files failed. Nothing was half done."""


class SnapshotsUnavailable(SnapshotError):
    """Snapshots cannot work here: git is missing or too old, or the folder is not suitable."""


@cache
def find_git(path: str) -> str:
    """Return the path of the git command on a `PATH`. Raises `SnapshotsUnavailable` if it is missing or too old."""
    command = shutil.which("git", path=path)
    if command is None:
        raise SnapshotsUnavailable(f"{NEEDS_GIT}: git not found")
    environment = {"PATH": path, "LC_ALL": "C", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    ran = subprocess.run(
        [command, "--version"], stdin=subprocess.DEVNULL, capture_output=True, env=environment, cwd="/", check=False
    )
    version = parse_version(ran.stdout.decode(errors="replace"))
    if version is None or version < MIN_VERSION:
        found = ran.stdout.decode(errors="replace").strip() if version is None else f"git {_format_version(version)}"
        raise SnapshotsUnavailable(f"{NEEDS_GIT}: found {found or 'no version'}")
    return command


def parse_version(text: str) -> tuple[int, int] | None:
    """Return the version in the output of `git --version`; `None` if there is none."""
    match = re.match(r"git version (\d+)\.(\d+)", text)
    return None if match is None else (int(match[1]), int(match[2]))


def _format_version(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


class GitCommand:
    """Runs git with one git directory, and with a work tree for the calls that read files."""

    def __init__(self, git_dir: str, work_tree: str | None = None) -> None:
        self.git_dir = git_dir
        self.work_tree = work_tree
        self._path = os.environ.get("PATH") or DEFAULT_PATH
        self._command = find_git(self._path)
        self._settings = [part for key, value in SETTINGS.items() for part in ("-c", f"{key}={value}")]

    def run(
        self,
        *arguments: str | bytes,
        input: bytes | None = None,
        index: str | None = None,
        author: str = "sessiontree",
        ok_codes: Sequence[int] = (0,),
        with_git_dir: bool = True,
        with_work_tree: bool = False,
    ) -> bytes:
        """Run git and return its output. Raises `SnapshotError` if it fails, is killed, or prints a warning."""
        return self.run_with_code(
            *arguments,
            input=input,
            index=index,
            author=author,
            ok_codes=ok_codes,
            with_git_dir=with_git_dir,
            with_work_tree=with_work_tree,
        )[1]

    def run_with_code(
        self,
        *arguments: str | bytes,
        input: bytes | None = None,
        index: str | None = None,
        author: str = "sessiontree",
        ok_codes: Sequence[int] = (0,),
        with_git_dir: bool = True,
        with_work_tree: bool = False,
    ) -> tuple[int, bytes]:
        """Run git and return its exit code, one of `ok_codes`, and its output."""
        command: list[str | bytes] = [self._command]
        if with_git_dir:
            command.append(f"--git-dir={self.git_dir}")
        if with_work_tree:
            command.append(f"--work-tree={self.work_tree}")
        command += [*self._settings, *arguments]
        cwd = self.work_tree if with_work_tree else self.git_dir if with_git_dir else os.path.dirname(self.git_dir)
        try:
            ran = subprocess.run(
                command,
                input=b"" if input is None else input,
                capture_output=True,
                env=self._build_environment(index, author),
                cwd=cwd,
                check=False,
            )
        except OSError as error:
            raise SnapshotError(f"git {_get_name(arguments)} cannot run in {cwd}: {error.strerror or error}") from error
        if ran.returncode not in ok_codes or ran.stderr.strip():
            raise SnapshotError(_describe_failure(_get_name(arguments), ran.returncode, ran.stderr))
        return ran.returncode, ran.stdout

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start git with pipes, for a conversation with it. Its warnings are discarded: check every answer."""
        command = [self._command, f"--git-dir={self.git_dir}", *self._settings, *arguments]
        environment = self._build_environment(None, "sessiontree")
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=self.git_dir,
        )

    def _build_environment(self, index: str | None, author: str) -> dict[str, str]:
        environment = {
            "PATH": self._path,
            "HOME": os.path.join(self.git_dir, "empty-home"),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_AUTHOR_NAME": author,
            "GIT_AUTHOR_EMAIL": AUTHOR_EMAIL,
            "GIT_COMMITTER_NAME": author,
            "GIT_COMMITTER_EMAIL": AUTHOR_EMAIL,
        }
        if index is not None:
            environment["GIT_INDEX_FILE"] = index
        return environment


def _get_name(arguments: Sequence[str | bytes]) -> str:
    names = [os.fsdecode(argument) for argument in arguments]
    while names[0].startswith("-"):  # options of git itself come before the command
        names = names[2 if names[0] == "-c" else 1 :]
    return names[0]


def _describe_failure(name: str, code: int, stderr: bytes) -> str:
    text = " ".join(stderr.decode(errors="replace").split())[:MAX_ERROR_LENGTH]
    how = f"was killed by signal {-code}" if code < 0 else f"failed with code {code}" if code else "reported a problem"
    return f"git {name} {how}: {text}" if text else f"git {name} {how}"


def split_records(output: bytes) -> list[bytes]:
    """Split output of `-z` into its records."""
    return output.split(b"\0")[:-1]


def join_records(records: Iterable[bytes]) -> bytes:
    """Join records for the standard input of a call with `-z`."""
    return b"".join(record + b"\0" for record in records)
