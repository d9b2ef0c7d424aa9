"""The frameworks are imported only when their adapter is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def run(code: str, *blocked: str) -> str:
    command = [sys.executable, "-c", BLOCKED + code, *blocked]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("pydantic_ai", "pydantic_ai", "pydantic-ai"),
        ("openai_agents", "agents", "openai-agents"),
        ("claude", "claude_agent_sdk", "claude-agent-sdk"),
        ("langgraph", "langgraph", "langgraph"),
    ],
)
def test_a_missing_framework_is_an_error_that_names_the_extra(name: str, package: str, extra: str) -> None:
    code = f"""
import sessiontree, sessiontree.adapters
try:
    import sessiontree.adapters.{name}
except ImportError as error:
    print(error)
"""

    assert f"pip install 'sessiontree[{extra}]'" in run(code, package)


def test_an_adapter_needs_only_its_own_framework() -> None:
    others = ("anthropic", "google", "groq", "mistralai", "psycopg", "textual", "watchfiles")

    assert run("import sessiontree.adapters.pydantic_ai; print(1)", "agents", "openai", *others) == "1"
    assert run("import sessiontree.adapters.openai_agents; print(1)", "pydantic_ai", *others) == "1"
