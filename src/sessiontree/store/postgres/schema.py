"""The schema: tables and functions in the schema `sessiontree`, and how a database gets them.

Every step is numbered and never changed once it was released. Many processes may come at once: whoever has the lock
makes the missing steps, in one transaction, and the others find them done.

History is only added to. Lines are written by the functions `append`, `share`, `leave` and `settle`, which take what
goes behind the end and nothing else; so a role that may call them, and may not write to the tables itself, cannot
change what was said.

What only some servers have is done without where it is missing: NOTIFY, advisory locks, BRIN indexes, `pg_trgm`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessiontree.errors import StoreError
from sessiontree.store.postgres.connection import format_driver_error, get_driver_error, is_unsupported

if TYPE_CHECKING:
    from sessiontree.store.postgres.connection import Connection

CHANNEL = "sessiontree"
"""Where is told that a session has grown: its number, and no more."""
SCHEMA_LOCK_KEY = 0x73_74_72_65_65
"""The advisory lock of those who change the schema."""

_TABLES = """
CREATE TABLE sessiontree.session (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL,
    size bigint NOT NULL DEFAULT 0,                -- bytes of all lines, each with its newline
    tail bytea NOT NULL DEFAULT '',                -- what a copied file had behind its last newline
    current boolean NOT NULL DEFAULT true,         -- false: a backup, kept when the session was rewritten
    archived boolean NOT NULL DEFAULT false,
    deleted timestamptz,
    modified timestamptz NOT NULL DEFAULT now(),
    created text NOT NULL DEFAULT '',              -- what the header says
    cwd text NOT NULL DEFAULT '',
    parent_session text,
    older boolean NOT NULL DEFAULT false,          -- in an older dialect: its rows tell little
    told boolean NOT NULL DEFAULT true,            -- what follows is right; if not, the session is opened for it
    name text,
    first_message text,
    entries bigint NOT NULL DEFAULT 0,
    messages bigint NOT NULL DEFAULT 0,
    cost double precision NOT NULL DEFAULT 0,
    branches text[] NOT NULL DEFAULT '{main}',
    hidden text[] NOT NULL DEFAULT '{}',
    branch text NOT NULL DEFAULT 'main',
    damage text
);
CREATE UNIQUE INDEX session_id ON sessiontree.session (id) WHERE current;
CREATE INDEX session_modified ON sessiontree.session (modified);

-- No foreign keys: lines come by `append` alone, which has the session's row in its hands.
CREATE TABLE sessiontree.entry (
    session bigint NOT NULL,
    position bigint NOT NULL,                      -- where the line starts, in bytes
    line bytea NOT NULL,
    id text, parent text, type text, role text, branch text,
    moment bigint NOT NULL DEFAULT 0,              -- milliseconds since the epoch
    said text,                                     -- folded; null: too long, look into the line
    batch uuid,                                    -- on the first line of an append: its key
    PRIMARY KEY (session, position)
);
CREATE INDEX entry_id ON sessiontree.entry (session, id);
DO $$
BEGIN
    CREATE INDEX entry_moment ON sessiontree.entry USING brin (moment);
EXCEPTION WHEN feature_not_supported OR undefined_object THEN
    RAISE NOTICE 'no BRIN indexes here: searching by time looks at every line';
END $$;

-- Parts of a session that are lines of another one: a fork has its prefix so.
CREATE TABLE sessiontree.shared (
    session bigint NOT NULL,
    position bigint NOT NULL,
    source bigint NOT NULL,
    start bigint NOT NULL,
    size bigint NOT NULL,
    PRIMARY KEY (session, position)
);
CREATE INDEX shared_source ON sessiontree.shared (source, start);
CREATE INDEX shared_place ON sessiontree.shared (session, source, start);

-- Unfinished last lines that were in the way of what was appended.
CREATE TABLE sessiontree.torn (
    session bigint NOT NULL,
    position bigint NOT NULL,
    bytes bytea NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
);

CREATE FUNCTION sessiontree.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a session is only added to' USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER session_only_grows BEFORE UPDATE ON sessiontree.session FOR EACH ROW
    WHEN (NEW.size < OLD.size OR NEW.key <> OLD.key OR NEW.id <> OLD.id) EXECUTE FUNCTION sessiontree.refuse();
CREATE TRIGGER entry_stays BEFORE UPDATE ON sessiontree.entry FOR EACH ROW EXECUTE FUNCTION sessiontree.refuse();

