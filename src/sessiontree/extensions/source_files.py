"""Content: the files of a folder with extensions and prompt files, read once.

What is hashed, shown, trusted and run is the same bytes: nothing is read a second time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from msgspec import Struct

from sessiontree.errors import NotFound, SessionTreeError
from sessiontree.regular_file import read_regular_file


class ExtensionError(SessionTreeError):
    """An extension could not be loaded, or failed at what it was asked for."""

    def __init__(self, extension: str, reason: str) -> None:
        super().__init__(f"extension {extension}: {reason}")
        self.extension = extension
        self.reason = reason


EXTENSIONS, PROMPTS = "extensions", "commands"
"""The folders, in the home and in a project's `.sessiontree`."""
RULES = "permissions.toml"
"""The rules of a project, which are trusted with the rest."""

CACHES = "__pycache__"
MAX_FILES, MAX_BYTES = 2000, 32 << 20


class ExtensionSource(Struct, frozen=True, kw_only=True):
    """An extension that can be loaded."""

    name: str
    path: str
    """Its file, or the `__init__.py` of its folder."""


class ExtensionFiles(Struct, frozen=True, kw_only=True):
    root: str
    """The folder that `extensions`, `commands` and rules of permissions are in."""
    files: dict[str, bytes]
    """By absolute path, in order."""
    problems: tuple[str, ...] = ()
    """What could not be read."""

    @property
    def digest(self) -> str:
        """A hash over the names and the bytes of all files."""
        import hashlib

        sha = hashlib.sha256()
        for path, data in self.files.items():
            name = os.fsencode(os.path.relpath(path, self.root))
            sha.update(b"%d:%s%d:" % (len(name), name, len(data)))
            sha.update(data)
        return sha.hexdigest()

    @property
    def extensions(self) -> list[ExtensionSource]:
        """Files that end in `.py`, and folders with an `__init__.py`; not those whose name begins with `_` or `.`."""
        found: dict[str, ExtensionSource] = {}
        for path in self.files:
            first, *rest = os.path.relpath(path, os.path.join(self.root, EXTENSIONS)).split(os.sep)
            name = first.removesuffix(".py")
            if rest in ([], ["__init__.py"]) and name and name[0] not in "_." and (rest or first.endswith(".py")):
                found[path] = ExtensionSource(name=name, path=path)
        return list(found.values())

    @property
    def prompts(self) -> list[tuple[str, str]]:
        """Prompt files: the name of the command, with a colon for each folder, and the path."""
        names = {path: os.path.relpath(path, os.path.join(self.root, PROMPTS)) for path in self.files}
        return [
            (name.removesuffix(".md").replace(os.sep, ":"), path)
            for path, name in names.items()
            if name.endswith(".md") and not name.startswith(os.pardir)
        ]


def read_extension_files(root: str) -> ExtensionFiles:
    """The files below `extensions` and `commands` in `root`, and its rules of permissions.

    Raises `ExtensionError` if there are too many.

    Compiled code is passed over, and never used. Links are followed: what they lead to is read now, like the rest.
    """
    files: dict[str, bytes] = {}
    problems: list[str] = []
    size = 0
    for path in _list_paths(root):
        try:
            files[path] = read_regular_file(path, MAX_BYTES)
            size += len(files[path])
        except OSError as error:
            problems.append(f"{path}: {error.strerror or error}")
        if len(files) > MAX_FILES or size > MAX_BYTES:
            raise ExtensionError(root, "there is more in it than anybody can look through")
    return ExtensionFiles(root=root, files=files, problems=tuple(problems))


def _list_paths(root: str) -> Iterator[str]:
    seen: set[str] = set()
    rules = os.path.join(root, RULES)
    if os.path.lexists(rules):
        yield rules
    for folder in (EXTENSIONS, PROMPTS):
        yield from _walk_files(os.path.join(root, folder), seen)


def _walk_files(folder: str, seen: set[str] | None = None) -> Iterator[str]:
    """All files below a folder. Folders that were `seen` are not looked into again."""
    seen = set() if seen is None else seen
    for at, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(at)
        if real in seen:  # a link that leads in a circle
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if name != CACHES)
        yield from (os.path.join(at, name) for name in sorted(names))


def locate_extension(path: str) -> ExtensionSource:
    """An extension that was named by its path: a file, or a folder with an `__init__.py`."""
    whole = os.path.abspath(os.path.expanduser(path))
    if os.path.isdir(whole):
        return ExtensionSource(name=os.path.basename(whole), path=os.path.join(whole, "__init__.py"))
    if not os.path.exists(whole):
        raise NotFound("extension", path)
    return ExtensionSource(name=os.path.basename(whole).removesuffix(".py"), path=whole)


def read_named_extensions(root: str, paths: Iterable[str]) -> ExtensionFiles:
    """The files of extensions that `root` names by their paths. Raises `NotFound`, or `ExtensionError` for too many."""
    files: dict[str, bytes] = {}
    problems: list[str] = []
    for path in paths:
        found = locate_extension(path).path
        is_folder = os.path.basename(found) == "__init__.py"
        for file in _walk_files(os.path.dirname(found)) if is_folder else [found]:
            try:
                files[file] = read_regular_file(file, MAX_BYTES)
            except OSError as error:
                problems.append(f"{file}: {error.strerror or error}")
        if len(files) > MAX_FILES or sum(map(len, files.values())) > MAX_BYTES:
            raise ExtensionError(root, "there is more in it than anybody can look through")
    return ExtensionFiles(root=root, files=files, problems=tuple(problems))


def find_project_root(cwd: str, home: str) -> str | None:
    """The `.sessiontree` of the project that `cwd` is in; `None` where there is none, or where it is the home."""
    at = os.path.abspath(cwd)
    while True:
        root = os.path.join(at, ".sessiontree")
        if os.path.isdir(root):
            return None if os.path.exists(home) and os.path.samefile(root, home) else root
        parent = os.path.dirname(at)
        if parent == at or os.path.lexists(os.path.join(at, ".git")):
            return None
        at = parent
