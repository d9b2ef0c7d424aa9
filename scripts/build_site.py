"""Build the site from `docs/` and from reference pages that are generated: Python API, commands, REST routes.

The generated pages are not in `docs/`, so they cannot be out of date. `mkdocs.yml` has the navigation.
"""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import sessiontree
from sessiontree.cli.app import app as command_line
from sessiontree.server.app import build_openapi_document

PYTHON_PAGES = {
    "Sessions and branches": ("session", "core.tree", "core.operation_plans", "ops"),
    "Entries and messages": ("core.entries", "core.entry_text", "core.message_views", "core.messages"),
    "Context and conversion": (
        "core.compaction", "core.context", "core.context_explanation", "core.conversion_result", "convert",
    ),
    "Agents, tools and models": ("agent", "model"),
    "Hooks, extensions, commands": ("core.summary_prompts", "hooks", "extensions", "slash_commands"),
    "Comparison, experiments, swarms": ("branch_comparison", "swarm"),
    "Finding, exporting, repairing": ("library", "export", "format"),
    "Server and database": ("server", "store", "tui"),
    "Configuration and errors": ("config", "errors", "home"),
}  # fmt: skip
"""The pages, each with the packages and modules whose public names it shows."""
ROOT = Path(__file__).parents[1]
METHODS = ("get", "post", "put", "patch", "delete")


def main(action: str) -> int:
    """Copy the pages to `build/docs`, add the generated ones, and build or serve the site."""
    folder = ROOT / "build" / "docs"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    for path, text in generate_pages():
        page = folder / path
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
    return subprocess.run([sys.executable, "-m", "zensical", action, "--strict"], cwd=ROOT, check=False).returncode


def generate_pages() -> Iterator[tuple[str, str]]:
    for title, modules in PYTHON_PAGES.items():
        yield f"reference/python/{make_slug(title)}.md", format_python_page(title, modules)
    yield "reference/commands.md", format_commands()
    yield "reference/rest.md", format_routes()


def make_slug(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower())


# Python


def list_public_names(module: str) -> list[tuple[str, str]]:
    """Return the public names that a module, or the modules of a package, define, with their modules."""
    found: list[tuple[str, str]] = []
    for path, names in sessiontree._MODULES.items():
        if path.removeprefix("sessiontree.").startswith(module) and (
            path == f"sessiontree.{module}" or path.startswith(f"sessiontree.{module}.")
        ):
            found += [(path, name) for name in names]
    return found


def format_python_page(title: str, modules: tuple[str, ...]) -> str:
    parts = [
        f"# {title}",
        "",
        "The names of `import sessiontree as st` on this subject, generated from the source.",
        "",
    ]
    for module in modules:
        for path, name in list_public_names(module):
            parts += [f"::: {find_home(path, name)}", ""]
    return "\n".join(parts)


def find_home(path: str, name: str) -> str:
    """Return the dotted path where a name is defined: a package may only pass it on."""
    value = getattr(importlib.import_module(path), name)
    home = getattr(value, "__module__", path) if isinstance(value, type) or callable(value) else path
    return f"{home}.{name}" if getattr(importlib.import_module(home), name, None) is value else f"{path}.{name}"


# Commands


def format_commands() -> str:
    parts = ["# Commands", "", "Every command with its options, generated from the program.", ""]
    parts += ["[The command line](../cli.md) has examples of each, with their output.", ""]
    with click.Context(command_line, info_name="sessiontree") as context:
        for name in command_line.list_commands(context):
            command = command_line.get_command(context, name)
            if command is not None and not command.hidden:
                parts += format_command(command, name, context, "##")
    return "\n".join(parts)


def format_command(command: click.Command, name: str, parent: click.Context, level: str) -> Iterator[str]:
    with click.Context(command, info_name=name, parent=parent) as context:
        yield f"{level} {context.command_path.removeprefix('sessiontree ')}"
        yield ""
        yield from (format_help(command.help), "")
        yield from ("```text", " ".join([context.command_path, *command.collect_usage_pieces(context)]), "```", "")
        yield from format_options(command, context)
        yield from format_epilog(command.epilog)
        if isinstance(command, click.Group):
            for child in command.list_commands(context):
                found = command.get_command(context, child)
                if found is not None and not found.hidden:
                    yield from format_command(found, child, context, f"{level}#")


def format_help(text: str | None) -> str:
    return escape(re.sub(r"\s*\n(?!\n)\s*", " ", (text or "").replace("\b", "")).strip())


def format_options(command: click.Command, context: click.Context) -> Iterator[str]:
    """List options: a table of them does not fit on a phone."""
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if record is not None:
            yield f"- `{record[0]}`: {escape(' '.join(record[1].split()))}"
    yield ""


def format_epilog(text: str | None) -> Iterator[str]:
    lines = [line.rstrip() for line in (text or "").replace("\b", "").splitlines() if line.strip()]
    if lines:
        yield from ("```sh", *(line.strip() for line in lines[1:] or lines), "```", "")


def escape(text: str) -> str:
    return re.sub(r"([<>*_\[\]])", r"\\\1", text) if "`" not in text else text


# REST


def format_routes() -> str:
    app = sessiontree.create_app(
        hosts=sessiontree.build_allowed_hosts("127.0.0.1", 8765), tokens=sessiontree.TokenStore()
    )
    document = build_openapi_document(app)
    shapes = document["components"]["schemas"]
    parts = ["# REST routes", "", "Every route of `sessiontree serve`, generated from its OpenAPI document.", ""]
    parts += ["[The server](../server.md) explains tokens, events and errors.", ""]
    for path, methods in sorted(document["paths"].items()):
        for method in METHODS:
            if method in methods:
                parts += format_route(path, method, methods[method], shapes)
    return "\n".join(parts)


def format_route(path: str, method: str, route: dict[str, Any], shapes: dict[str, Any]) -> Iterator[str]:
    yield from (f"## {method.upper()} {path}", "", route.get("description") or f"{route.get('summary', '')}.", "")
    yield from format_fields(
        "Parameters", [(p["name"], p["schema"], p.get("required"), p) for p in route.get("parameters", [])]
    )
    yield from format_fields("Body", list_fields(find_schema(route.get("requestBody", {})), shapes))
    for status, answer in route["responses"].items():
        if status.startswith("2"):
            yield from format_fields("Response", list_fields(find_schema(answer), shapes))
    statuses = [f"`{status}`" for status in route["responses"] if not status.startswith("2")]
    yield from (f"Errors: {', '.join(statuses)}." if statuses else "", "")


def find_schema(message: dict[str, Any]) -> dict[str, Any]:
    return message.get("content", {}).get("application/json", {}).get("schema", {})


Field = tuple[str, dict[str, Any], bool | None, dict[str, Any]]


def list_fields(schema: dict[str, Any], shapes: dict[str, Any]) -> list[Field]:
    shape = shapes.get(schema.get("$ref", "").rpartition("/")[2], schema)
    required = shape.get("required", [])
    return [(name, field, name in required, field) for name, field in shape.get("properties", {}).items()]


def format_fields(title: str, fields: list[Field]) -> Iterator[str]:
    if fields:
        yield from (f"{title}:", "")
        for name, schema, required, described in fields:
            meaning = " ".join(str(described.get("description", "")).split())
            yield f"- `{name}` ({format_type(schema)}{', required' if required else ''}) {escape(meaning)}".rstrip()
        yield ""


def format_type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(format_type(part) for part in schema[key])
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {format_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "build"))
