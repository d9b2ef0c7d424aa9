"""List the texts that a front end shows, so that they can be read one after the other.

`python scripts/list_texts.py app` lists those of the terminal app and its commands, `page` those of the dashboard and
its server. Values are shown as `{}`. A few strings that are not shown, such as names of headers, are in the list too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "sessiontree"
FRONT_ENDS = {
    "app": (("tui", "*.py"), ("slash_commands", "*.py")),
    "page": (("server/static/js", "*.js"), ("server", "*.py")),
}

JS_COMMENT = re.compile(r"/\*.*?\*/|(?<![:\"'])//[^\n]*", re.DOTALL)
JS_STRING = re.compile(r'(?<!class=)(?<!kind=)"((?:[^"\\\n]|\\.)*)"|`([^`<>\n]*)`|>([^<>`="]+)<')
"""A string, a template without markup, or the text between two tags."""
JS_VALUE = re.compile(r"\$\{(?:[^{}]|\{[^{}]*\})*\}")
CODE = re.compile(r"=>|&&|\$|[<>;=]|\{(?!\})|\bhtml\b|^[A-Z_]+$")
"""Found in strings for the program: markup, styles, names of variables."""


def list_python_texts(source: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))  # a docstring
        elif isinstance(node, ast.JoinedStr):
            skipped.update(map(id, node.values))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("re.", "bind", "Binding")):
            skipped.update(map(id, ast.walk(node)))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def list_javascript_texts(source: str) -> Iterator[tuple[int, str]]:
    source = JS_COMMENT.sub(lambda found: "\n" * found[0].count("\n"), source)
    for found in JS_STRING.finditer(source):
        text = next(part for part in found.groups() if part is not None)
        yield source.count("\n", 0, found.start()) + 1, JS_VALUE.sub("{}", text)


def is_text(text: str) -> bool:
    """Return whether a string is for people: it has a blank or starts with a capital letter."""
    words = text.replace("{}", "").strip(" ·,.:()")
    return (" " in words or words[:1].isupper()) and bool(re.search("[a-z]{2}", words)) and not CODE.search(text)


def list_texts(front_end: str) -> Iterator[str]:
    paths = {path for folder, pattern in FRONT_ENDS[front_end] for path in (SOURCES / folder).rglob(pattern)}
    for path in sorted(paths, key=str):
        list_strings = list_python_texts if path.suffix == ".py" else list_javascript_texts
        found = ((line, " ".join(text.split())) for line, text in list_strings(path.read_text()))
        for line, text in sorted({(line, text) for line, text in found if is_text(text)}):
            yield f"{path.relative_to(SOURCES)}:{line}: {text}"


if __name__ == "__main__":
    if sys.argv[1:] not in ([name] for name in FRONT_ENDS):
        sys.exit(f"usage: list_texts.py {'|'.join(FRONT_ENDS)}")
    sys.stdout.writelines(f"{text}\n" for text in list_texts(sys.argv[1]))
