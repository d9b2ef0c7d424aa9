import asyncio
import gzip
import os
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sessiontree.agent.agent import Agent
from sessiontree.agent.factory import AgentOptions, create_agent, load_agent_options
from sessiontree.agent.mcp_client import server_connection
from sessiontree.agent.mcp_client.server_connection import MAX_PROGRESS_CHARS, McpConnection
from sessiontree.agent.mcp_client.server_pool import MAX_NAME_LENGTH, MAX_TOOLS, McpPool, build_tool_name
from sessiontree.agent.mcp_client.server_specs import McpServer, McpServerError
from sessiontree.agent.permissions import PermissionAnswer, PermissionQuestion, Permissions
from sessiontree.agent.tools.output_limits import MAX_BYTES
from sessiontree.config import Config, ConfigError, McpServerSettings, McpSettings, check_mcp_server, load_config
from sessiontree.core.messages import ToolCall
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Event, Notice, ToolDenied, ToolUpdate
from sessiontree.model.scripted import ScriptedModel
from sessiontree.session import Session

from ...waiting import wait_until
from ..conftest import format_messages
from .servers import HOSTILE_SCRIPT, OLD_SCRIPT, SCRIPT, build_server, call, get_text, run_http_server

FIRST = ToolCall("c1", "mcp__old__first", {})
ECHO = ToolCall("c1", "mcp__example__echo", {"text": "hello"})


def read_result(session: Session) -> dict[str, Any]:
    """Return the last result of a tool."""
    return next(entry.body.message for entry in reversed(session.head.path()) if _is_result(entry))  # type: ignore[attr-defined]


def _is_result(entry: Any) -> bool:
    return entry.type == "message" and entry.body.message["role"] == "toolResult"


async def test_an_agent_calls_the_tools_of_a_server(session: Session) -> None:
    async with McpPool([build_server()]) as pool:
        model = ScriptedModel([[ECHO], "Done."])
        agent = Agent(session.head, model, tool_provider=pool)

        outcome = await agent.run("Say hello")

        assert outcome.text == "Done."
        assert format_messages(session.head)[2:3] == ["toolResult: hello"]
        assert "mcp__example__echo" in {tool.name for tool in model.requests[0].tools}
        await agent.close()


async def test_images_and_structured_content_reach_the_model() -> None:
    async with McpPool([build_server()]) as pool:
        picture = await call(pool, "mcp__example__picture")
        weather = await call(pool, "mcp__example__weather", city="Rome")
        echo = await call(pool, "mcp__example__echo", text="hi")

    assert [(block["type"], block["mimeType"]) for block in picture.content] == [("image", "image/png")]  # type: ignore[index]
    assert '"degrees": 21.5' in get_text(weather)
    assert weather.details["structuredContent"] == {"city": "Rome", "degrees": 21.5}
    assert get_text(echo) == "hi"


async def test_a_server_gets_a_clean_environment_and_what_its_settings_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("PRIVATE", "hidden")
    server = build_server(env={"TOKEN": "${OPENAI_API_KEY}", "MODE": "${MODE:-fast}"})
    async with McpPool([server]) as pool:
        found = (await call(pool, "mcp__example__environment")).details["structuredContent"]

    assert found["TOKEN"] == "sk-secret"
    assert found["MODE"] == "fast"
    assert not {"OPENAI_API_KEY", "PRIVATE"} & found.keys()
    assert "PATH" in found


async def test_a_tool_that_fails_is_an_error_that_the_model_sees() -> None:
    async with McpPool([build_server()]) as pool:
        output = await call(pool, "mcp__example__fail")

    assert output.is_error
    assert "fail" in get_text(output)


async def test_a_server_that_dies_in_a_call_is_named_and_restarted() -> None:
    async with McpPool([build_server()]) as pool:
        died = await call(pool, "mcp__example__die", code=7)
        again = await call(pool, "mcp__example__echo", text="back")

    assert died.is_error
    assert died.content == "MCP server 'example': stopped during the request: it exited with code 7: out of luck"
    assert get_text(again) == "back"


