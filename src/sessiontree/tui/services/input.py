"""Input of the user: completion and `@file` mentions, the draft of each session, and the history of all inputs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from sessiontree.errors import LockTimeout, StoreError
from sessiontree.home import get_home
from sessiontree.library.other_processes import is_session_open
from sessiontree.regular_file import read_regular_file
from sessiontree.session import Session
from sessiontree.slash_commands.registry import is_prompt_line
from sessiontree.store.file_operations import make_private_directory, open_private
from sessiontree.store.lock import lock_file
from sessiontree.tui.services.terminal import is_over_ssh

if TYPE_CHECKING:
    from sessiontree.core.entries import JsonObject
    from sessiontree.slash_commands.controller import SessionController

# Completion

MAX_SUGGESTIONS = 50
"""Maximum number of suggestions."""
MAX_FILES = 20_000
"""Maximum number of files to search."""
CACHE_SECONDS = 10.0
"""Lifetime of the cached list of files."""

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".webp")
CLIPBOARD_COMMANDS = (
    ("wl-paste", "--no-newline", "--type", "image/png"),
    ("xclip", "-selection", "clipboard", "-t", "image/png", "-o"),
    ("pngpaste", "-"),
)
"""Commands that print the image on the clipboard of a desktop. There is none over ssh."""

MENTION = re.compile(r'(?:^|(?<=\s))@("[^"\n]*|[^\s"]*)$')


class Suggestion(Struct, frozen=True):
    text: str
    """The text to insert."""
    help: str = ""


class Suggestions(Struct, frozen=True):
    start: int
    """Start of the completed word in the text before the cursor."""
    choices: tuple[Suggestion, ...]
    selects_first: bool = False
    """Whether Enter inserts the first suggestion, because the typed word is not valid by itself."""


NO_SUGGESTIONS = Suggestions(0, ())


class Completer:
    def __init__(self, controller: SessionController) -> None:
        self._controller = controller
        self._files: list[str] = []
        self._files_read_at = 0.0

    def suggest(self, before: str) -> Suggestions:
        """Return suggestions for the last word of the text. Call this in a thread, because it may read files."""
        mention = MENTION.search(before)
        if mention is not None:
            typed = mention[1].lstrip('"')
            paths = sort_exact_first(self._find_paths(typed), typed)
            choices = tuple(Suggestion(f"@{_quote_path(path)}") for path in paths)
            return Suggestions(mention.start(), choices, bool(typed) and not self._path_exists(typed))
        if not before.startswith("/") or "\n" in before:
            return NO_SUGGESTIONS
        completion = self._controller.commands.complete(self._controller, before)
        helps = (
            {f"/{command.name}": command.help for command in self._controller.commands} if not completion.start else {}
        )
        word = before[completion.start :]
        choices = [
            Suggestion(choice, helps.get(choice, ""))
            for choice in sort_exact_first(completion.choices, word)[:MAX_SUGGESTIONS]
        ]
        # An argument, such as a label, may be new. A command must exist.
        is_unknown = not completion.start and word not in completion.choices
        return Suggestions(completion.start, tuple(choices), is_unknown)

    def _path_exists(self, path: str) -> bool:
        return "\0" not in path and os.path.lexists(os.path.join(self._controller.cwd, os.path.expanduser(path)))

    def _find_paths(self, typed: str) -> list[str]:
        if typed.startswith(("/", "~", "..")):
            return list(islice(_list_folder(typed), MAX_SUGGESTIONS))
        if time.monotonic() - self._files_read_at > CACHE_SECONDS:
            from sessiontree.agent.tools.file_access import walk_files

            try:
                files = list(islice(walk_files(self._controller.cwd), MAX_FILES))
                self._files = [*_list_parents(files), *files]
            except OSError:  # the working directory was deleted
                self._files = []
            self._files_read_at = time.monotonic()
        return rank_paths(self._files, typed)[:MAX_SUGGESTIONS]


def _list_parents(files: Iterable[str]) -> list[str]:
    """Return the folders of the files, with a slash at the end."""
    folders: dict[str, None] = {}
    for file in files:
        folder = file.rpartition("/")[0]
        while folder and f"{folder}/" not in folders:
            folders[f"{folder}/"] = None
            folder = folder.rpartition("/")[0]
    return sorted(folders)


def sort_exact_first(choices: Sequence[str], word: str) -> list[str]:
    """Sort the choices, an exact match first."""
    return sorted(choices, key=lambda choice: choice != word)


def _list_folder(typed: str) -> Iterable[str]:
    folder, _, name = typed.rpartition("/")
    try:
        with os.scandir(os.path.expanduser(folder or "/")) as found:
            listed = sorted((entry.name, entry.is_dir()) for entry in found)
    except OSError:
        return []
    return [f"{folder}/{entry}{'/' * is_folder}" for entry, is_folder in listed if entry.startswith(name)]


def rank_paths(paths: Iterable[str], typed: str) -> list[str]:
    """Return fuzzy matches, best first: file names with this prefix, then substrings, then subsequences."""
    wanted = typed.lower()

    def rank(path: str) -> int | None:
        low = path.lower()
        if low.rstrip("/").rpartition("/")[2].startswith(wanted.rstrip("/")) and wanted in low:
            return 0
        if wanted in low:
            return 1
        letters = iter(low)
        return 2 if all(letter in letters for letter in wanted) else None

    found = [(place, path) for path in paths if (place := rank(path)) is not None]
    return [path for _, path in sorted(found, key=lambda item: (item[0], item[1].count("/"), len(item[1]), item[1]))]


def _quote_path(path: str) -> str:
    return f'"{path}"' if re.search(r"\s", path) else path


def find_mentions(text: str) -> list[str]:
    """Return the paths mentioned with `@` in a text."""
    return [quoted or plain for quoted, plain in re.findall(r'(?:^|(?<=\s))@(?:"([^"\n]+)"|([^\s"]+))', text)]


def find_pasted_image(text: str) -> str | None:
    """Return the path of an image file that was pasted or dragged into the terminal; `None` for any other text."""
    candidates = [unquote(text.removeprefix("file://")) if text.startswith("file://") else text]
    with suppress(ValueError):
        words = shlex.split(text)  # many terminals quote or escape blanks
        candidates += words if len(words) == 1 else []
    images = (path for path in candidates if path.lower().endswith(IMAGE_ENDINGS) and os.path.isabs(path))
    return next((path for path in images if "\0" not in path and os.path.isfile(path)), None)


def save_clipboard_image() -> str | None:
    """Save the image on the clipboard of the desktop to a private file and return its path; `None` without one."""
    for command in CLIPBOARD_COMMANDS:
        if shutil.which(command[0]) is None:
            continue
        with suppress(OSError, subprocess.SubprocessError, StoreError):
            found = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=5, check=True)
            if found.stdout.startswith(b"\x89PNG"):
                folder = os.path.join(get_home(), "pastes")
                make_private_directory(folder)
                path = os.path.join(folder, f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.png")
                _write_private_file(path, found.stdout)
                return path
    return None


def explain_missing_image() -> str:
    """Say why there is no image to paste."""
    if is_over_ssh():
        return "No image: the clipboard cannot be read over ssh. Type @ and the path of an image."
    if not any(shutil.which(command[0]) for command in CLIPBOARD_COMMANDS):
        return "No image: install wl-paste, xclip or pngpaste, or type @ and the path of an image."
    return "No image on the clipboard"


def format_mention(path: str) -> str:
    return f"@{_quote_path(path)} "


def read_mentioned_images(text: str, cwd: str) -> list[JsonObject]:
    """Read the images among the mentioned files. The model reads other files itself."""
    from sessiontree.agent.tools.file_access import read_image

    images: list[JsonObject] = []
    for path in find_mentions(text):
        full = os.path.join(cwd, os.path.expanduser(path))
        if os.path.isfile(full) and full.lower().endswith(IMAGE_ENDINGS):
            with open(full, "rb") as file:
                image = read_image(file, path)
            if image is not None:
                images.append(image)
    return images


# Drafts

LOCK_SECONDS = 1.0
"""Maximum time to wait for the lock of the drafts folder. The app can start without a draft."""
MAX_HISTORY = 1000
"""Number of inputs in the history."""

WRITE_ERRORS = (OSError, StoreError, UnicodeEncodeError)


class EditorDraft(Struct, frozen=True, kw_only=True, omit_defaults=True):
    text: str = ""
    pastes: dict[str, str] = {}
    """Long pastes by their placeholder in the text."""
    queued: tuple[str, ...] = ()
    """Prompts that were waiting to be sent."""

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.queued)


class _StoredDraft(EditorDraft, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a draft file."""

    place: str = ""
    """Path or address of the session."""
    new_in: str | None = None
    """Working directory of the session, while the session is empty."""


