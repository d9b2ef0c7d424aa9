"""Compare the files of two places of a session: how many lines differ in each file, and the differences themselves."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from sessiontree.config import FileSettings
from sessiontree.core.entries import EntryId, JsonObject
from sessiontree.core.number_text import pluralize
from sessiontree.files.file_history import FileStat, find_places, read_diff, read_stats
from sessiontree.files.file_records import list_folders
from sessiontree.files.git_command import SnapshotError
from sessiontree.ops.move_files import FileMover
from sessiontree.session import Session

MAX_SHOWN = 50
"""Files that a summary lists."""


class FilesComparison(Struct, frozen=True, kw_only=True):
    """How the files of two places differ."""

    stats: tuple[FileStat, ...] = ()
    diff: str = ""
    """A unified diff."""
    missing: str | None = None
    """Why the files are not known."""

    @property
    def summary(self) -> str:
        """One line: how many files differ."""
        if self.missing is not None:
            return f"files: {self.missing}"
        count = len(self.stats)
        verb = "differs" if count == 1 else "differ"
        return f"files: {pluralize(count, 'file')} {verb}" if count else "files: no difference"

    def list_counts(self) -> list[tuple[str, str]]:
        """Return the files that differ, each with its number of added and deleted lines."""
        shown = [(item.path, _format_counts(item)) for item in self.stats[:MAX_SHOWN]]
        more = len(self.stats) - MAX_SHOWN
        return [*shown, ("…", f"{more} more")] if more > 0 else shown


def _format_counts(item: FileStat) -> str:
    return "binary" if item.added is None else f"+{item.added} -{item.deleted}"


def compare_files(
    session: Session,
    a: EntryId | None,
    b: EntryId | None,
    settings: FileSettings,
    cwd: str | None = None,
    *,
    with_diff: bool = True,
) -> FilesComparison | None:
    """Return how the files of two places differ; `None` if the agents of the session have not changed any."""
    if not list_folders(session.tree, session.heads.current):
        return None
    missing = FilesComparison(missing="the snapshots are not on this machine")
    try:
        mover = FileMover.find(session.head, settings, cwd)
        places = find_places(mover.log, a, b)
        if mover.store is None or places is None or not mover.store.has_commits(places):
            return missing
        stats = tuple(read_stats(mover.store, *places))
        return FilesComparison(stats=stats, diff=read_diff(mover.store, *places) if with_diff and stats else "")
    except SnapshotError as error:
        return FilesComparison(missing=str(error))


def encode_files_comparison(found: FilesComparison, max_characters: int | None = None) -> JsonObject:
    """Return a comparison as JSON."""
    return {
        "paths": [{"path": item.path, "added": item.added, "deleted": item.deleted} for item in found.stats],
        "diff": found.diff[:max_characters],
        "missing": found.missing,
    }


def describe_files(found: FilesComparison, *, with_diff: bool = False) -> Sequence[str]:
    """Return a comparison as lines of text: counts, then the diff on request."""
    counts = [f"  {path} {text}" for path, text in found.list_counts()]
    return [found.summary, *counts, *(found.diff.splitlines() if with_diff else ())]
