"""The store of snapshots: one bare git repository for each folder, below the home of sessiontree.

A snapshot is a commit. Its parent is the snapshot before it on the path of the conversation. Each branch of a session
has a ref, and a commit that no branch reaches any more keeps a separate ref until the session is deleted for good.
Several processes may use a store at the same time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Literal, NamedTuple

from msgspec import Struct

from sessiontree.errors import LockTimeout, StoreError
from sessiontree.files.git_command import GitCommand, SnapshotError, SnapshotsUnavailable, join_records, split_records
from sessiontree.home import get_home
from sessiontree.store.file_operations import close_quietly, discard, make_private_directory, write_private
from sessiontree.store.lock import lock_file

STORES_FOLDER = "files"
"""The folder in the home with all stores."""
FOLDER_NAME = "folder"
"""The file in a store with the path of its folder."""
ATTRIBUTES = "* -filter -text -ident -eol -working-tree-encoding !diff !merge\n"
"""Overrides the attributes of the project: no filter runs, and no byte changes."""
STALE_SECONDS = 3600.0
"""Temporary files of killed processes are removed after this time."""
NO_OBJECT = "0" * 40
RAW_DIFF = ("-r", "-z", "--raw", "--no-renames", "--no-abbrev")
MAX_SUBJECT_LENGTH = 120
Author = Literal["agent", "person"]

_OBJECT_ID = re.compile(r"[0-9a-f]{40}")


class FileVersion(NamedTuple):
    """A file in a snapshot."""

    mode: str
    """`100644`, `100755` for an executable file, or `120000` for a symbolic link."""
    blob: str


class FileChange(NamedTuple):
    """How a path differs between two snapshots. `None` is a file that does not exist."""

    path: bytes
    old: FileVersion | None
    new: FileVersion | None


class BranchTip(NamedTuple):
    """The last snapshot of a branch. The session and the branch are hashed, as `hash_name` does."""

    commit: str
    time: int
    session: str
    branch: str


class LeftOut(Struct, frozen=True):
    """A path that a snapshot does not contain, and why."""

    path: str
    reason: str


class CommitInfo(Struct, frozen=True, kw_only=True):
    """The metadata of a commit of the store."""

    commit: str
    author: str
    """`agent` or `person`."""
    time: int
    """Seconds since 1970."""
    entry: str | None
    session: str | None
    prompt: str
    """The first line of the prompt."""
    left_out: tuple[LeftOut, ...] = ()


def check_object_id(value: object) -> str | None:
    """Return a value if it is the id of an object. Ids in session files may be anything."""
    return value if isinstance(value, str) and _OBJECT_ID.fullmatch(value) else None


def build_folder_key(folder: str) -> str:
    """Return the name of the store of a folder."""
    return hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:24]


def hash_name(name: str) -> str:
    """Return a name for a ref: titles and ids may contain anything, so only hexadecimal digits are used."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def get_stores_folder() -> str:
    return os.path.join(get_home(), STORES_FOLDER)


def get_session_refs(session: str) -> str:
    return f"refs/sessions/{hash_name(session)}"