async def test_a_server_that_keeps_failing_is_not_restarted_until_the_user_does(tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = f"open({str(count)!r}, 'a').write('x'); raise SystemExit('no licence')"
    failing = McpServer(name="bad", settings=McpServerSettings(command=sys.executable, args=("-c", script)))
    said: list[str] = []
    async with McpPool([failing, build_server()]) as pool:
        for _ in range(5):
            tools = await pool.list_tools(said.append)
            assert "mcp__example__echo" in {tool.name for tool in tools}
        starts = count.read_text()
        await pool.restart("bad")
        await pool.list_tools(said.append)

    assert starts == "x" * server_connection.MAX_FAILURES
    assert count.read_text() == starts + "x"
    assert said[0] == "MCP server 'bad': cannot be started: it exited with code 1: no licence"
    assert "not restarted after 3 failures" in said[1]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"command": "/no/such/program"}, "cannot be started: No such file or directory: /no/such/program"),
        ({"args": ("-c", "import time; time.sleep(60)"), "start_timeout": 0.5}, "no answer within 0.5 s"),
        ({"args": ("-c", "print('rubbish')")}, "cannot be started: it exited with code 0"),
        ({"command": None, "args": (), "url": "http://127.0.0.1:9/mcp"}, "cannot be connected"),
        ({"env": {"TOKEN": "${NOT_SET_ANYWHERE}"}}, "the environment variable NOT_SET_ANYWHERE is not set"),
    ],
)
async def test_a_server_that_cannot_be_used_is_a_warning_and_the_run_continues(
    settings: dict[str, Any], reason: str, session: Session
) -> None:
    hooks, events = Hooks(), list[Event]()
    hooks.listen(events.append)
    async with McpPool([build_server(**settings)]) as pool:
        outcome = await Agent(session.head, ScriptedModel(["Hello.", "Again."]), hooks=hooks, tool_provider=pool).run(
            "Hi"
        )

    assert outcome.text == "Hello."
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert notice.text.startswith("MCP server 'example': ")
    assert reason in notice.text


async def test_a_tool_that_appears_at_run_time_is_in_the_next_request(session: Session) -> None:
    grow = ToolCall("c1", "mcp__example__grow", {})
    added = ToolCall("c2", "mcp__example__added", {})
    async with McpPool([build_server()]) as pool:
        model = ScriptedModel([[grow], [added], "Done."])

        await Agent(session.head, model, tool_provider=pool).run("Grow")

    names = [{tool.name for tool in request.tools} for request in model.requests]
    assert ["mcp__example__added" in found for found in names] == [False, True, True]
    assert read_result(session)["content"][0]["text"] == "I am new"


async def test_a_server_of_an_older_protocol_says_that_its_tools_changed() -> None:
    server = build_server("old", args=(OLD_SCRIPT,))
    async with McpPool([server]) as pool:
        before = [tool.name for tool in await pool.list_tools()]
        grown = await call(pool, "mcp__old__first")
        after = before
        while after == before:  # the message about the change may be handled after the result
            after = [tool.name for tool in await pool.list_tools()]
        (status,) = await pool.list_status()

    assert before == ["mcp__old__first"]
    assert get_text(grown) == "called first"
    assert after == ["mcp__old__first", "mcp__old__second"]
    assert (status.protocol, status.title) == ("2025-06-18", "old 0.1")


async def test_a_result_of_fifty_megabytes_is_cut_off_and_kept_in_a_file(session: Session) -> None:
    large = ToolCall("c1", "mcp__example__large", {"megabytes": 50})
    async with McpPool([build_server()]) as pool:
        await Agent(session.head, ScriptedModel([[large], "Done."]), tool_provider=pool).run("Read")

    text = "".join(block["text"] for block in read_result(session)["content"])
    assert len(text) < MAX_BYTES + 500
    path = text.partition("The full output is in ")[2].strip("]")
    assert os.path.getsize(path) == 50 << 20
    os.unlink(path)


async def test_a_message_over_the_limit_ends_the_connection_and_nothing_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessiontree.agent.mcp_client.server_process.MAX_MESSAGE_BYTES", 1 << 20)
    async with McpPool([build_server()]) as pool:
        output = await call(pool, "mcp__example__large", megabytes=3)

        assert "it sent a message of more than 1 MiB" in get_text(output)
        assert get_text(await call(pool, "mcp__example__echo", text="back")) == "back"


