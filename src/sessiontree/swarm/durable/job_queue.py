"""Jobs in the work database: sending, taking, storing answers, and ending. And the workers that take them.

A job belongs to the worker named in its row. It is free again when that worker has released it or is not alive, however
long ago that was: a worker is alive while its row is there and its lease has not expired. All times are taken from the
database's clock.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from sessiontree.home import get_home
from sessiontree.swarm.durable.database import JobReport, JobRequest, WorkConnection, WorkDatabase, encode

LEASE = 60.0
"""Seconds without a renewal after which a worker counts as dead. A failover of the database takes less."""
MAX_CRASHES = 10
"""How often a job is run again after its worker died, because the job itself may cause the crash."""
MAX_ATTEMPTS = 1 << 16
"""More attempts than any job has."""

QUEUED, RUNNING, DONE, CANCELLED, ABANDONED = "queued", "running", "done", "cancelled", "abandoned"
ACTIVE_STATES = frozenset({QUEUED, RUNNING})
"""States of unfinished jobs."""

_IS_ALIVE = "w.seen >= {now} - w.lease"
_IS_ORPHAN = f"NOT EXISTS (SELECT 1 FROM {{t}}worker AS w WHERE w.id = j.worker AND {_IS_ALIVE})"
_HELD = "SELECT id, state FROM {t}job WHERE worker = :worker"
_WAITING = (
    f"SELECT id FROM {{t}}job AS j WHERE (state = 'queued' OR (state = 'running' AND {_IS_ORPHAN}))"
    " ORDER BY created LIMIT :free"
)
_HAS_PREFIX = "substr(j.id, 1, length(:prefix)) = :prefix"


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """A live worker."""

    id: str
    host: str
    home: str
    """Identifies the home folder across machines; see `build_home_id`."""
    concurrency: int
    """The most agents that it runs at the same time."""
    work: tuple[str, ...] = ()
    """Ids of its running jobs."""


class JobStatus(NamedTuple):
    """The state of a job."""

    id: str
    state: str
    report: str | None
    runner: str | None
    """The worker that ran it last."""


class TakenJob(NamedTuple):
    """A job that a worker has taken."""

    id: str
    request: str
    token: int
    """Higher than that of any earlier worker of the same agent."""


class WorkerRound(NamedTuple):
    """What a worker learns in one transaction."""

    held: dict[str, str]
    """The states of the jobs that it has, by id."""
    taken: Sequence[TakenJob]


def build_home_id() -> str:
    """Return an id for the home folder of this process that is unique across machines."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            machine = file.read().strip()
    except OSError:
        machine = socket.gethostname()
    return f"{machine} {os.path.realpath(get_home())}"