@contextmanager
def hold_file_lock(path: str) -> Generator[None]:
    """Hold a lock that one process or thread at a time can have. Raises `SnapshotError` if another one keeps it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            lock_file(fd, path)
        except LockTimeout as error:
            raise SnapshotError(str(error)) from error
        yield
    finally:
        close_quietly(fd)


class SnapshotStore:
    def __init__(self, key: str, folder: str, *, source: str | None = None, index_name: str = "index") -> None:
        """`folder` is the folder that snapshots are taken of, and `source` the one that a copy was made from.

        Each folder has a separate index.
        """
        self.key = key
        self.folder = folder
        self.source = source or folder
        self.path = os.path.join(get_stores_folder(), key)
        self.index_path = os.path.join(self.path, index_name)
        self.git = GitCommand(self.path, folder)

    @property
    def is_private(self) -> bool:
        """Whether the snapshots are of a private folder."""
        return self.folder != self.source

    @classmethod
    def open(cls, folder: str) -> SnapshotStore:
        """Open the store of a folder, and create it if necessary. Raises `SnapshotsUnavailable`."""
        folder = check_folder(folder)
        store = cls(build_folder_key(folder), folder)
        store._create()
        return store

    @classmethod
    def find(cls, folder: str) -> SnapshotStore | None:
        """Return the store of a folder; `None` if it has none. Raises `SnapshotsUnavailable` without git."""
        key = build_folder_key(folder)
        if not os.path.isfile(os.path.join(get_stores_folder(), key, FOLDER_NAME)):
            return None
        return cls(key, os.path.realpath(folder))

    def _create(self) -> None:
        marker = os.path.join(self.path, FOLDER_NAME)
        if os.path.exists(marker):
            self._remove_stale_files()
            return
        try:
            make_private_directory(get_stores_folder())
            with hold_file_lock(f"{self.path}.lock"):  # `git init` fails while another one runs
                if os.path.exists(marker):
                    return
                make_private_directory(self.path)
                os.chmod(self.path, 0o700)
                self.git.run("init", "--quiet", "--bare", "--template=", self.path, with_git_dir=False)
                for name in ("info", "empty-home", "restores"):
                    os.makedirs(os.path.join(self.path, name), 0o700, exist_ok=True)
                write_private(os.path.join(self.path, "info", "attributes"), ATTRIBUTES.encode())
                write_private(marker, os.fsencode(self.folder))  # the store is complete once this file exists
        except (OSError, StoreError) as error:
            raise SnapshotError(f"cannot create {self.path}: {error}") from error

    def _remove_stale_files(self) -> None:
        with suppress(OSError):
            for found in os.scandir(self.path):
                if found.name.startswith("index.") and time.time() - found.stat().st_mtime > STALE_SECONDS:
                    discard(found.path)

    # Commits

    def commit(
        self,
        tree: str,
        parents: Sequence[str],
        *,
        author: Author,
        entry: str | None,
        session: str,
        prompt: str = "",
        left_out: Sequence[LeftOut] = (),
    ) -> str:
        """Write a commit and return its id. It needs a ref to stay."""
        # Names that are not UTF-8 have lone surrogates, which only the escapes of ASCII can carry.
        details = json.dumps(
            {"entry": entry, "session": session, "leftOut": [[item.path, item.reason] for item in left_out]}
        )
        message = f"{build_subject(entry, prompt)}\n\n{details}\n".encode()
        options = [part for parent in parents for part in ("-p", parent)]
        return self.git.run("commit-tree", *options, "-F", "-", tree, input=message, author=author).decode().strip()

    def get_tree(self, commit: str) -> str:
        """Return the tree of a commit. Raises `SnapshotError` if the store does not have the commit."""
        return self.git.run("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}").decode().strip()

    def has_commits(self, commits: Sequence[str]) -> bool:
        """Return whether the store has all of these commits."""
        output = self.git.run("cat-file", "--batch-check=%(objecttype)", input="\n".join(commits).encode() + b"\n")
        return all(line == "commit" for line in output.decode().splitlines())

    def find_trees(self, commits: Sequence[str]) -> dict[str, str] | None:
        """Return the tree of each commit; `None` if the store does not have all of them."""
        unique = list(dict.fromkeys(commits))
        names = "".join(f"{commit}\n{commit}^{{tree}}\n" for commit in unique)
        output = self.git.run("cat-file", "--batch-check=%(objecttype) %(objectname)", input=names.encode())
        lines = output.decode().splitlines()
        if not all(line.startswith(kind) for line, kind in zip(lines, ("commit ", "tree ") * len(unique), strict=True)):
            return None
        return dict(zip(unique, (line.removeprefix("tree ") for line in lines[1::2]), strict=True))

    def is_ancestor(self, commit: str, of: str) -> bool:
        code, _ = self.git.run_with_code("merge-base", "--is-ancestor", commit, of, ok_codes=(0, 1))
        return code == 0

    def read_commits(self, *arguments: str | bytes) -> Iterator[CommitInfo]:
        """Yield the commits that `git log` lists for these arguments, newest first."""
        output = self.git.run("log", "-z", "--format=%H%x01%an%x01%at%x01%s%x01%b", *arguments)
        for record in output.decode("utf-8", "replace").split("\0"):
            if record.strip():
                yield _parse_commit(record)

    def read_left_out(self, commits: Sequence[str]) -> dict[str, frozenset[str]]:
        """Return the paths that each commit left out."""
        if not commits:
            return {}
        infos = self.read_commits("--no-walk=unsorted", *dict.fromkeys(commits))
        return {info.commit: frozenset(item.path for item in info.left_out) for info in infos}

    # Refs

    def get_ref(self, session: str, branch: str) -> str:
        return f"{get_session_refs(session)}/branches/{hash_name(branch)}"

    def read_ref(self, ref: str) -> str | None:
        code, output = self.git.run_with_code("rev-parse", "--verify", "--quiet", ref, ok_codes=(0, 1))
        return output.decode().strip() if code == 0 else None

    def set_branch(self, session: str, branch: str, commit: str, parent: str | None = None) -> None:
        """Point the ref of a branch to a commit. A commit that it no longer reaches keeps a separate ref.

        `parent` is the parent of the commit. The ref is nearly always there, and then one call is enough.
        """
        ref = self.get_ref(session, branch)
        if parent is not None:
            with suppress(SnapshotError):
                self.git.run("update-ref", ref, commit, parent)
                return
        for _ in range(20):
            before = self.read_ref(ref)
            if before == commit:
                return
            if before is not None and not self.is_ancestor(before, commit):
                self.keep(session, before)
            try:
                self.git.run("update-ref", ref, commit, before or NO_OBJECT)
                return
            except SnapshotError:
                if self.read_ref(ref) == before:  # not a race with another process
                    raise
        raise SnapshotError(f"cannot update {ref}: other processes keep changing it")

    def find_latest(self) -> str | None:
        """Return the newest snapshot of the folder, of any session."""
        return next(iter(self.list_tips()), None)

    def list_tips(self, prefix: str | None = None) -> list[str]:
        """Return the commits that refs name, newest first, and never a commit before one that continues it."""
        refs = self.git.run("for-each-ref", "--format=%(objectname)", prefix or "refs/sessions").decode().split()
        if len(refs) < 2:
            return refs
        ordered = self.git.run("rev-list", "--date-order", "--stdin", input="\n".join(refs).encode()).decode().split()
        tips = set(refs)
        return [commit for commit in ordered if commit in tips]

    def list_branches(self) -> list[BranchTip]:
        """Return the last snapshot of every branch of every session, newest first."""
        output = self.git.run(
            *("for-each-ref", "--sort=-committerdate", "--format=%(objectname) %(committerdate:unix) %(refname)"),
            "refs/sessions/*/branches/*",
        )
        tips: list[BranchTip] = []
        for line in output.decode().splitlines():
            commit, seconds, ref = line.split(" ")
            _, _, session, _, branch = ref.split("/")
            tips.append(BranchTip(commit, int(seconds), session, branch))
        return tips

    def keep(self, session: str, commit: str) -> None:
        """Keep a commit and all of its history until the session is deleted for good."""
        self.git.run("update-ref", f"{get_session_refs(session)}/kept/{commit}", commit)

    def list_refs(self, prefix: str = "refs/sessions") -> list[str]:
        return self.git.run("for-each-ref", "--format=%(refname)", prefix).decode().split()

    def forget_session(self, session: str) -> bool:
        """Delete the refs of a session. Return whether there were any."""
        refs = self.list_refs(get_session_refs(session))
        if refs:
            self.git.run("update-ref", "--stdin", input="".join(f"delete {ref}\n" for ref in refs).encode())
        return bool(refs)

    def collect_garbage(self) -> None:
        """Delete what no ref reaches, except recent objects: another process may be about to use them."""
        self.git.run("gc", "--quiet", "--prune=2.weeks.ago")

    # Contents

    def diff(self, old: str, new: str) -> list[FileChange]:
        """Return the paths that differ between two commits or trees."""
        return _parse_changes(self.git.run("diff-tree", *RAW_DIFF, old, new), 0)[0]

    def diff_trees(self, pairs: Sequence[tuple[str, str]]) -> list[list[FileChange]]:
        """Return the paths that differ between the trees of each pair. One process compares all of them."""
        if not pairs:
            return []
        names = "".join(f"{old} {new}\n" for old, new in pairs)
        output, position = self.git.run("diff-tree", *RAW_DIFF, "--stdin", input=names.encode()), 0
        found: list[list[FileChange]] = []
        for old, new in pairs:
            position += len(f"{old} {new}\n")  # git repeats them before their changes
            changes, position = _parse_changes(output, position)
            found.append(changes)
        return found

    def list_files(self, tree: str) -> dict[bytes, FileVersion]:
        """Return every file of a commit or tree."""
        files: dict[bytes, FileVersion] = {}
        for record in split_records(self.git.run("ls-tree", "-r", "-z", tree)):
            header, _, path = record.partition(b"\t")
            mode, _, blob = header.decode().split(" ")
            files[path] = FileVersion(mode, blob)
        return files

    def find_version(self, tree: str, path: bytes) -> FileVersion | None:
        """Return one file of a commit or tree; `None` if it has no such file."""
        records = split_records(self.git.run("--literal-pathspecs", "ls-tree", "-z", tree, "--", path))
        for record in records:
            header, _, found = record.partition(b"\t")
            mode, kind, blob = header.decode().split(" ")
            if found == path and kind == "blob":
                return FileVersion(mode, blob)
        return None

    def save_file(self, path: bytes, *, is_link: bool) -> str:
        """Store the content of a file of the folder, whatever its size. Return the id of its blob."""
        full = os.path.join(os.fsencode(self.folder), path)
        if is_link:
            return self.git.run("hash-object", "-w", "--stdin", input=os.readlink(full)).decode().strip()
        return self.git.run("hash-object", "-w", "--no-filters", "--", full).decode().strip()

    def update_tree(self, tree: str, versions: Mapping[bytes, FileVersion | None]) -> str:
        """Return a tree with other versions of some files. `None` removes a file."""
        if not versions:
            return tree
        work = f"{self.index_path}.{os.getpid()}.{token_hex(4)}"
        ordered = sorted(versions.items(), key=lambda item: (item[1] is not None, item[0]))  # removals first
        lines = [
            (f"0 {NO_OBJECT}\t" if version is None else f"{version.mode} {version.blob}\t").encode() + path
            for path, version in ordered
        ]
        try:
            self.git.run("read-tree", tree, index=work)
            self.git.run("update-index", "-z", "--index-info", input=join_records(lines), index=work)
            return self.git.run("write-tree", index=work).decode().strip()
        finally:
            discard(work)
            discard(f"{work}.lock")

    @contextmanager
    def open_blobs(self) -> Generator[BlobReader]:
        """Open a reader that returns the content of one file after the other."""
        reader = BlobReader(self.git)
        try:
            yield reader
        finally:
            reader.close()

    def count_bytes(self) -> int:
        """Return the disk use of the store."""
        total = 0
        for root, _, names in os.walk(self.path):
            for name in names:
                with suppress(OSError):
                    total += os.lstat(os.path.join(root, name)).st_blocks * 512
        return total


class BlobReader:
    """Reads the content of files from a store with one process, one file at a time."""

    def __init__(self, git: GitCommand) -> None:
        self._process: subprocess.Popen[bytes] = git.start("cat-file", "--batch")

    def read(self, blob: str) -> bytes:
        """Return the content of a file. Raises `SnapshotError` if it is not in the store."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(f"{blob}\n".encode())
            stdin.flush()
            header = stdout.readline().decode().split()
            if len(header) != 3 or header[1] != "blob":
                raise SnapshotError(f"the store of snapshots does not have the file content {blob}")
            size = int(header[2])
            data = stdout.read(size + 1)
        except OSError as error:
            raise SnapshotError(f"git cat-file failed: {error}") from error
        if len(data) != size + 1:
            raise SnapshotError("git cat-file ended early")
        return data[:-1]

    def close(self) -> None:
        self._process.communicate()


