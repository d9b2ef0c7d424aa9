"""Change `config.toml` as text. Comments and everything else stay unchanged.

The new text is parsed before it is written. If it does not mean exactly the old configuration with this change, the
file is not touched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from sessiontree.config import ConfigError, build_config, load_config, normalize_mcp_name, parse_toml
from sessiontree.home import CONFIG_NAME, get_home
from sessiontree.regular_file import read_regular_file
from sessiontree.store.file_operations import make_private_directory, write_private

_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]#]+?)\s*\]\]?\s*(#.*)?")


def add_mcp_server(name: str, values: dict[str, Any]) -> str:
    """Add an MCP server to `config.toml`, and return the path of the file. Raises `ConfigError`."""
    path, text, before = _read()
    after = _copy(before)
    servers = after.setdefault("mcp", {}).setdefault("servers", {})
    for other in servers:
        if normalize_mcp_name(other) == normalize_mcp_name(name):
            raise ConfigError(path, f"mcp.servers.{other}", "exists already; remove it first")
    servers[name] = values
    lines = [f"[mcp.servers.{_quote(name)}]", *(f"{key} = {_format(value)}" for key, value in values.items())]
    _write(path, f"{text.rstrip()}\n\n".lstrip("\n") + "\n".join(lines) + "\n", after)
    return path


def remove_mcp_server(name: str) -> str:
    """Remove an MCP server from `config.toml`, and return the path of the file. Raises `ConfigError`."""
    path, text, before = _read()
    after = _copy(before)
    servers = after.get("mcp", {}).get("servers", {})
    if name not in servers:
        raise ConfigError(path, f"mcp.servers.{name}", f"no such server; servers: {', '.join(servers) or 'none'}")
    del servers[name]
    own = {f"mcp.servers.{name}", f"mcp.servers.{_quote(name)}"}
    kept: list[str] = []
    is_inside = False
    for line in text.splitlines(keepends=True):
        header = _HEADER.fullmatch(line.rstrip("\n"))
        if header is not None:
            is_inside = any(header[1] == table or header[1].startswith(f"{table}.") for table in own)
        if not is_inside:
            kept.append(line)
    _write(path, "".join(kept), after)
    return path


def set_setting(key: Sequence[str], value: Any) -> str:
    """Set one setting of `config.toml`, such as `("files", "snapshots")`, and return the path of the file.

    Raises `ConfigError`.
    """
    path, text, before = _read()
    after = _copy(before)
    *tables, name = key
    table = after
    for part in tables:
        table = table.setdefault(part, {})
    table[name] = value
    line = f"{_format_key(name)} = {_format(value)}\n"
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    header = ".".join(map(_format_key, tables))
    start, end = _find_table(lines, tables)
    if start is None:
        lines += ["\n"] * bool(lines) + [f"[{header}]\n", line]
    else:
        assigned = re.compile(rf"\s*(?:{re.escape(name)}|{re.escape(_quote(name))})\s*=")
        at = next((row for row in range(start, end) if assigned.match(lines[row])), None)
        if at is None:
            lines.insert(end, line)
        else:
            comment = re.search(r"\s+#[^\"'\]]*$", lines[at].rstrip("\n"))
            lines[at] = line if comment is None else f"{line.rstrip()}{comment[0]}\n"
    changed = "".join(lines)
    build_config(path, parse_toml(path, changed.encode()))
    _write(path, changed, after, ".".join(key))
    return path


def _find_table(lines: Sequence[str], tables: Sequence[str]) -> tuple[int | None, int]:
    """Return the first line of a table after its header, `None` if there is none, and the line after its last one."""
    names = {".".join(map(_format_key, tables)), ".".join(map(_quote, tables))}
    start: int | None = None if tables else 0
    end = len(lines)
    for row, line in enumerate(lines):
        header = _HEADER.fullmatch(line.rstrip("\n"))
        if header is None:
            continue
        if start is not None:
            end = row
            break
        if header[1] in names:
            start = row + 1
    while start is not None and end > start and not lines[end - 1].strip():
        end -= 1  # blank lines stay before the next header
    return start, end


def _read() -> tuple[str, str, dict[str, Any]]:
    load_config()  # an invalid file is reported, and not made worse
    path = os.path.join(get_home(), CONFIG_NAME)
    try:
        raw = read_regular_file(path)
    except FileNotFoundError:
        return path, "", {}
    return path, raw.decode(), parse_toml(path, raw)


def _write(path: str, text: str, expected: dict[str, Any], key: str = "mcp.servers") -> None:
    found = parse_toml(path, text.encode())
    if _drop_empty(found) != _drop_empty(expected):
        raise ConfigError(path, key, "cannot be changed without changing other settings; edit it by hand")
    make_private_directory(os.path.dirname(path))
    write_private(os.path.realpath(path), text.encode())  # a link, such as to a folder of dotfiles, stays one


def _drop_empty(table: Any) -> Any:
    """Return the tables without empty ones: removing the last server may remove the table of all."""
    if not isinstance(table, dict):
        return table
    inner: dict[str, Any] = {key: _drop_empty(value) for key, value in table.items()}  # pyright: ignore[reportUnknownVariableType]
    return {key: value for key, value in inner.items() if value != {}}


def _copy(table: dict[str, Any]) -> dict[str, Any]:
    from copy import deepcopy

    return deepcopy(table)


def _quote(text: str) -> str:
    """Return a TOML string. It is a JSON string, except for one character."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


def _format_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _quote(key)


def _format(value: Any) -> str:
    if isinstance(value, dict):
        items = ", ".join(f"{_quote(key)} = {_format(item)}" for key, item in value.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return f"{{ {items} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_format, value))}]"  # pyright: ignore[reportUnknownArgumentType]
    return _quote(value) if isinstance(value, str) else msgspec.json.encode(value).decode()