class JobQueue:
    """The jobs and the workers of a work database. All methods raise `StoreError`."""

    def __init__(self, database: WorkDatabase) -> None:
        self.database = database

    # For the process that runs a swarm

    def submit(self, id: str, request: JobRequest) -> None:
        """Send a job. A repeated call has no effect."""
        self.database.execute(
            "INSERT INTO {t}job (id, request, created) VALUES (:id, :request, {now}) ON CONFLICT (id) DO NOTHING",
            id=id,
            request=encode(request),
        )

    def find_active(self, prefix: str) -> str | None:
        """Return the id of an unfinished job whose id has this prefix."""
        found = self.database.query(
            f"SELECT id FROM {{t}}job AS j WHERE {_HAS_PREFIX} AND state IN ('queued', 'running') LIMIT 1",
            prefix=prefix,
        )
        return found[0][0] if found else None

    def get_statuses(self, ids: Sequence[str]) -> list[JobStatus]:
        rows = self.database.query(
            "SELECT id, state, report, runner FROM {t}job WHERE id IN ({ids})", ids=_encode_list(ids)
        )
        return [JobStatus(*row) for row in rows]

    def cancel(self, id: str) -> None:
        self.database.execute(
            "UPDATE {t}job SET state = 'cancelled' WHERE id = :id AND state IN ('queued', 'running')", id=id
        )

    def is_held(self, prefix: str) -> bool:
        """Return whether a live worker has a job whose id has this prefix."""
        return bool(
            self.database.query(
                f"SELECT 1 FROM {{t}}job AS j JOIN {{t}}worker AS w ON w.id = j.worker"
                f" WHERE {_HAS_PREFIX} AND {_IS_ALIVE} LIMIT 1",
                prefix=prefix,
            )
        )

    def delete(self, id: str) -> None:
        """Delete a job and its answers."""

        def work(connection: WorkConnection) -> None:
            connection.execute("DELETE FROM {t}answer WHERE job = :id", id=id)
            connection.execute("DELETE FROM {t}job WHERE id = :id", id=id)

        self.database.run(work)

    # For workers

    def register(self, worker: WorkerInfo, lease: float) -> None:
        """Add a worker. Workers that died long ago are removed."""

        def work(connection: WorkConnection) -> None:
            connection.execute(
                "INSERT INTO {t}worker VALUES (:id, :host, :home, :concurrency, {now}, :lease)"
                " ON CONFLICT (id) DO UPDATE SET seen = {now}",
                id=worker.id,
                host=worker.host,
                home=worker.home,
                concurrency=worker.concurrency,
                lease=lease,
            )
            connection.execute("DELETE FROM {t}worker WHERE seen < {now} - lease - 3600")

        self.database.run(work)

    def retire(self, id: str) -> None:
        """Remove a worker. Other workers get its jobs at once."""
        self.database.execute("DELETE FROM {t}worker WHERE id = :id", id=id)

    def do_round(self, worker: str, *, renew: bool, free: int) -> WorkerRound | None:
        """Renew a worker's lease, return the state of its jobs, and take up to `free` more, in one transaction.

        Return `None` if the worker counts as dead.
        """

        def work(connection: WorkConnection) -> WorkerRound | None:
            if renew and not connection.execute("UPDATE {t}worker SET seen = {now} WHERE id = :worker", worker=worker):
                return None
            held = connection.query(_HELD, worker=worker)
            return WorkerRound(dict(held), self._take(connection, worker, free) if free > 0 else ())

        if self.database.file is not None and not renew and not (free > 0 and self.database.query(_WAITING, free=1)):
            return WorkerRound(dict(self.database.query(_HELD, worker=worker)), ())  # a file has one writer at a time
        return self.database.run(work)

    def _take(self, connection: WorkConnection, worker: str, free: int) -> list[TakenJob]:
        rows = connection.query(
            "UPDATE {t}job SET state = 'running', worker = :worker, runner = :worker, attempt = attempt + 1,"
            " crashes = crashes + CASE WHEN state = 'running' THEN 1 ELSE 0 END"
            f" WHERE id IN ({_WAITING} {{skip}})"
            " RETURNING id, request, created, attempt, crashes",
            worker=worker,
            free=free,
        )
        taken: list[TakenJob] = []
        for id, request, created, attempt, crashes in rows:
            if crashes > MAX_CRASHES:
                connection.execute("UPDATE {t}job SET state = 'abandoned', worker = NULL WHERE id = :id", id=id)
            else:
                taken.append(TakenJob(id, request, int(created * 1000) * MAX_ATTEMPTS + attempt))
        return taken

    def is_mine(self, id: str, worker: str) -> bool:
        """Return whether a worker still has a job."""
        return bool(
            self.database.query("SELECT 1 FROM {t}job WHERE id = :id AND worker = :worker", id=id, worker=worker)
        )

    def load_answers(self, id: str) -> dict[str, str]:
        return dict(self.database.query("SELECT key, value FROM {t}answer WHERE job = :id", id=id))

    def store_answer(self, id: str, worker: str, key: str, value: str) -> bool:
        """Store an answer of a model. Return false, with nothing stored, if the worker has lost the job."""

        def work(connection: WorkConnection) -> bool:
            if not connection.execute(
                "UPDATE {t}job SET runner = :worker WHERE id = :id AND worker = :worker", id=id, worker=worker
            ):
                return False
            connection.execute(
                "INSERT INTO {t}answer VALUES (:id, :key, :value) ON CONFLICT (job, key) DO NOTHING",
                id=id,
                key=key,
                value=value,
            )
            return True

        return self.database.run(work)

    def finish(self, id: str, worker: str, report: JobReport) -> None:
        """End a job, unless the worker has lost it."""
        self.database.execute(
            "UPDATE {t}job SET worker = NULL, report = :report,"
            " state = CASE WHEN state = 'running' THEN 'done' ELSE state END WHERE id = :id AND worker = :worker",
            id=id,
            worker=worker,
            report=encode(report),
        )

    def release(self, id: str, worker: str) -> None:
        """Leave a job to other workers."""
        self.database.execute(
            "UPDATE {t}job SET worker = NULL, state = CASE WHEN state = 'running' THEN 'queued' ELSE state END"
            " WHERE id = :id AND worker = :worker",
            id=id,
            worker=worker,
        )

    def list_workers(self) -> list[WorkerInfo]:
        """Return the live workers."""

        def work(connection: WorkConnection) -> list[WorkerInfo]:
            jobs: dict[str, list[str]] = {}
            for id, worker in connection.query("SELECT id, worker FROM {t}job WHERE worker IS NOT NULL ORDER BY id"):
                jobs.setdefault(worker, []).append(id)
            rows: list[Any] = connection.query(
                f"SELECT id, host, home, concurrency FROM {{t}}worker AS w WHERE {_IS_ALIVE} ORDER BY id"
            )
            return [
                WorkerInfo(id=id, host=host, home=home, concurrency=concurrency, work=tuple(jobs.get(id, ())))
                for id, host, home, concurrency in rows
            ]

        return self.database.run(work)


def _encode_list(values: Sequence[str]) -> str:
    return msgspec.json.encode(list(values)).decode()
