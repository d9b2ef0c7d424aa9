"""Records the rows of a database that make one conversation, which are its original."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator

from sessiontree.core.entries import JsonObject
from sessiontree.interop.base import ForeignFile


class RowRecorder:
    """Reads rows like the file does, and remembers each of them once."""

    def __init__(self, file: ForeignFile) -> None:
        self._file = file
        self._rows: dict[str, dict[str, None]] = {}

    def iter_rows(self, table: str, **equal: str | int) -> Iterator[JsonObject]:
        for row in self._file.iter_rows(table, **equal):
            text = json.dumps(row, ensure_ascii=False, default=_encode_blob)
            self._rows.setdefault(table, {})[text] = None
            yield row

    def dump(self, table: str, row: JsonObject) -> bytes:
        """Return all rows as JSON, by table. `row` is the one that was read before, of `table`."""
        first = json.dumps(row, ensure_ascii=False, default=_encode_blob)
        tables = {table: {first: None}, **{name: rows for name, rows in self._rows.items() if name != table}}
        text = ",".join(f"{json.dumps(name)}:[{','.join(rows)}]" for name, rows in tables.items())
        return f"{{{text}}}".encode("utf-8", "surrogatepass")


def _encode_blob(value: object) -> str:
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)
