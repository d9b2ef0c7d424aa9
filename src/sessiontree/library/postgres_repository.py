"""Sessions in PostgreSQL: find, list, search, archive and delete them in SQL.

Session rows have what a listing shows, and line rows their text, so no other index is needed. If the rows are not
enough, as for sessions that other programs wrote, the session is opened once and the result is stored. The lines
themselves belong to `store.postgres`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from sessiontree.core.entries import Entry, EntryId
from sessiontree.core.entry_text import get_speaker
from sessiontree.core.query import Query
from sessiontree.core.search_text import VisibleEntries, build_full_text
from sessiontree.core.timestamps import format_timestamp, parse_timestamp
from sessiontree.errors import (
    Ambiguous,
    Conflict,
    FormatError,
    InvalidOperation,
    NotFound,
    SessionTreeError,
    isolate_errors,
)
from sessiontree.format.codec import read_entry
from sessiontree.format.tail import read_tail_heads
from sessiontree.library.index.session_search import Hit, build_snippet, map_branches, match_entry
from sessiontree.library.index.session_summary import SessionSummary, build_tally, find_first_fault
from sessiontree.library.repository import RECENT_ALIAS, Progress, StoredSession, find_most_recent
from sessiontree.library.session_files import is_id_match, resolve_folder
from sessiontree.session import Session
from sessiontree.store.base import Cursor, Store
from sessiontree.store.jsonl import Durability
from sessiontree.store.postgres.address import Address, is_database_address, parse_address
from sessiontree.store.postgres.connection import PostgresDatabase, get_database, run_on_replica
from sessiontree.store.postgres.rows import clean_text, filter_storable
from sessiontree.store.postgres.store import PostgresStore

if TYPE_CHECKING:
    from sessiontree.store.postgres.advisory_lock import AdvisoryLock
    from sessiontree.store.postgres.driver import Connection


class PostgresRepository:
    """All sessions of a database."""

    def __init__(self, address: Address) -> None:
        self.address = address._replace(session=None)
        self.location = self.address.safe_url

    @property
    def _database(self) -> PostgresDatabase:
        return get_database(self.address)

    # Stores and locations

    def get_store(self, location: str, durability: Durability = "fsync") -> PostgresStore:
        return self._get_store(_parse_name(location))

    def _get_store(self, id: str) -> PostgresStore:
        return PostgresStore(self.address._replace(session=id))

    def build_location(self, id: str, *, cwd: str, timestamp: str) -> str:
        return self.address.format_session_address(id)

    def get_id(self, location: str) -> str:
        return _parse_name(location)

    def exists(self, location: str) -> bool:
        return True  # opening it reports a missing one

    # Finding

    def find(self, name: str) -> str:
        return self.address.format_session_address(self._find_id(_parse_name(name)))

    def _find_id(self, text: str) -> str:
        if text == RECENT_ALIAS:
            recent = self._find_recent_id(".")
            if recent is None:
                hint = "this folder has none, or only archived ones, which `sessiontree ls --archived` shows"
                raise NotFound("session", RECENT_ALIAS, hint)
            return recent
        found = self._find_by_name(text, deleted=False)
        if found is None:
            raise NotFound("session", text, "a session is an id, a name, or @ for the most recent here")
        return found

    def find_recent(self, cwd: str) -> str | None:
        id = self._find_recent_id(cwd)
        return None if id is None else self.address.format_session_address(id)

    def _find_recent_id(self, cwd: str) -> str | None:
        rows = self._query(
            "SELECT id, (extract(epoch FROM modified) * 1000000)::bigint * 1000 FROM sessiontree.session"
            " WHERE current AND deleted IS NULL AND NOT archived AND cwd = %s ORDER BY modified DESC, key DESC",
            (_normalize_folder(cwd),),
        )
        return find_most_recent(rows, self._get_store)

    def _find_by_name(self, text: str, *, deleted: bool) -> str | None:
        if not text:
            raise InvalidOperation("a session needs an id or a name")
        if filter_storable(text) is None:
            return None
        rows = self._query(
            f"SELECT id, name FROM sessiontree.session WHERE current AND {_TRASH_CONDITIONS[deleted]}"
            " AND (starts_with(id, %s) OR right(id, length(%s)) = %s OR name = %s) ORDER BY modified DESC, key DESC",
            (text, text, text, text),
        )
        matches = (
            [id for id, _ in rows if id == text]
            or [id for id, name in rows if name == text]
            or [id for id, _ in rows if is_id_match(text, id)]
        )
        if len(matches) > 1:
            raise Ambiguous("session", text, matches)
        return matches[0] if matches else None

    def find_ambiguous(self, sessions: Iterable[tuple[str, str]], *, in_trash: bool = False) -> set[str]:
        return set()  # ids are unique in a database

    # Listing

    def list_sessions(
        self, cwd: str | None = None, *, archived: bool = False, progress: Progress | None = None
    ) -> list[SessionSummary]:
        return self._list_sessions(cwd, archived=archived)

    def list_trash(self) -> list[SessionSummary]:
        listed = self._list_sessions(deleted=True)
        return sorted(listed, key=lambda summary: summary.modified, reverse=True)

    def _list_sessions(
        self, cwd: str | None = None, *, archived: bool = False, deleted: bool = False
    ) -> list[SessionSummary]:
        rows = self._query_replica(
            f"SELECT {_COLUMNS} FROM sessiontree.session WHERE current AND {_TRASH_CONDITIONS[deleted]}"
            " AND (archived = %s OR deleted IS NOT NULL) AND (%s::text IS NULL OR cwd = %s)"
            " ORDER BY modified DESC, key DESC",
            (archived, *[None if cwd is None else _normalize_folder(cwd)] * 2),
        )
        return [self._build_summary(_SessionListing(*row)) for row in rows]

    def list_stored(self) -> list[StoredSession]:
        rows = self._query(
            "SELECT id, archived FROM sessiontree.session WHERE current AND deleted IS NULL"
            " ORDER BY modified DESC, key DESC",
            (),
        )
        return [StoredSession(id, self.address.format_session_address(id), archived) for id, archived in rows]

    def may_contain(self, location: str, text: bytes) -> bool:
        return True  # looking would cost more than opening the session

    # Copies and forks

    def build_copy_location(self, location: str, id: str) -> str:
        return self.address.format_session_address(id)

    def iter_copies(self, location: str) -> Iterator[Store]:
        # By the end of the address: the database may have been reached by another name.
        parent = self.address.format_session_address(_parse_name(location)).removeprefix(self.address.safe_url)
        rows = self._query(
            "SELECT id FROM sessiontree.session WHERE current AND deleted IS NULL"
            " AND right(parent_session, length(%s)) = %s ORDER BY modified DESC, key DESC",
            (parent, parent),
        )
        return (self._get_store(id) for (id,) in rows)

    def share_lines(self, source: Store, target: Store, header: bytes, parts: Sequence[Entry | bytes] | None) -> bool:
        from sessiontree.store.postgres.shared_lines import create_shared_fork

        return create_shared_fork(source, target, header, parts)

    # Watching

    def wait_for_change(self, location: str, after: Cursor, timeout: float) -> bool:
        return self.get_store(location).wait_for_change(after, timeout)

    def check_size(self, location: str) -> None:
        """Do nothing: no line in a database is over the limit."""

    def open_shared_lock(self, location: str, name: str) -> AdvisoryLock:
        from sessiontree.store.postgres.advisory_lock import AdvisoryLock

        return AdvisoryLock(location, name)

    def check_reachable(self) -> None:
        self._database.run(lambda connection: connection.execute("SELECT 1"))

    def _build_summary(self, listed: _SessionListing) -> SessionSummary:
        if not listed.is_complete and not listed.deleted:
            listed = self._load_summary(listed)
        return SessionSummary(
            id=listed.id,
            file=self.address.format_session_address(listed.id),
            name=listed.name,
            first_message=listed.first_message,
            message_count=listed.messages,
            entry_count=listed.entries,
            branch_count=len(listed.branches) - len(listed.hidden),
            branch=listed.branch,
            cost=round(listed.cost, 10),
            created=listed.created,
            modified=format_timestamp(listed.modified),
            cwd=listed.cwd,
            parent_session=listed.parent_session,
            archived=listed.archived,
            damage=listed.damage,
        )

    def _load_summary(self, listed: _SessionListing) -> _SessionListing:
        """Summarize a session by opening it. Store the result if this role may write."""
        where = self.address.format_session_address(listed.id)
        try:
            with isolate_errors(where):
                session = Session(self._get_store(listed.id), read_only="it was opened for reading")
                tally, damage = build_tally(session), find_first_fault(session)
        except FormatError as error:
            return listed._replace(damage=clean_text(error.reason))
        except SessionTreeError as error:  # rewritten or removed by another process
            return listed._replace(damage=clean_text(str(error)))
        complete = listed._replace(
            name=None if tally.session_name is None else clean_text(tally.session_name),
            first_message=None if tally.first_message is None else clean_text(tally.first_message),
            entries=tally.entries,
            messages=tally.messages,
            cost=tally.cost,
            branches=[clean_text(name) for name in tally.heads],
            hidden=[clean_text(name) for name in tally.archived],
            branch=clean_text(tally.current),
            damage=None if damage is None else clean_text(damage),
        )
        values = [getattr(complete, name) for name in _SUMMARY_COLUMNS]
        with suppress(SessionTreeError):  # this role may only read
            self._query(_UPDATE_SUMMARY, (*values, complete.key, complete.size))
        return complete

    # Searching

    def search(
        self,
        query: Query,
        *,
        cwd: str | None = None,
        limit: int = 50,
        only: Callable[[SessionSummary], bool] | None = None,
        on_unreadable: Callable[[str], None] | None = None,
        progress: Progress | None = None,
    ) -> list[Hit]:
        where = None if cwd is None else _normalize_folder(cwd)
        ids = None
        if only is not None:
            listed = [*self.list_sessions(cwd), *self.list_sessions(cwd, archived=True)]
            ids = [summary.id for summary in listed if only(summary)]
        among = (where, where, ids, ids)
        found = run_on_replica(self.address, lambda connection: self._search_newest(connection, query, among, limit))
        found = sorted([*found, *self._search_older(query, among)], key=lambda match: match[:3], reverse=True)[:limit]
        sights = {
            id: _HitContext(self._get_store(id), [match for match in found if match.session == id])
            for id in {match.session for match in found}
        }
        return [
            Hit(
                session=match.session,
                file=self.address.format_session_address(match.session),
                name=match.name,
                entry=match.entry.id,
                type=match.entry.type,
                role=get_speaker(match.entry),
                timestamp=match.entry.timestamp,
                branch=sights[match.session].branches.get(match.entry.id),
                in_context=sights[match.session].is_in_context(match.entry),
                snippet=build_snippet(build_full_text(match.entry), query.terms),
            )
            for match in found
        ]

    def find_matching_sessions(
        self, query: Query, *, cwd: str | None = None, progress: Progress | None = None
    ) -> list[str]:
        where = None if cwd is None else _normalize_folder(cwd)
        found = {match.session for match in self._search_older(query, (where, where, None, None))}

        def work(connection: Connection) -> set[str]:
            first = dict(self._iter_matches(connection, _SEARCH_ONE_EACH, query, (where, where, None, None)))
            found = {id for id, match in first.items() if match is not None}
            rest = [id for id in first if id not in found]  # another line of theirs may match
            others = self._iter_matches(connection, _SEARCH, query, (where, where, rest, rest)) if rest else ()
            return found | {id for id, match in others if match is not None}

        return [self.address.format_session_address(id) for id in sorted(found | run_on_replica(self.address, work))]

    def _search_newest(
        self, connection: Connection, query: Query, among: Sequence[Any], limit: int
    ) -> list[_DatabaseMatch]:
        # Use a cursor: not every row is a match, so the number of rows to read is not known before.
        with closing(self._iter_matches(connection, _SEARCH, query, among)) as lines:
            return list(islice((match for _, match in lines if match is not None), limit))

    def _iter_matches(
        self, connection: Connection, search: str, query: Query, among: Sequence[Any]
    ) -> Generator[tuple[str, _DatabaseMatch | None]]:
        """Yield the session id of each row of a search, with a match, or `None` if the row does not match after all."""
        likes = [f"%{_escape_like(clean_text(term.text))}%" for term in query.terms]
        said = " AND ".join(["e.said LIKE %s"] * len(likes)) or "e.said <> ''"
        statement = search.format(said=said, among=_SCOPE_CONDITION)
        roles = sorted(query.roles) or None
        values = (*likes, roles, roles, query.since, query.since, *among)
        with connection.transaction(), connection.cursor(name="sessiontree_search") as cursor:
            cursor.execute(statement.encode(), values)
            for id, name, position, line in cursor:
                match = None
                # A damaged line, or an old one that is nested too deeply, does not match.
                with suppress(SessionTreeError), isolate_errors(id):
                    match = _build_match(query, id, name, position, read_entry(bytes(line), 1))
                yield id, match

    def _search_older(self, query: Query, among: Sequence[Any]) -> Generator[_DatabaseMatch]:
        """Search sessions in older dialects, which have to be read as a whole."""
        rows = self._query_replica(
            "SELECT s.id, s.name FROM sessiontree.session AS s"
            f" WHERE s.current AND s.deleted IS NULL AND s.older {_SCOPE_CONDITION}",
            among,
        )
        for id, name in rows:
            with suppress(SessionTreeError), isolate_errors(self.address.format_session_address(id)):
                for number, entry in enumerate(
                    Session(self._get_store(id), read_only="it was opened for reading").tree
                ):
                    match = _build_match(query, id, name, number, entry)
                    if match is not None:
                        yield match

    # Archiving and deleting

    def resolve(self, name: str, *, in_trash: bool = False) -> str:
        return self.address.format_session_address(self._resolve_id(name, in_trash=in_trash))

    def _resolve_id(self, name: str, *, in_trash: bool) -> str:
        text = _parse_name(name)
        return (self._find_by_name(text, deleted=True) if in_trash else None) or self._find_id(text)

    def archive(self, name: str, *, archived: bool = True) -> str:
        id = self._find_id(_parse_name(name))
        self._query("UPDATE sessiontree.session SET archived = %s WHERE id = %s AND current", (archived, id))
        return self.address.format_session_address(id)

    def delete(self, name: str) -> str:
        id = self._find_id(_parse_name(name))
        self._query("UPDATE sessiontree.session SET deleted = now() WHERE id = %s AND current", (id,))
        return self.address.format_session_address(id)

    def restore(self, name: str) -> str:
        id = self._find_by_name(_parse_name(name), deleted=True)
        if id is None:
            raise NotFound("session in the trash", _parse_name(name))
        self._query("UPDATE sessiontree.session SET deleted = NULL WHERE id = %s AND current", (id,))
        return self.address.format_session_address(id)

    def purge(self, name: str, *, at: Cursor | None = None) -> str:
        """Remove a session for good, with its backups. Forks that share lines with it get copies of them."""
        id = self._resolve_id(name, in_trash=True)

        def work(connection: Connection) -> None:
            with connection.transaction():
                rows = connection.execute(
                    "SELECT key, size FROM sessiontree.session WHERE id = %s ORDER BY current DESC FOR UPDATE",
                    (id,),
                ).fetchall()
                if at is not None and rows[:1] != [at.value]:
                    raise Conflict(self.address.format_session_address(id), "another writer appended first")
                keys = [key for key, _ in rows]
                connection.execute(_COPY_SHARED_LINES, (keys, keys))
                for table in ("shared", "torn", "entry"):
                    connection.execute(f"DELETE FROM sessiontree.{table} WHERE session = ANY(%s)".encode(), (keys,))
                connection.execute("DELETE FROM sessiontree.shared WHERE source = ANY(%s)", (keys,))
                connection.execute("DELETE FROM sessiontree.session WHERE key = ANY(%s)", (keys,))

        self._database.run(work)
        return self.address.format_session_address(id)

    def _query(self, statement: str, values: Sequence[Any]) -> list[Any]:
        return self._database.run(lambda connection: _fetch_rows(connection, statement, values))

    def _query_replica(self, statement: str, values: Sequence[Any]) -> list[Any]:
        """Do the same on the read replica, if there is one."""
        return run_on_replica(self.address, lambda connection: _fetch_rows(connection, statement, values))


def _fetch_rows(connection: Connection, statement: str, values: Sequence[Any]) -> list[Any]:
    cursor = connection.execute(statement.encode(), values)
    return cursor.fetchall() if cursor.description else []


class _SessionListing(NamedTuple):
    """The columns of a session that a listing needs."""

    key: int
    size: int
    id: str
    name: str | None
    first_message: str | None
    entries: int
    messages: int
    cost: float
    branches: list[str]
    hidden: list[str]
    branch: str
    damage: str | None
    is_complete: bool
    archived: bool
    deleted: bool
    modified: int
    created: str
    cwd: str
    parent_session: str | None


class _DatabaseMatch(NamedTuple):
    moment: int
    session: str
    position: int
    name: str | None
    entry: Entry


def _build_match(query: Query, session: str, name: str | None, position: int, entry: Entry) -> _DatabaseMatch | None:
    if match_entry(entry, query) is None:
        return None
    return _DatabaseMatch(parse_timestamp(entry.timestamp) or 0, session, position, name, entry)


class _HitContext:
    """The branches that contain found entries, and which of the entries the model sees."""

    def __init__(self, store: PostgresStore, matches: Iterable[_DatabaseMatch]) -> None:
        self.branches: dict[EntryId, str] = {}
        self._visible: VisibleEntries | None = None
        with suppress(SessionTreeError), isolate_errors(store.location):  # damaged, or removed by another process
            session = Session(store, read_only="it was opened for reading")
            self.branches = _find_branches(session, store, min(match.position for match in matches))
            self._visible = VisibleEntries(session.context())

    def is_in_context(self, entry: Entry) -> bool:
        return self._visible is not None and self._visible.contains(entry)


def _find_branches(session: Session, store: PostgresStore, first: int) -> dict[EntryId, str]:
    """Map entries from position `first` on to branches that contain them."""
    heads = None if session.needs_migration else read_tail_heads(store.read_backward(store.read_end().cursor))
    if heads is None:
        tree = session.tree
        return map_branches(session.heads, lambda leaf: tree.walk_up_ids(leaf if leaf in tree else None))
    # A parent always comes before its children, so nothing before `first` is needed.
    parents = dict(store.read_links(first))

    def iter_ancestors(id: EntryId | None) -> Iterator[EntryId]:
        while id is not None and id in parents:
            yield id
            id = parents[id]

    return map_branches(heads, iter_ancestors)


def _parse_name(name: str) -> str:
    """Return the name of a session within the database: the part of an address after `#`, or the name itself."""
    return parse_address(name).session_name if is_database_address(name) else name


def _normalize_folder(cwd: str) -> str:
    return clean_text(resolve_folder(cwd))


def _escape_like(text: str) -> str:
    """Escape `text` for LIKE."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


