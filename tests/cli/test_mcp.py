import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sessiontree.config import ConfigError, load_config
from sessiontree.config_editing import add_mcp_server, remove_mcp_server
from sessiontree.extensions.project_trust import TrustStore, wrap_server_file
from tests.agent.mcp_client.servers import OLD_SCRIPT

Run = Any


@pytest.fixture
def config(home: Path) -> Path:
    folder = home / ".sessiontree"
    folder.mkdir(parents=True)
    return folder / "config.toml"


def test_servers_are_added_listed_tested_and_removed(cli: Run, config: Path) -> None:
    assert cli("mcp", "list") == "no MCP servers\n"
    cli("mcp", "add", "old", "--env", "MODE=${MODE:-fast}", "--", sys.executable, OLD_SCRIPT)
    cli("mcp", "add", "web", "--url", "https://example.com/mcp", "--header", "X-Key=${KEY}")

    assert cli("mcp", "list").splitlines()[1] == "web https://example.com/mcp config.toml"
    assert [json.loads(line)["name"] for line in cli("mcp", "list", "--json").splitlines()] == ["old", "web"]
    assert load_config().mcp.servers["old"].env == {"MODE": "${MODE:-fast}"}
    assert "tool mcp__old__first" in cli("mcp", "test", "old")

    cli("mcp", "remove", "old")
    assert list(load_config().mcp.servers) == ["web"]


def test_a_server_that_fails_its_test_is_an_error(cli: Run, config: Path) -> None:
    cli("mcp", "add", "bad", "/no/such/program")

    assert "error: cannot be started: No such file or directory" in cli("mcp", "test", code=1)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["a"], "mcp.servers.a: set either `command` or `url`"),
        (["a", "x", "--url", "http://x"], "set either `command` or `url`"),
        (["a", "x", "--env", "novalue"], "expected NAME=VALUE, not 'novalue'"),
        (["a b", "x"], "the name of a server"),
    ],
)
def test_wrong_arguments_change_nothing(arguments: list[str], reason: str, fails: Run, config: Path) -> None:
    assert reason in fails("mcp", "add", *arguments, code=2)
    assert not config.exists()


def test_editing_keeps_comments_and_everything_else(config: Path) -> None:
    before = '# mine\nmodel = "openai:x" # keep\n\n[mcp.servers.one]\ncommand = "one"\n[mcp.servers.one.env]\nA = "b"\n'
    config.write_text(before + '\n[keys]\nquit = "q"\n')

    add_mcp_server("two.x", {"command": "two", "args": ['a "b"']})
    assert config.read_text().startswith(before)
    remove_mcp_server("one")

    assert config.read_text().startswith('# mine\nmodel = "openai:x" # keep\n')
    assert load_config().keys == {"quit": "q"}
    assert list(load_config().mcp.servers) == ["two.x"]
    with pytest.raises(ConfigError, match="exists already"):
        add_mcp_server("two.x", {"command": "again"})
    with pytest.raises(ConfigError, match=r"two\.x: exists already"):
        add_mcp_server("two_x", {"command": "again"})
    with pytest.raises(ConfigError, match="no such server"):
        remove_mcp_server("one")


def test_a_form_that_cannot_be_edited_safely_is_left_alone(config: Path) -> None:
    text = 'mcp = { servers = { one = { command = "one" } } }\n'
    config.write_text(text)

    with pytest.raises(ConfigError, match="edit it by hand"):
        remove_mcp_server("one")
    assert config.read_text() == text


def test_an_untrusted_project_server_is_listed_but_not_started(cli: Run, here: Path, config: Path) -> None:
    mark = here / "started"
    server = {"command": sys.executable, "args": ["-c", f"open({str(mark)!r}, 'w')"]}
    (here / ".mcp.json").write_text(json.dumps({"mcpServers": {"project": server}}))

    listed = cli("mcp", "list")
    assert (listed.split()[0], "not trusted" in listed) == ("project", True)
    assert json.loads(cli("mcp", "list", "--json"))["trusted"] is False
    cli("mcp", "test", code=1)
    assert not mark.exists()


def test_a_trusted_project_server_is_started_until_its_file_changes(cli: Run, here: Path, config: Path) -> None:
    file = here / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": {"project": {"command": sys.executable, "args": [OLD_SCRIPT]}}}))
    TrustStore(str(config.parent)).add(wrap_server_file(str(file), file.read_bytes()))

    assert "tool mcp__project__first" in cli("mcp", "test")
    assert "not trusted" not in cli("mcp", "list")
    file.write_text(file.read_text() + " ")
    assert "tool" not in cli("mcp", "test", code=1)


@pytest.mark.parametrize("text", ["{", '{"mcpServers": {"web": {"type": "sse", "url": "http://x"}}}'])
def test_a_project_file_with_mistakes_does_not_hide_other_servers(
    text: str, cli: Run, here: Path, config: Path
) -> None:
    add_mcp_server("mine", {"command": "mine"})
    (here / ".mcp.json").write_text(text)

    assert cli("mcp", "list").split()[0] == "mine"


def test_the_command_line_does_not_import_the_sdk() -> None:
    code = "import sys; from sessiontree.cli import main; import sessiontree.cli.chat, sessiontree.cli.mcp; " + (
        "import sessiontree.agent.factory; assert not {'mcp', 'mcp_types', 'anyio'} & sys.modules.keys()"
    )

    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