def check_folder(folder: str) -> str:
    """Return the real path of a folder that can have snapshots. Raises `SnapshotsUnavailable` otherwise."""
    real = os.path.realpath(folder)
    if not os.path.isdir(real):
        raise SnapshotsUnavailable(f"no snapshots of {folder}: not a folder")
    if real == os.path.realpath("/"):
        raise SnapshotsUnavailable("no snapshots of /: start in the folder of a project to have them")
    if real == os.path.realpath(os.path.expanduser("~")):
        raise SnapshotsUnavailable("no snapshots of your home folder: start in the folder of a project to have them")
    if real == os.path.realpath(get_home()) or real.startswith(os.path.join(os.path.realpath(get_home()), "")):
        raise SnapshotsUnavailable("no snapshots of the folder of sessiontree itself")
    return real


def list_stores() -> list[SnapshotStore]:
    """Return the stores of all folders."""
    stores: list[SnapshotStore] = []
    with suppress(FileNotFoundError):
        for found in sorted(os.scandir(get_stores_folder()), key=lambda item: item.name):
            with suppress(OSError), open(os.path.join(found.path, FOLDER_NAME), "rb") as file:
                stores.append(SnapshotStore(found.name, os.fsdecode(file.read())))
    return stores


def forget_snapshots(session: str) -> None:
    """Delete the snapshots that only this session names."""
    try:
        stores = list_stores()
    except SnapshotsUnavailable:  # without git there is nothing to delete them with
        return
    for store in stores:
        if store.forget_session(session):
            store.collect_garbage()


