"""The tables and functions in the PostgreSQL schema `sessiontree`, their migrations, and the statements of the store.

Migrations are numbered, and a released one never changes. Several processes may start at once: the one that holds the
lock runs the missing migrations in one transaction, and the others find them done.

Sessions are append-only. Lines are written by the functions `append`, `append_and_read`, `share`, `leave` and `settle`,
which only add at the end of a session. A role that may call them, but not write to the tables, cannot change existing
entries.

Nothing in an append locks more than its session: sessions commit together. So it sends no NOTIFY, for which the server
lets one transaction commit at a time; waiters poll.

Advisory locks, BRIN indexes and `pg_trgm` are optional: servers without them work, more slowly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessiontree.errors import StoreError
from sessiontree.store.postgres.driver import format_driver_error, get_driver_error, is_unsupported

if TYPE_CHECKING:
    from sessiontree.store.postgres.driver import Connection

SCHEMA_LOCK_KEY = 0x73_74_72_65_65
"""The key of the advisory lock for migrations."""

_TABLES = """
CREATE TABLE sessiontree.session (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL,
    size bigint NOT NULL DEFAULT 0,                -- bytes of all lines with their newlines
    tail bytea NOT NULL DEFAULT '',                -- the unfinished last line of a copied file
    current boolean NOT NULL DEFAULT true,         -- false: a backup, kept when the session was rewritten
    archived boolean NOT NULL DEFAULT false,
    deleted timestamptz,
    modified timestamptz NOT NULL DEFAULT now(),
    created text NOT NULL DEFAULT '',              -- from the header
    cwd text NOT NULL DEFAULT '',
    parent_session text,
    older boolean NOT NULL DEFAULT false,          -- an older dialect: most columns of its lines are empty
    told boolean NOT NULL DEFAULT true,            -- the columns below are correct; if not, the session is opened
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

-- No foreign keys: only `append` writes lines, and it has the session's row locked.
CREATE TABLE sessiontree.entry (
    session bigint NOT NULL,
    position bigint NOT NULL,                      -- where the line starts, in bytes
    line bytea NOT NULL,
    id text, parent text, type text, role text, branch text,
    moment bigint NOT NULL DEFAULT 0,              -- milliseconds since the epoch
    said text,                                     -- folded text; null: too long, read the line instead
    batch uuid,                                    -- on the first line of an append: the key of the append
    PRIMARY KEY (session, position)
);
CREATE INDEX entry_id ON sessiontree.entry (session, id);
DO $$
BEGIN
    CREATE INDEX entry_moment ON sessiontree.entry USING brin (moment);
EXCEPTION WHEN feature_not_supported OR undefined_object THEN
    RAISE NOTICE 'BRIN indexes are not supported: searching by time reads every line';
END $$;

-- Ranges of a session that are lines of another one, as the start of a fork.
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

-- Unfinished last lines that were removed before an append.
CREATE TABLE sessiontree.torn (
    session bigint NOT NULL,
    position bigint NOT NULL,
    bytes bytea NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
);

CREATE FUNCTION sessiontree.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'sessions are append-only' USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER session_only_grows BEFORE UPDATE ON sessiontree.session FOR EACH ROW
    WHEN (NEW.size < OLD.size OR NEW.key <> OLD.key OR NEW.id <> OLD.id) EXECUTE FUNCTION sessiontree.refuse();
CREATE TRIGGER entry_stays BEFORE UPDATE ON sessiontree.entry FOR EACH ROW EXECUTE FUNCTION sessiontree.refuse();

-- Returns the new end of the session; null, with nothing written, if it does not end at `after`.
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
        NULL;  -- listeners poll
    END;
    RETURN grown;
END $$;

-- The same for lines that other sessions already have: `sizes` bytes of each from `begins` on. The lock makes a
-- concurrent purge of a lender wait until the borrower exists.
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

-- Keeps the unfinished last line of a copied file; false if the session does not end at `after`.
CREATE FUNCTION sessiontree.leave(which bigint, after bigint, rest bytea)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    UPDATE sessiontree.session AS s SET tail = rest, told = false
    WHERE s.key = which AND s.size = after AND s.tail IN ('', rest) AND s.current AND s.deleted IS NULL;
    RETURN FOUND;
END $$;

-- Turns the unfinished last line of a copied file into a line, or moves it to `torn`, before something is appended.
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
        RAISE NOTICE 'pg_trgm is not available: searching reads every text';
    END;
    SELECT quote_ident(n.nspname) INTO place FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
    WHERE e.extname = 'pg_trgm';
    IF place IS NOT NULL THEN
        EXECUTE format('CREATE INDEX entry_said ON sessiontree.entry USING gin (said %s.gin_trgm_ops)', place);
    END IF;
END $$;
CREATE INDEX entry_unsaid ON sessiontree.entry (session) WHERE said IS NULL;
"""

_FAIR_APPENDS = """
-- The branch that is current after the line; null if that depends on the lines before, or if the line moves more heads.
ALTER TABLE sessiontree.entry ADD COLUMN current text;

-- Every append changes `modified` and the row: without an index on it, and with room on the page, updates are HOT.
DROP INDEX sessiontree.session_modified;
ALTER TABLE sessiontree.session SET (fillfactor = 50);

-- The newest worker that may write for a scope: see `fence`.
CREATE TABLE sessiontree.fence (
    session bigint NOT NULL,
    scope text NOT NULL,
    token bigint NOT NULL,
    PRIMARY KEY (session, scope)
);

-- Waits until this transaction is the one that writes to the session. The queue is fair; waiting for the row is not.
DO $$
DECLARE
    wait text := 'SELECT pg_advisory_xact_lock(1937007973, (which % 2147483647)::int)';
BEGIN
    IF to_regprocedure('pg_catalog.pg_advisory_xact_lock(int, int)') IS NULL THEN
        wait := 'SELECT';
    END IF;
    EXECUTE format('CREATE FUNCTION sessiontree.queue(which bigint) RETURNS void LANGUAGE sql AS %L', wait);
END $$;

-- Finds the position where lines that were built for position `after` can be appended: `after` itself, or the end of
-- the session if the lines in between are on other branches and leave the same branch current. Null if there is none.
-- If the lines are there already, `done` is where they end.
CREATE FUNCTION sessiontree.find_place(
    which bigint, after bigint, ids text[], on_branches text[], key_of_batch uuid, gain jsonb, bytes bigint,
    OUT place bigint, OUT done bigint
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT s.size INTO place FROM sessiontree.session AS s
    WHERE s.key = which AND s.size >= after AND s.tail = '' AND s.current AND s.deleted IS NULL;
    IF place IS NULL OR place = after THEN
        RETURN;
    END IF;
    SELECT e.position + bytes INTO done FROM sessiontree.entry AS e
    WHERE e.session = which AND e.position >= after AND e.batch = key_of_batch LIMIT 1;
    IF done IS NULL AND (NOT gain ? 'leaves' OR place - after > 4194304 OR EXISTS (
        SELECT FROM sessiontree.entry AS e WHERE e.session = which AND e.position >= after AND (
            e.current IS DISTINCT FROM gain->>'leaves' OR e.branch IS NULL OR e.branch = ANY (on_branches)
            OR e.id = ANY (ids))
    )) THEN
        place := NULL;
    END IF;
END $$;

-- Returns the end of the appended lines; null, with nothing written, if the session has grown since `after` by lines
-- that matter to these: see `find_place`. `gain` has what changes in the summary, and two options: `leaves`, the branch
-- that is current after each of the lines, and `fence`, the scope and the token of the worker that writes.
CREATE OR REPLACE FUNCTION sessiontree.append(
    which bigint, after bigint, lines bytea[], ids text[], parents text[], types text[], roles text[],
    on_branches text[], moments bigint[], texts text[], key_of_batch uuid, gain jsonb
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    bytes bigint := 0;
    place bigint;
    done bigint;
    grown bigint;
    line bytea;
    names text[];
    record boolean := gain ? 'hidden';
BEGIN
    FOREACH line IN ARRAY lines LOOP
        bytes := bytes + octet_length(line) + 1;
    END LOOP;
    IF record OR gain->'branches' <> '[]' THEN
        names := ARRAY(SELECT jsonb_array_elements_text(gain->'branches'));
    END IF;
    -- Look before waiting: what is refused must not hold up the writers that are not.
    SELECT s.size INTO place FROM sessiontree.session AS s WHERE s.key = which;
    LOOP
        IF place IS DISTINCT FROM after OR grown IS NOT NULL THEN
            SELECT f.place, f.done INTO place, done
            FROM sessiontree.find_place(which, after, ids, on_branches, key_of_batch, gain, bytes) AS f;
            IF place IS NULL OR done IS NOT NULL THEN
                RETURN done;
            END IF;
        END IF;
        IF grown IS NULL THEN
            PERFORM sessiontree.queue(which);
        END IF;
        UPDATE sessiontree.session AS s SET
            size = s.size + bytes,
            modified = clock_timestamp(),
            told = s.told AND (gain->>'told')::boolean,
            entries = s.entries + (gain->>'entries')::bigint,
            messages = s.messages + (gain->>'messages')::bigint,
            cost = s.cost + (gain->>'cost')::double precision,
            first_message = coalesce(s.first_message, gain->>'first_message'),
            name = CASE WHEN (gain->>'named')::boolean THEN gain->>'name' ELSE s.name END,
            branches = CASE WHEN record THEN names WHEN names IS NULL OR names <@ s.branches THEN s.branches
                ELSE s.branches || ARRAY(SELECT added FROM unnest(names) AS added WHERE added <> ALL (s.branches)) END,
            hidden = CASE WHEN record THEN ARRAY(SELECT jsonb_array_elements_text(gain->'hidden')) ELSE s.hidden END,
            branch = coalesce(gain->>'current', s.branch)
        WHERE s.key = which AND s.size = place AND s.tail = '' AND s.current AND s.deleted IS NULL
        RETURNING s.size INTO grown;
        EXIT WHEN FOUND;
        grown := 0;  -- others wrote while this one waited: look again
    END LOOP;
    -- The row is locked now, so a fence that is raised later comes after this append.
    IF gain ? 'fence' AND EXISTS (
        SELECT FROM sessiontree.fence AS f
        WHERE f.session = which AND f.scope = gain->'fence'->>0 AND f.token > (gain->'fence'->>1)::bigint
    ) THEN
        RAISE EXCEPTION 'another worker writes for % now', gain->'fence'->>0 USING ERRCODE = 'ST001';
    END IF;
    IF array_length(lines, 1) = 1 THEN
        INSERT INTO sessiontree.entry
            (session, position, line, id, parent, type, role, branch, moment, said, batch, current)
        VALUES (which, place, lines[1], ids[1], parents[1], types[1], roles[1], on_branches[1], moments[1], texts[1],
            key_of_batch, gain->>'leaves');
        RETURN grown;
    END IF;
    INSERT INTO sessiontree.entry
        (session, position, line, id, parent, type, role, branch, moment, said, batch, current)
    SELECT which,
        place + coalesce(sum(octet_length(l.line) + 1)
            OVER (ORDER BY l.number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0),
        l.line, l.id, l.parent, l.type, l.role, l.branch, l.moment, l.said,
        CASE WHEN l.number = 1 THEN key_of_batch END, gain->>'leaves'
    FROM unnest(lines, ids, parents, types, roles, on_branches, moments, texts) WITH ORDINALITY
        AS l(line, id, parent, type, role, branch, moment, said, number);
    RETURN grown;
END $$;

-- From now on, only workers with this token or a higher one may append for the scope. An append that is under way is
-- done before this returns.
CREATE FUNCTION sessiontree.raise_fence(which bigint, wanted_scope text, wanted_token bigint)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    raised bigint;
BEGIN
    PERFORM sessiontree.queue(which);
    PERFORM FROM sessiontree.session AS s WHERE s.key = which FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO sessiontree.fence AS f VALUES (which, wanted_scope, wanted_token)
    ON CONFLICT (session, scope) DO UPDATE SET token = greatest(f.token, wanted_token)
    RETURNING f.token INTO raised;
    RETURN raised;
END $$;

-- Whoever may append may do this too.
REVOKE ALL ON FUNCTION sessiontree.raise_fence, sessiontree.queue, sessiontree.find_place FROM PUBLIC;
DO $$
DECLARE
    writer text;
BEGIN
    FOR writer IN
        SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS a
        WHERE p.oid = 'sessiontree.append'::regproc AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION sessiontree.raise_fence TO %s', writer);
    END LOOP;
END $$;
"""

_APPEND_AND_READ = """
-- Does `append`, and returns in the same transaction all lines from `after` on, if lines of others come first and they
-- are not too long: the writer would read them next.
CREATE FUNCTION sessiontree.append_and_read(
    which bigint, after bigint, lines bytea[], ids text[], parents text[], types text[], roles text[],
    on_branches text[], moments bigint[], texts text[], key_of_batch uuid, gain jsonb,
    OUT grown bigint, OUT appended bytea[]
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    bytes bigint := 0;
    line bytea;
BEGIN
    grown := sessiontree.append(
        which, after, lines, ids, parents, types, roles, on_branches, moments, texts, key_of_batch, gain);
    FOREACH line IN ARRAY lines LOOP
        bytes := bytes + octet_length(line) + 1;
    END LOOP;
    IF grown - bytes > after AND grown - after <= 262144 THEN
        appended := ARRAY(
            SELECT e.line FROM sessiontree.entry AS e
            WHERE e.session = which AND e.position >= after AND e.position < grown ORDER BY e.position);
    END IF;
END $$;

-- Whoever may append may do this too.
REVOKE ALL ON FUNCTION sessiontree.append_and_read FROM PUBLIC;
DO $$
DECLARE
    writer text;
BEGIN
    FOR writer IN
        SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS a
        WHERE p.oid = 'sessiontree.append'::regproc AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION sessiontree.append_and_read TO %s', writer);
    END LOOP;
END $$;
"""

_CREATORS = """
-- Who created a session. A role that may update what listings show, but does not own the tables, may do so only for
-- the sessions that it created. The functions that append run as the owner.
ALTER TABLE sessiontree.session ADD COLUMN creator name NOT NULL DEFAULT current_user;
CREATE FUNCTION sessiontree.refuse_stranger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT pg_has_role((SELECT c.relowner FROM pg_catalog.pg_class AS c WHERE c.oid = TG_RELID), 'USAGE') THEN
        RAISE EXCEPTION 'another role created the session' USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER session_of_creator BEFORE UPDATE ON sessiontree.session FOR EACH ROW
    WHEN (current_user <> OLD.creator) EXECUTE FUNCTION sessiontree.refuse_stranger();
"""

MIGRATIONS = (_TABLES, _SEARCH_INDEX, _FAIR_APPENDS, _APPEND_AND_READ, _CREATORS)
"""The migrations in order. Never change one; add another."""


def ensure_schema(connection: Connection, where: str) -> None:
    """Run the migrations that the database lacks. Raises `StoreError` if this role may not, or the schema is newer."""
    number = _count_migrations(connection)
    if number < len(MIGRATIONS):
        try:
            number = _migrate(connection, where)
        except get_driver_error() as error:
            if getattr(error, "sqlstate", None) == "42501":
                raise StoreError(
                    where,
                    "the tables are missing or out of date, and this role may not create them: "
                    f"{format_driver_error(error)}",
                ) from error
            raise
    if number > len(MIGRATIONS):
        raise StoreError(where, "the tables were created by a newer version of sessiontree")


def has_current_schema(connection: Connection) -> bool:
    """Return whether the database has exactly the migrations of this program."""
    return _count_migrations(connection) == len(MIGRATIONS)


def _count_migrations(connection: Connection) -> int:
    """Return how many migrations were run."""
    # Query the catalog: the server caches that a table name is missing.
    there = connection.execute("SELECT FROM pg_tables WHERE schemaname = 'sessiontree' AND tablename = 'step'")
    if there.fetchone() is None:
        return 0
    row = connection.execute("SELECT coalesce(max(number), 0) FROM sessiontree.step").fetchone()
    return 0 if row is None else row[0]


def _migrate(connection: Connection, where: str) -> int:
    with connection.transaction():
        row = connection.execute("SHOW server_encoding").fetchone()
        if row is None or row[0] != "UTF8":
            raise StoreError(where, "the encoding of the database is not UTF8")
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
    """Wait for other processes that run migrations. Without advisory locks, the second of two fails."""
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK_KEY,))
    except get_driver_error() as error:
        if not is_unsupported(error):
            raise


# Statements of the store

SELECT_SESSION = """
SELECT key, size, tail, EXISTS (SELECT FROM sessiontree.shared WHERE session = key)
FROM sessiontree.session WHERE id = %s AND current AND deleted IS NULL"""
SELECT_SHARED = "SELECT position, source, start, size FROM sessiontree.shared WHERE session = %s ORDER BY position"
# The line that contains the first position is read from its start.
_SELECT_LINES = """
SELECT l.position, {columns}
FROM sessiontree.session AS s LEFT JOIN LATERAL (
    SELECT e.position + p.shift AS position, e.line, e.id, e.parent
    FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
            AS p(session, low, high, least, shift),
        LATERAL (
            SELECT position, line, id, parent FROM sessiontree.entry
            WHERE session = p.session AND position < p.high AND position >= greatest(p.least, coalesce((
                SELECT CASE WHEN position + octet_length(line) > p.low THEN position ELSE p.low END
                FROM sessiontree.entry WHERE session = p.session AND position <= p.low
                ORDER BY position DESC LIMIT 1), p.low))
            ORDER BY position
        ) AS e
) AS l ON true
WHERE s.key = %s AND s.current AND s.deleted IS NULL ORDER BY l.position"""
SELECT_LINES = _SELECT_LINES.format(columns="l.line, s.size, s.tail")
SELECT_LINKS = _SELECT_LINES.format(columns="l.id, l.parent")
FIND_ENTRY = """
SELECT e.session, e.position, e.parent FROM sessiontree.entry AS e
WHERE e.session = ANY(%(rows)s) AND e.id = {id} AND (e.session = %(key)s OR e.position < (
    SELECT s.start + s.size FROM sessiontree.shared AS s
    WHERE s.session = %(key)s AND s.source = e.session AND s.start <= e.position ORDER BY s.start DESC LIMIT 1))
ORDER BY e.session = %(key)s DESC, e.position DESC LIMIT 1"""
FIND_ANCESTORS = f"""
WITH RECURSIVE up AS (
    (SELECT f.*, 1 AS number FROM ({FIND_ENTRY.format(id="%(id)s")}) AS f)
    UNION ALL
    SELECT f.*, up.number + 1 FROM up CROSS JOIN LATERAL ({FIND_ENTRY.format(id="up.parent")}) AS f
    WHERE up.number < %(count)s
)
SELECT up.session, up.position, e.line FROM up
JOIN sessiontree.entry AS e ON e.session = up.session AND e.position = up.position ORDER BY up.number"""
FIND_ENTRIES = f"""
SELECT f.session, f.position, e.line, wanted.id FROM unnest(%(ids)s::text[]) AS wanted (id)
CROSS JOIN LATERAL ({FIND_ENTRY.format(id="wanted.id")}) AS f
JOIN sessiontree.entry AS e ON e.session = f.session AND e.position = f.position"""
INSERT_SESSION = """
INSERT INTO sessiontree.session (id, created, cwd, parent_session, older, told, name)
VALUES (%s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (id) WHERE current DO NOTHING RETURNING key"""
APPEND_LINES = """
SELECT * FROM sessiontree.append_and_read(%s, %s, %s::bytea[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::text[], %s::bigint[], %s::text[], %s::uuid, %s::jsonb)"""
SHARE_LINES = "SELECT sessiontree.share(%s, %s, %s::bigint[], %s::bigint[], %s::bigint[])"
FIND_CREATED = """
SELECT key, size, (SELECT batch FROM sessiontree.entry WHERE session = key AND position = 0), deleted IS NOT NULL
FROM sessiontree.session WHERE id = %s AND current"""
EXPLAIN_REFUSAL = """
SELECT current AND deleted IS NULL, size, tail,
    (SELECT batch FROM sessiontree.entry WHERE session = %s AND position = %s)
FROM sessiontree.session WHERE key = %s"""
LOCK_SESSION = """
SELECT size, tail FROM sessiontree.session WHERE key = %s AND current AND deleted IS NULL FOR UPDATE"""
RETIRE_SESSION = "UPDATE sessiontree.session SET current = false WHERE key = %s"
RESOLVE_TAIL = "SELECT sessiontree.settle(%s, %s, %s, %s, %s)"
RAISE_FENCE = "SELECT sessiontree.raise_fence(%s, %s, %s)"
SELECT_SIZES = (
    "SELECT key, size FROM sessiontree.session WHERE key = ANY(%s) AND current AND deleted IS NULL AND tail = ''"
)
WRITE_TAIL = "SELECT sessiontree.leave(%s, %s, %s)"
SELECT_MODIFIED = """
SELECT (extract(epoch FROM modified) * 1000000)::bigint,
    has_column_privilege('sessiontree.session', 'modified', 'UPDATE') AND (creator = current_user OR pg_has_role(
        (SELECT c.relowner FROM pg_catalog.pg_class AS c WHERE c.oid = 'sessiontree.session'::regclass), 'USAGE'))
FROM sessiontree.session WHERE id = %s AND current AND deleted IS NULL"""
BACKDATE_SESSION = """
UPDATE sessiontree.session SET modified = timestamptz 'epoch' + %s * interval '1 microsecond'
WHERE id = %s AND current AND deleted IS NULL"""
