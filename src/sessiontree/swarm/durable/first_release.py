"""Jobs of version 0.1, which kept them in the tables of DBOS: they are taken over when the new tables are created.

Their answers that were stored but not written yet come along. The old tables stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sessiontree.errors import StoreError

if TYPE_CHECKING:
    from sessiontree.swarm.durable.database import WorkConnection, WorkDatabase  # cycle: only for type checkers


def check_workers(database: WorkDatabase, connection: WorkConnection) -> None:
    """Raise `StoreError` if workers of version 0.1 are running: they would run the same jobs."""
    if not has_table(database, connection, "sessiontree_worker"):
        return
    alive = connection.query(
        f"SELECT id FROM {_name(database, 'sessiontree_worker')} WHERE gone = 0 AND seen >= {{now}} - lease"
    )
    if alive:
        names = ", ".join(id for (id,) in alive)
        raise StoreError(database.display_name, f"workers of version 0.1 are running; stop them first: {names}")


def take_over(database: WorkDatabase, connection: WorkConnection) -> None:
    """Copy the unfinished jobs of version 0.1, and their answers."""
    if not has_table(database, connection, "workflow_status"):
        return
    inputs = "inputs" if has_table(database, connection, "workflow_input") else "s.inputs"
    join = f"JOIN {_name(database, 'workflow_input')} AS i ON i.workflow_uuid = s.workflow_uuid"
    jobs = connection.query(
        f"SELECT s.workflow_uuid, {'i.' if inputs == 'inputs' else ''}{inputs}, s.created_at"
        f" FROM {_name(database, 'workflow_status')} AS s {join if inputs == 'inputs' else ''}"
        " WHERE s.name = 'sessiontree.agent' AND s.status IN ('ENQUEUED', 'PENDING', 'DELAYED')"
    )
    for id, given, created in jobs:
        (request,) = msgspec.json.decode(given)["positionalArgs"]
        connection.execute(
            "INSERT INTO {t}job (id, request, created) VALUES (:id, :request, :created)",
            id=id,
            request=request,
            created=created / 1000,
        )
        outputs = connection.query(
            f"SELECT output FROM {_name(database, 'operation_outputs')}"
            " WHERE workflow_uuid = :id AND function_name = 'answer' AND output IS NOT NULL",
            id=id,
        )
        for (output,) in outputs:
            stored = msgspec.json.decode(output)
            connection.execute(
                "INSERT INTO {t}answer VALUES (:id, :key, :value) ON CONFLICT (job, key) DO NOTHING",
                id=id,
                key=stored["key"],
                value=stored["kept"],
            )


def has_table(database: WorkDatabase, connection: WorkConnection, name: str) -> bool:
    return database.find_table(connection, name, schema="dbos", prefix="")


def _name(database: WorkDatabase, table: str) -> str:
    return table if database.file is not None else f"dbos.{table}"