async def test_an_aborted_run_cancels_the_call_in_the_server(session: Session, tmp_path: Path) -> None:
    mark, shown = tmp_path / "mark", list[str]()
    waiting = ToolCall("c1", "mcp__example__wait", {"path": str(mark)})
    hooks = Hooks()
    hooks.listen(lambda event: shown.append(event.text) if isinstance(event, ToolUpdate) else None)
    async with McpPool([build_server()]) as pool:
        agent = Agent(session.head, ScriptedModel([[waiting]]), hooks=hooks, tool_provider=pool)
        run = asyncio.create_task(agent.run("Wait"))
        await wait_until(lambda: shown)
        agent.abort()
        outcome = await run

        assert outcome.aborted
        await wait_until(lambda: mark.read_text() == "cancelled")
        assert get_text(await call(pool, "mcp__example__echo", text="alive")) == "alive"
    assert shown == ["half way\n"]
    assert read_result(session)["content"][0]["text"] == "The call was aborted."


async def test_progress_is_limited_in_frequency_and_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "UPDATE_INTERVAL", 3600.0)  # longer than any call here
    shown: list[str] = []
    connection = McpConnection(build_server(), Config(), None)
    try:
        for _ in range(2):
            await connection.call_tool("chatter", {"messages": 20}, shown.append)
    finally:
        await connection.close()

    assert shown == ["x" * MAX_PROGRESS_CHARS + "\n"] * 2  # the first of each call


async def test_a_call_that_takes_too_long_is_an_error(tmp_path: Path) -> None:
    async with McpPool([build_server(timeout=0.3)]) as pool:
        output = await call(pool, "mcp__example__wait", path=str(tmp_path / "mark"))

    assert output.content == "MCP server 'example': no answer within 0.3 s"


async def test_a_call_needs_permission_and_a_revoked_one_is_denied(session: Session) -> None:
    asked: list[PermissionQuestion] = []

    async def answer(question: PermissionQuestion) -> PermissionAnswer:
        asked.append(question)
        return PermissionAnswer(scope="session" if len(asked) == 1 else "no")

    permissions = Permissions(asker=answer)
    async with McpPool([build_server("old", args=(OLD_SCRIPT,))]) as pool:
        agent = Agent(
            session.head,
            ScriptedModel([[FIRST], [FIRST], "Done.", [FIRST], "Done."]),
            permissions=permissions,
            tool_provider=pool,
        )
        await agent.run("Twice")
        assert len(asked) == 1
        permissions.forget_grants()
        await agent.run("Again")

    assert [question.rule for question in asked] == ["mcp__old__first"] * 2
    assert asked[0].why == "it can change anything"
    assert read_result(session)["isError"]


@pytest.mark.parametrize(
    ("trusts", "rules", "runs"),
    [
        (False, {}, False),
        (True, {}, True),
        (False, {"allow": ["mcp__old__*"]}, True),
        (True, {"deny": ["mcp__old__first"]}, False),
    ],
)
async def test_read_only_tools_and_rules_decide_without_a_person(
    trusts: bool, rules: dict[str, list[str]], runs: bool, session: Session
) -> None:
    hooks, denied = Hooks(), list[Event]()
    hooks.listen(lambda event: denied.append(event) if isinstance(event, ToolDenied) else None)
    async with McpPool([build_server("old", args=(OLD_SCRIPT,), trust_read_only=trusts)]) as pool:
        permissions = Permissions(**rules)  # type: ignore[arg-type]
        agent = Agent(
            session.head, ScriptedModel([[FIRST], "Done."]), hooks=hooks, permissions=permissions, tool_provider=pool
        )
        await agent.run("Say hello")

    assert bool(denied) is not runs


async def test_resources_and_prompts_are_available() -> None:
    async with McpPool([build_server()]) as pool:
        listed = await next(tool for tool in await pool.list_tools() if tool.name == "mcp_list_resources").run(
            _build_context({})
        )
        read = await call(pool, "mcp_read_resource", server="example", uri="note://today")
        missing = await call(pool, "mcp_read_resource", server="example", uri="note://never")
        prompt = await pool.read_prompt("example", "review", {"language": "Rust"})

    assert "example: note://today" in str(listed)
    assert get_text(read) == "It rained."
    assert missing.is_error
    assert prompt == "Review this Rust code."


def _build_context(arguments: dict[str, Any]) -> Any:
    from sessiontree.agent.mcp_client.server_pool import _ListResources  # pyright: ignore[reportPrivateUsage]

    return type("Context", (), {"arguments": _ListResources(**arguments)})()


