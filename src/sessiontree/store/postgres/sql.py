"""The statements of the store, and nothing else. What they work on is in `schema`."""

from __future__ import annotations

SELECT_SESSION = """
SELECT key, size, tail, EXISTS (SELECT FROM sessiontree.shared WHERE session = key)
FROM sessiontree.session WHERE id = %s AND current AND deleted IS NULL"""
SELECT_SHARED = "SELECT position, source, start, size FROM sessiontree.shared WHERE session = %s ORDER BY position"
# The line that goes on at the first place is read from its beginning.
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
INSERT_SESSION = """
INSERT INTO sessiontree.session (id, created, cwd, parent_session, older, told, name)
VALUES (%s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (id) WHERE current DO NOTHING RETURNING key"""
APPEND_LINES = """
SELECT sessiontree.append(%s, %s, %s::bytea[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::bigint[], %s::text[], %s::uuid, %s::jsonb)"""
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
WRITE_TAIL = "SELECT sessiontree.leave(%s, %s, %s)"
SELECT_MODIFIED = """
SELECT (extract(epoch FROM modified) * 1000000)::bigint,
    has_column_privilege('sessiontree.session', 'modified', 'UPDATE')
FROM sessiontree.session WHERE id = %s AND current AND deleted IS NULL"""
BACKDATE_SESSION = """
UPDATE sessiontree.session SET modified = timestamptz 'epoch' + %s * interval '1 microsecond'
WHERE id = %s AND current AND deleted IS NULL"""