def _parse_changes(output: bytes, position: int) -> tuple[list[FileChange], int]:
    """Return the changes from a position in the output of `diff-tree` on, and the position after them."""
    changes: list[FileChange] = []
    while output.startswith(b":", position):
        middle = output.index(b"\0", position)
        end = output.index(b"\0", middle + 1)
        old_mode, new_mode, old_blob, new_blob, _ = output[position + 1 : middle].decode().split(" ")
        path = output[middle + 1 : end]
        changes.append(FileChange(path, _make_version(old_mode, old_blob), _make_version(new_mode, new_blob)))
        position = end + 1
    return changes, position


def _make_version(mode: str, blob: str) -> FileVersion | None:
    return None if mode == "000000" else FileVersion(mode, blob)


def build_subject(entry: str | None, prompt: str) -> str:
    """Return the first line of a commit message: the entry and the first line of the prompt."""
    first = next((line for line in prompt.splitlines() if line.strip()), "")
    words = "".join(char if char.isprintable() else " " for char in f"{entry or 'root'} {first}").split()
    return " ".join(words)[:MAX_SUBJECT_LENGTH].encode("utf-8", "replace").decode()


def _parse_commit(record: str) -> CommitInfo:
    commit, author, seconds, subject, body = record.strip("\n").split("\x01", 4)
    entry = session = None
    left_out: tuple[LeftOut, ...] = ()
    with suppress(ValueError, AttributeError, TypeError):  # the commit of another program
        details = json.loads(body)
        entry, session = details.get("entry"), details.get("session")
        left_out = tuple(LeftOut(path, reason) for path, reason in details.get("leftOut", ()))
    return CommitInfo(
        commit=commit,
        author=author,
        time=int(seconds),
        entry=entry,
        session=session,
        prompt=subject.partition(" ")[2],
        left_out=left_out,
    )