_TRASH_CONDITIONS = {False: "deleted IS NULL", True: "deleted IS NOT NULL"}
_COLUMNS = (
    "key, size, id, name, first_message, entries, messages, cost, branches, hidden, branch, damage, told, archived,"
    " deleted IS NOT NULL, (extract(epoch FROM modified) * 1000000)::bigint / 1000, created, cwd, parent_session"
)
_SUMMARY_COLUMNS = ("name", "first_message", "entries", "messages", "cost", "branches", "hidden", "branch", "damage")
_UPDATE_SUMMARY = (
    f"UPDATE sessiontree.session SET {', '.join(f'{name} = %s' for name in _SUMMARY_COLUMNS)}, told = true"
    " WHERE key = %s AND size = %s"
)
_SCOPE_CONDITION = "AND (%s::text IS NULL OR s.cwd = %s) AND (%s::text[] IS NULL OR s.id = ANY(%s))"
# A shared line is a hit in its source and in every fork. If several lines have the same id, the last one counts.
_SEARCH = """
WITH hit AS (
    SELECT e.session, e.position, e.moment, e.id, e.line FROM sessiontree.entry AS e
    WHERE ({said} OR e.said IS NULL) AND e.id IS NOT NULL
        AND (%s::text[] IS NULL OR lower(e.role) = ANY(%s)) AND (%s::bigint IS NULL OR e.moment >= %s)
), seen AS (
    SELECT session, position, moment, id, line FROM hit
    UNION ALL
    SELECT p.session, p.position + h.position - p.start, h.moment, h.id, h.line
    FROM hit AS h JOIN sessiontree.shared AS p
        ON p.source = h.session AND h.position >= p.start AND h.position < p.start + p.size
)
SELECT s.id, s.name, seen.position, seen.line FROM seen JOIN sessiontree.session AS s ON s.key = seen.session
WHERE s.current AND s.deleted IS NULL AND NOT s.older {among}
    AND NOT EXISTS (SELECT FROM sessiontree.entry AS later
        WHERE later.session = seen.session AND later.id = seen.id AND later.position > seen.position)
ORDER BY seen.moment DESC, s.id DESC, seen.position DESC"""
_SEARCH_ONE_EACH = f"SELECT DISTINCT ON (id) * FROM ({_SEARCH}) AS found"
# Copy the lines that forks share with sessions that are about to be deleted.
_COPY_SHARED_LINES = """
INSERT INTO sessiontree.entry (session, position, line, id, parent, type, role, branch, moment, said)
SELECT p.session, p.position + e.position - p.start, e.line, e.id, e.parent, e.type, e.role, e.branch, e.moment, e.said
FROM sessiontree.shared AS p JOIN sessiontree.entry AS e
    ON e.session = p.source AND e.position >= p.start AND e.position < p.start + p.size
WHERE p.source = ANY(%s) AND p.session <> ALL(%s)"""
