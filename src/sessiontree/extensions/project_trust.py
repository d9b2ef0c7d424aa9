"""Read the files of extensions and prompt files, and remember which content the user trusts.

Each file is read once. The same bytes are hashed, shown, trusted and run. The list of trusted content is in the home
folder, so a project cannot trust itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from sessiontree.errors import NotFound, SessionTreeError, StoreError
from sessiontree.regular_file import read_regular_file
from sessiontree.store.file_operations import make_private_directory, write_private


class ExtensionError(SessionTreeError):
    """An extension failed to load or to run."""

    def __init__(self, extension: str, reason: str) -> None:
        super().__init__(f"extension {extension}: {reason}")
        self.extension = extension
        self.reason = reason


EXTENSIONS, PROMPTS = "extensions", "commands"
"""The folders, in the home folder and in a project's `.sessiontree`."""
RULES = "permissions.toml"
"""The permission rules of a project. They are trusted together with its extensions."""

CACHES = "__pycache__"
MAX_FILES, MAX_BYTES = 2000, 32 << 20


class ExtensionSource(Struct, frozen=True, kw_only=True):
    """An extension that can be loaded."""

    name: str
    path: str
    """Its file, or the `__init__.py` of its folder."""


class ExtensionFiles(Struct, frozen=True, kw_only=True):
    root: str
    """The folder that contains `extensions`, `commands` and the permission rules."""
    files: dict[str, bytes]
    """By absolute path, in order."""
    problems: tuple[str, ...] = ()
    """Files that could not be read, and why."""
    kind: str = ""
    """What it is, if a project has other content that is trusted separately."""

    @property
    def digest(self) -> str:
        """A hash of the names and the bytes of all files."""
        import hashlib

        sha = hashlib.sha256()
        for path, data in self.files.items():
            name = os.fsencode(os.path.relpath(path, self.root))
            sha.update(b"%d:%s%d:" % (len(name), name, len(data)))
            sha.update(data)
        return sha.hexdigest()

    @property
    def extensions(self) -> list[ExtensionSource]:
        """Files that end in `.py`, and folders with an `__init__.py`. Names that start with `_` or `.` are ignored."""
        found: dict[str, ExtensionSource] = {}
        for path in self.files:
            first, *rest = os.path.relpath(path, os.path.join(self.root, EXTENSIONS)).split(os.sep)
            name = first.removesuffix(".py")
            if rest in ([], ["__init__.py"]) and name and name[0] not in "_." and (rest or first.endswith(".py")):
                found[path] = ExtensionSource(name=name, path=path)
        return list(found.values())

    @property
    def prompts(self) -> list[tuple[str, str]]:
        """Prompt files: the command name, with a colon for each folder, and the path."""
        names = {path: os.path.relpath(path, os.path.join(self.root, PROMPTS)) for path in self.files}
        return [
            (name.removesuffix(".md").replace(os.sep, ":"), path)
            for path, name in names.items()
            if name.endswith(".md") and not name.startswith(os.pardir)
        ]


def read_extension_files(root: str) -> ExtensionFiles:
    """Read the extensions, the prompt files and the permission rules in `root`. Raises `ExtensionError` if there are
    too many.

    Compiled files are ignored. Links are followed, and their targets are read like other files.
    """
    return _read_files(root, _list_paths(root))


def wrap_server_file(path: str, raw: bytes) -> ExtensionFiles:
    """Return the bytes of a `.mcp.json` as content to trust, separate from the extensions of the project."""
    return ExtensionFiles(root=os.path.dirname(path), files={path: raw}, kind="mcp")


def _read_files(root: str, paths: Iterable[str]) -> ExtensionFiles:
    files: dict[str, bytes] = {}
    problems: list[str] = []
    size = 0
    for path in paths:
        if path in files:
            continue
        try:
            files[path] = read_regular_file(path, MAX_BYTES)
            size += len(files[path])
        except OSError as error:
            problems.append(f"{path}: {error.strerror or error}")
        if len(files) > MAX_FILES or size > MAX_BYTES:
            raise ExtensionError(root, "too many or too large files to review")
    return ExtensionFiles(root=root, files=files, problems=tuple(problems))


def _list_paths(root: str) -> Iterator[str]:
    seen: set[str] = set()
    rules = os.path.join(root, RULES)
    if os.path.lexists(rules):
        yield rules
    for folder in (EXTENSIONS, PROMPTS):
        yield from _walk_files(os.path.join(root, folder), seen)


def _walk_files(folder: str, seen: set[str] | None = None) -> Iterator[str]:
    """Yield all files below a folder. Folders in `seen` are skipped."""
    seen = set() if seen is None else seen
    for at, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(at)
        if real in seen:  # a circular link
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if name != CACHES)
        yield from (os.path.join(at, name) for name in sorted(names))


def locate_extension(path: str) -> ExtensionSource:
    """Locate an extension by its path: a file, or a folder with an `__init__.py`."""
    whole = os.path.abspath(os.path.expanduser(path))
    if os.path.isdir(whole):
        return ExtensionSource(name=os.path.basename(whole), path=os.path.join(whole, "__init__.py"))
    if not os.path.exists(whole):
        raise NotFound("extension", path)
    return ExtensionSource(name=os.path.basename(whole).removesuffix(".py"), path=whole)


def read_named_extensions(root: str, paths: Iterable[str]) -> ExtensionFiles:
    """Read the files of extensions that `root` names by path. Raises `NotFound`, or `ExtensionError` if there are too
    many."""
    return _read_files(root, (file for path in paths for file in _list_extension_files(path)))


def _list_extension_files(path: str) -> Iterable[str]:
    found = locate_extension(path).path
    return _walk_files(os.path.dirname(found)) if os.path.basename(found) == "__init__.py" else [found]


def find_project_root(cwd: str, home: str) -> str | None:
    """Return the `.sessiontree` folder of the project that contains `cwd`, or `None`. The home folder does not
    count."""
    at = os.path.abspath(cwd)
    while True:
        root = os.path.join(at, ".sessiontree")
        if os.path.isdir(root):
            return None if os.path.exists(home) and os.path.samefile(root, home) else root
        parent = os.path.dirname(at)
        if parent == at or os.path.lexists(os.path.join(at, ".git")):
            return None
        at = parent


# Trust

TRUST_FILE = "trust.json"


class TrustStore:
    """The content of projects that the user trusts."""

    def __init__(self, home: str) -> None:
        self._file = os.path.join(home, TRUST_FILE)

    def is_trusted(self, content: ExtensionFiles) -> bool:
        """Return whether exactly this content of the project is trusted."""
        return self._read().get(_get_key(content)) == content.digest

    def add(self, content: ExtensionFiles) -> None:
        """Trust this content. It replaces the project's content that was trusted before."""
        self._write({**self._read(), _get_key(content): content.digest})

    def _read(self) -> dict[str, str]:
        try:
            return msgspec.json.decode(read_regular_file(self._file), type=dict[str, str])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreError(self._file, f"cannot read the list of trusted projects: {error}") from error

    def _write(self, trusted: dict[str, str]) -> None:
        make_private_directory(os.path.dirname(self._file))
        write_private(self._file, msgspec.json.format(msgspec.json.encode(trusted)) + b"\n")


def _get_key(content: ExtensionFiles) -> str:
    root = os.path.realpath(content.root)
    return f"{root}#{content.kind}" if content.kind else root