async def test_a_server_over_http_works_and_is_found_again_after_its_restart() -> None:
    with run_http_server() as url:
        async with McpPool([build_server(command=None, args=(), url=url)]) as pool:
            assert get_text(await call(pool, "mcp__example__echo", text="hi")) == "hi"
            died = await call(pool, "mcp__example__die")
            assert died.is_error
            assert died.content.startswith("MCP server 'example': ")  # type: ignore[union-attr]


async def test_many_calls_and_two_pools_work_at_once() -> None:
    async with McpPool([build_server()]) as first, McpPool([build_server()]) as second:
        outputs = await asyncio.gather(
            *(call(pool, "mcp__example__echo", text=str(number)) for number in range(20) for pool in (first, second))
        )

    assert [get_text(output) for output in outputs] == [str(number) for number in range(20) for _ in "ab"]


async def test_two_servers_with_the_same_tools_do_not_clash() -> None:
    async with McpPool([build_server("one"), build_server("two.x"), build_server("one", enabled=False)]) as pool:
        names = [tool.name for tool in await pool.list_tools()]
        status = await pool.list_status()

    assert {"mcp__one__echo", "mcp__two_x__echo"} <= set(names)
    assert len(names) == len(set(names))
    assert [(found.server.name, found.title, found.error) for found in status] == [
        ("one", "example 1.0", None),
        ("two.x", "example 1.0", None),
    ]
    assert status[0].prompts == ("review language=…",)
    assert status[0].resources == ("note://today",)


async def test_the_schema_of_a_server_cannot_block_the_event_loop() -> None:
    async with McpPool([build_server("bad", args=(HOSTILE_SCRIPT, "schema"), timeout=20)]) as pool:
        output = await call(pool, "mcp__bad__tool0")

    assert not output.is_error
    assert get_text(output) == '{"text":"' + "a" * 28 + '!"}'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (r'{"jsonrpc": "2.0", "id": ID, "result": {"content": [{"type": "text", "text": "cut \ud83d"}]}}', "cut ?"),
        ('{"jsonrpc": "2.0", "id": ID, "result": [1]}', "invalid answer"),
        (
            '{"result": ' + "[" * 2000 + "]" * 2000 + ', "jsonrpc": "2.0", "id": ID}',
            "invalid answer: nested too deeply",
        ),
        ('{"jsonrpc": "2.0", "id": ID, "result": {"content": [], "n": ' + "9" * 5000 + "}}", "invalid answer"),
        ('{"id": ID, "result": {', "invalid answer"),
    ],
    ids=["surrogate", "list", "deep", "number", "cut off"],
)
async def test_a_damaged_answer_ends_the_call_at_once_and_the_server_stays_usable(line: str, said: str) -> None:
    async with McpPool([build_server("bad", args=(HOSTILE_SCRIPT, "damaged"), timeout=60)]) as pool:
        damaged = await call(pool, "mcp__bad__tool0", line=line)
        next = await call(pool, "mcp__bad__tool0", line='{"jsonrpc": "2.0", "id": ID, "result": {"content": []}}')

    assert said in get_text(damaged)
    assert not next.is_error


async def test_arguments_with_half_of_a_surrogate_pair_reach_the_server() -> None:
    line = '{"jsonrpc": "2.0", "id": ID, "result": {"content": [{"type": "text", "text": "HALF"}]}}'
    async with McpPool([build_server("bad", args=(HOSTILE_SCRIPT, "damaged"), timeout=60)]) as pool:
        output = await call(pool, "mcp__bad__tool0", line=line.replace("HALF", "cut \ud83d"))

    assert get_text(output) == "cut ?"


@pytest.mark.parametrize("mode", ["slow", "silent"])
async def test_a_server_that_does_not_finish_its_list_counts_as_failed(mode: str) -> None:
    said: list[str] = []
    async with McpPool([build_server("bad", args=(HOSTILE_SCRIPT, mode), start_timeout=1)]) as pool:
        for _ in range(server_connection.MAX_FAILURES + 1):
            assert await pool.list_tools(said.append) == []

    assert said == [
        "MCP server 'bad': no answer within 1 s",
        "MCP server 'bad': not restarted after 3 failures; the last: no answer within 1 s",
    ]