class DraftFile:
    """The draft of one session.

    An empty session is deleted on exit. Its draft is adopted by the next new session in the same directory, unless
    the old session is still open.
    """

    def __init__(self, session: Session, *, second: bool = False) -> None:
        """With `second`, use a separate file, because another process has the session open."""
        self.session = session
        self._is_second = second

    @property
    def path(self) -> str:
        name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in self.session.id)[:200]
        return os.path.join(get_home(), "drafts", f"{name}{'.beside' if self._is_second else ''}.json")

    def read(self) -> EditorDraft:
        """Return the saved draft, or adopt one for a new session."""
        stored = _read_draft(self.path)
        if stored is None and self._is_new and not self._is_second:
            with suppress(*WRITE_ERRORS):
                stored = self._adopt_orphan()
        return (
            EditorDraft()
            if stored is None
            else EditorDraft(text=stored.text, pastes=stored.pastes, queued=stored.queued)
        )

    def write(self, draft: EditorDraft) -> None:
        with suppress(*WRITE_ERRORS):
            if draft.is_empty:
                os.unlink(self.path)
            else:
                make_private_directory(os.path.dirname(self.path))
                self._write(draft)

    @property
    def _is_new(self) -> bool:
        return not self.session.tree.has_real_entries

    def _write(self, draft: EditorDraft) -> None:
        new_in = self.session.cwd if self._is_new else None
        place = self.session.address or ""
        stored = _StoredDraft(text=draft.text, pastes=draft.pastes, queued=draft.queued, place=place, new_in=new_in)
        _write_private_file(self.path, msgspec.json.encode(stored))

    def _adopt_orphan(self) -> _StoredDraft | None:
        """Take over the newest draft of a deleted empty session in the same directory."""
        folder = os.path.dirname(self.path)
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            lock_file(fd, folder, LOCK_SECONDS)  # only one process may adopt it
            names = [entry for entry in os.scandir(folder) if entry.name.endswith(".json")]
            for entry in sorted(names, key=lambda entry: entry.stat().st_mtime_ns, reverse=True):
                stored = _read_draft(entry.path)
                if stored is not None and stored.new_in == self.session.cwd and not is_session_open(stored.place):
                    self._write(stored)
                    os.unlink(entry.path)
                    return stored
            return None
        except LockTimeout:  # leave the draft to a later session
            return None
        finally:
            os.close(fd)