-- Where the session ends now; null when it does not end at `after`, with nothing written.
CREATE FUNCTION sessiontree.append(
    which bigint, after bigint, lines bytea[], ids text[], parents text[], types text[], roles text[],
    on_branches text[], moments bigint[], texts text[], key_of_batch uuid, gain jsonb
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    grown bigint;
    names text[] := ARRAY(SELECT jsonb_array_elements_text(gain->'branches'));
    record boolean := gain ? 'hidden';
BEGIN
    UPDATE sessiontree.session AS s SET
        size = s.size + (SELECT coalesce(sum(octet_length(line) + 1), 0) FROM unnest(lines) AS line),
        modified = clock_timestamp(),
        told = s.told AND (gain->>'told')::boolean,
        entries = s.entries + (gain->>'entries')::bigint,
        messages = s.messages + (gain->>'messages')::bigint,
        cost = s.cost + (gain->>'cost')::double precision,
        first_message = coalesce(s.first_message, gain->>'first_message'),
        name = CASE WHEN (gain->>'named')::boolean THEN gain->>'name' ELSE s.name END,
        branches = CASE WHEN record THEN names WHEN names <@ s.branches THEN s.branches
            ELSE s.branches || ARRAY(SELECT added FROM unnest(names) AS added WHERE added <> ALL (s.branches)) END,
        hidden = CASE WHEN record THEN ARRAY(SELECT jsonb_array_elements_text(gain->'hidden')) ELSE s.hidden END,
        branch = coalesce(gain->>'current', s.branch)
    WHERE s.key = which AND s.size = after AND s.tail = '' AND s.current AND s.deleted IS NULL
    RETURNING s.size INTO grown;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO sessiontree.entry (session, position, line, id, parent, type, role, branch, moment, said, batch)
    SELECT which,
        after + coalesce(sum(octet_length(l.line) + 1)
            OVER (ORDER BY l.number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0),
        l.line, l.id, l.parent, l.type, l.role, l.branch, l.moment, l.said,
        CASE WHEN l.number = 1 THEN key_of_batch END
    FROM unnest(lines, ids, parents, types, roles, on_branches, moments, texts) WITH ORDINALITY
        AS l(line, id, parent, type, role, branch, moment, said, number);
    BEGIN
        PERFORM pg_notify('sessiontree', which::text);
    EXCEPTION WHEN feature_not_supported OR undefined_function THEN
        NULL;  -- those who wait ask now and then
    END;
    RETURN grown;
END $$;

-- The same for lines that other sessions have already: so many bytes of each, from `begins` on. Who purges a lender
-- waits until the borrower is there to be given its lines.
CREATE FUNCTION sessiontree.share(which bigint, after bigint, lenders bigint[], begins bigint[], sizes bigint[])
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    grown bigint;
BEGIN
    PERFORM FROM sessiontree.session AS s WHERE s.key = ANY (lenders) ORDER BY s.key FOR KEY SHARE;
    IF EXISTS (
        SELECT FROM unnest(lenders, begins, sizes) AS p(lender, start, size)
        WHERE p.size <= 0
            OR NOT EXISTS (SELECT FROM sessiontree.entry WHERE session = p.lender AND position = p.start)
            OR NOT (EXISTS (SELECT FROM sessiontree.entry WHERE session = p.lender AND position = p.start + p.size)
                OR EXISTS (SELECT FROM sessiontree.shared WHERE session = p.lender AND position = p.start + p.size)
                OR p.start + p.size = (SELECT s.size FROM sessiontree.session AS s WHERE s.key = p.lender))
    ) THEN
        RAISE EXCEPTION 'only whole lines can be shared';
    END IF;
    UPDATE sessiontree.session AS s SET told = false, size = s.size + (SELECT sum(bytes) FROM unnest(sizes) AS bytes)
    WHERE s.key = which AND s.size = after AND s.tail = '' AND s.current AND s.deleted IS NULL
    RETURNING s.size INTO grown;
    IF FOUND THEN
        INSERT INTO sessiontree.shared (session, position, source, start, size)
        SELECT which,
            after + coalesce(sum(p.size)
                OVER (ORDER BY p.number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0),
            p.lender, p.start, p.size
        FROM unnest(lenders, begins, sizes) WITH ORDINALITY AS p(lender, start, size, number);
    END IF;
    RETURN grown;
END $$;

-- Keeps what a copied file has behind its last newline; false when the session does not end at `after`.
CREATE FUNCTION sessiontree.leave(which bigint, after bigint, rest bytea)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    UPDATE sessiontree.session AS s SET tail = rest, told = false
    WHERE s.key = which AND s.size = after AND s.tail IN ('', rest) AND s.current AND s.deleted IS NULL;
    RETURN FOUND;
END $$;

-- What a copied file had behind its last newline is ended as a line, or put aside: only then something can follow.
CREATE FUNCTION sessiontree.settle(which bigint, as_line boolean, line_id text, line_parent text, line_type text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    rest bytea;
    position_of bigint;
BEGIN
    SELECT s.tail, s.size INTO rest, position_of FROM sessiontree.session AS s WHERE s.key = which FOR UPDATE;
    IF coalesce(rest, '') = '' THEN
        RETURN;
    END IF;
    IF as_line THEN
        INSERT INTO sessiontree.entry (session, position, line, id, parent, type)
        VALUES (which, position_of, rest, line_id, line_parent, line_type);
        UPDATE sessiontree.session AS s SET tail = '', size = s.size + octet_length(rest) + 1, told = false
        WHERE s.key = which;
    ELSE
        INSERT INTO sessiontree.torn VALUES (which, position_of, rest);
        UPDATE sessiontree.session AS s SET tail = '', told = false WHERE s.key = which;
    END IF;
END $$;

REVOKE ALL ON FUNCTION sessiontree.append, sessiontree.share, sessiontree.leave, sessiontree.settle FROM PUBLIC;
"""

_SEARCH_INDEX = """
DO $$
DECLARE
    place text;
BEGIN
    BEGIN
        CREATE EXTENSION IF NOT EXISTS pg_trgm;
    EXCEPTION WHEN OTHERS THEN
        RAISE NOTICE 'no pg_trgm here: searching looks through every text';
    END;
    SELECT quote_ident(n.nspname) INTO place FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
    WHERE e.extname = 'pg_trgm';
    IF place IS NOT NULL THEN
        EXECUTE format('CREATE INDEX entry_said ON sessiontree.entry USING gin (said %s.gin_trgm_ops)', place);
    END IF;
END $$;
CREATE INDEX entry_unsaid ON sessiontree.entry (session) WHERE said IS NULL;
"""

MIGRATIONS = (_TABLES, _SEARCH_INDEX)
"""The steps that make the schema, in order. Never change one: add another."""


def ensure_schema(connection: Connection, where: str) -> None:
    """Make the schema what this version needs. Raises `StoreError` where that cannot be."""
    number = _count_migrations(connection)
    if number < len(MIGRATIONS):
        try:
            number = _migrate(connection, where)
        except get_driver_error() as error:
            if getattr(error, "sqlstate", None) == "42501":
                raise StoreError(
                    where,
                    f"its tables are missing or of an older version, and this role may not make them: "
                    f"{format_driver_error(error)}",
                ) from error
            raise
    if number > len(MIGRATIONS):
        raise StoreError(where, "its tables were made by a newer version of sessiontree")


def _count_migrations(connection: Connection) -> int:
    """How many steps were made."""
    # Asked of the catalog itself: a name that was looked up before is remembered as missing.
    there = connection.execute("SELECT FROM pg_tables WHERE schemaname = 'sessiontree' AND tablename = 'step'")
    if there.fetchone() is None:
        return 0
    row = connection.execute("SELECT coalesce(max(number), 0) FROM sessiontree.step").fetchone()
    return 0 if row is None else row[0]


def _migrate(connection: Connection, where: str) -> int:
    with connection.transaction():
        row = connection.execute("SHOW server_encoding").fetchone()
        if row is None or row[0] != "UTF8":
            raise StoreError(where, "its encoding is not UTF8")
        _lock_schema(connection)
        number = _count_migrations(connection)
        if number == 0:
            connection.execute("CREATE SCHEMA IF NOT EXISTS sessiontree")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS sessiontree.step"
                " (number int PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())"
            )
        for step in range(number, len(MIGRATIONS)):
            connection.execute(MIGRATIONS[step].encode())
            connection.execute("INSERT INTO sessiontree.step (number) VALUES (%s)", (step + 1,))
        return max(number, len(MIGRATIONS))


def _lock_schema(connection: Connection) -> None:
    """Wait for those who change the schema now. Where there are no such locks, the second of two fails."""
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK_KEY,))
    except get_driver_error() as error:
        if not is_unsupported(error):
            raise