async def test_a_list_without_an_end_is_cut_off_with_a_warning() -> None:
    said: list[str] = []
    async with McpPool([build_server("bad", args=(HOSTILE_SCRIPT, "many"))]) as pool:
        tools = [await pool.list_tools(said.append) for _ in range(2)][-1]

    assert len(tools) == MAX_TOOLS
    assert said == ["MCP server 'bad': it has more than 500 tools; only the first 500 are used"]


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        ({}, b"x" * (2 << 20), "more than 1 MiB"),
        ({"content-encoding": "gzip"}, gzip.compress(b"x" * (2 << 20)), "compressed its answer"),
    ],
)
async def test_a_body_over_the_limit_is_not_read_to_its_end(
    headers: dict[str, str], body: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiontree.agent.mcp_client.server_connection.MAX_MESSAGE_BYTES", 1 << 20)
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.headers["accept-encoding"])
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            for name, value in {
                "content-type": "application/json",
                "content-length": str(len(body)),
                **headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    said: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{http.server_port}/mcp"
        async with McpPool([build_server("web", command=None, args=(), url=url)]) as pool:
            await pool.list_tools(said.append)
        http.shutdown()

    assert reason in said[0]
    assert set(asked) == {"identity"}


@pytest.mark.parametrize("name", ["a__b", "a_", "a.", "a.._b", "_a", ""])
def test_a_name_that_rules_for_another_server_could_cover_is_refused(name: str) -> None:
    with pytest.raises(InvalidOperation, match="cannot name an MCP server"):
        McpPool().add(build_server(name))
    with pytest.raises(ConfigError):
        check_mcp_server("config.toml", "key", name, build_server().settings)


def test_two_names_with_the_same_tools_are_refused(tmp_path: Path) -> None:
    pool = McpPool([build_server("two.x")])
    file = tmp_path / "config.toml"
    file.write_text("[mcp.servers.'two.x']\ncommand = 'x'\n[mcp.servers.two_x]\ncommand = 'x'\n")

    with pytest.raises(InvalidOperation, match=r"another MCP server is named 'two\.x'"):
        pool.add(build_server("two_x"))
    with pytest.raises(ConfigError, match=r"its tools have the same names as those of 'two\.x'"):
        load_config(file)


def test_long_and_equal_names_stay_different() -> None:
    long = [build_tool_name("s", "x" * 80 + end) for end in "ab"]
    same = build_tool_name("s", "a b", {"mcp__s__a_b"})

    assert len({*long}) == 2
    assert max(map(len, long)) == MAX_NAME_LENGTH
    assert same != "mcp__s__a_b"


async def test_closing_a_pool_ends_its_processes_and_it_starts_no_more(tmp_path: Path) -> None:
    pool = McpPool([build_server()])
    environment = await call(pool, "mcp__example__environment")
    assert environment.details is not None
    children = _list_children()
    assert children

    await pool.close()

    assert not set(children) & set(_list_children())
    assert await pool.list_tools() == []
    with pytest.raises(McpServerError, match="closed"):
        await pool.read_prompt("example", "review", {})


def _list_children() -> list[str]:
    """Return the example servers that run as children of this process."""
    found: list[str] = []
    for task in os.listdir("/proc/self/task"):
        for child in Path(f"/proc/self/task/{task}/children").read_text().split():
            if SCRIPT.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def test_a_pool_connects_again_in_another_event_loop() -> None:
    pool = McpPool([build_server()])

    for text in ("first", "second"):
        assert get_text(asyncio.run(call(pool, "mcp__example__echo", text=text))) == text
    assert _list_children() == []


def test_servers_of_the_configuration_reach_every_agent_and_nothing_is_imported(session: Session) -> None:
    settings = Config(mcp=McpSettings(servers={"example": build_server().settings}))

    options = load_agent_options(settings)
    agent = create_agent(session.head, ScriptedModel([]), Hooks(), options)

    assert agent.tool_provider is options.mcp
    assert options.mcp is not None
    assert [server.name for server in options.mcp.servers] == ["example"]
    assert AgentOptions().mcp is None


def test_a_name_is_used_once_and_an_unknown_one_is_an_error() -> None:
    pool = McpPool([build_server()])

    with pytest.raises(InvalidOperation, match=r"another MCP server is named 'example', from config\.toml"):
        pool.add(build_server())
    remove = pool.add(build_server("other"))
    remove()
    assert [server.name for server in pool.servers] == ["example"]
    with pytest.raises(NotFound, match="MCP server 'nope' not found; servers: example"):
        asyncio.run(pool.restart("nope"))