def _read_draft(path: str) -> _StoredDraft | None:
    try:
        return msgspec.json.decode(read_regular_file(path), type=_StoredDraft)
    except (OSError, msgspec.MsgspecError, UnicodeError):
        return None


# History


class LiteralPrompt(Struct, frozen=True):
    """A prompt for the model that looks like a slash command or a shell command."""

    words: str


HistoryItem = str | LiteralPrompt
"""An input as typed. A prompt that would be read as a command is a `LiteralPrompt`."""


def to_history_item(text: str) -> HistoryItem:
    return text if is_prompt_line(text) else LiteralPrompt(text)


class History:
    """The inputs of all sessions, oldest first."""

    def __init__(self) -> None:
        self._file = os.path.join(get_home(), "history.jsonl")
        self.items: list[HistoryItem] = self._read()

    def _read(self) -> list[HistoryItem]:
        try:
            return msgspec.json.Decoder(HistoryItem).decode_lines(read_regular_file(self._file))[-MAX_HISTORY:]
        except (OSError, msgspec.MsgspecError, UnicodeError):
            return []

    def add(self, line: HistoryItem) -> None:
        if self.items[-1:] == [line]:
            return
        self.items.append(line)
        with suppress(*WRITE_ERRORS):
            make_private_directory(os.path.dirname(self._file))
            if len(self.items) > 2 * MAX_HISTORY:
                self.items = self.items[-MAX_HISTORY:]
                _write_private_file(self._file, b"".join(msgspec.json.encode(item) + b"\n" for item in self.items))
            else:
                with open(open_private(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
                    file.write(msgspec.json.encode(line) + b"\n")


def _write_private_file(path: str, data: bytes) -> None:
    """Replace a private file atomically."""
    temporary = f"{path}.{os.getpid()}"
    with open(open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(data)
    os.replace(temporary, path)
