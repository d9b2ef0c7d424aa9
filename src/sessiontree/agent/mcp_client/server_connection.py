"""One MCP server: connect when it is needed, call it, and connect again after it died.

A separate task holds each connection open, because the SDK must open and close it in the same task. A server that
keeps dying is not restarted forever. Over HTTP, no body is read without an end: the SDK limits the events of a stream,
but reads any other body as a whole.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, TypeVar, cast

import mcp_types
from httpx2 import AsyncByteStream, AsyncClient, HTTPError, Response, StreamError, Timeout
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from sessiontree._version import __version__
from sessiontree.agent.mcp_client.server_process import MAX_MESSAGE_BYTES, ServerProcess
from sessiontree.agent.mcp_client.server_specs import McpServer, McpServerError, expand_server
from sessiontree.agent.sandbox import clean_environment
from sessiontree.agent.tools.bash_tool import UPDATE_INTERVAL
from sessiontree.config import Config, McpServerSettings
from sessiontree.core.sanitize import replace_unencodable, replace_unencodable_texts

T = TypeVar("T")

logging.getLogger("mcp").addHandler(logging.NullHandler())  # the SDK logs tracebacks, which would reach the terminal

MAX_FAILURES, FAILURE_SECONDS = 3, 300.0
"""A server that fails this often within this time is not started again until the time has passed."""
CONNECT_SECONDS = 30.0
MAX_PROGRESS_CHARS = 2000
"""Longer progress messages are cut off."""
MAX_PAGES = 100
"""The maximum number of pages of a list that are read."""
MAX_ITEMS = 1000
"""The maximum number of items of a list. The rest is not read."""


class McpConnection:
    """A server and the connection to it, if there is one."""

    def __init__(self, server: McpServer, config: Config, cwd: str | None) -> None:
        self.server = server
        self._config = config
        self._cwd = cwd
        self._link: _Link | None = None
        self._tools: list[mcp_types.Tool] | None = None
        self._failures: list[float] = []
        self._last_failure = ""

    @property
    def is_open(self) -> bool:
        return self._link is not None and self._link.is_usable

    @property
    def client(self) -> Client | None:
        """The SDK's client of the open connection."""
        return self._link.client if self._link is not None and self._link.is_usable else None

    async def close(self) -> None:
        link, self._link, self._tools = self._link, None, None
        if link is not None:
            await link.close()

    def forget_failures(self) -> None:
        """Allow the server to start again at once."""
        self._failures.clear()

    async def list_tools(self) -> list[mcp_types.Tool]:
        """Return the tools of the server. They are listed again after the server reports a change.

        A server that does not answer in time is closed, and counts as failed.
        """
        link = await self._open()
        if self._tools is None or link.has_new_tools:
            link.has_new_tools = False
            if link.client.server_capabilities.tools is None:
                self._tools = []
            else:
                try:
                    self._tools = await self._read_pages(
                        lambda cursor: link.client.list_tools(cursor=cursor), lambda page: page.tools
                    )
                except _McpTimeout as error:
                    if self._link is link:
                        self._note_failure(error.reason)
                        await self.close()
                    raise
        return self._tools

    async def list_resources(self) -> list[mcp_types.Resource | mcp_types.ResourceTemplate]:
        client = (await self._open()).client
        if client.server_capabilities.resources is None:
            return []
        resources: list[Any] = await self._read_pages(
            lambda cursor: client.list_resources(cursor=cursor), lambda page: page.resources
        )
        with suppress(McpServerError):  # not every server knows templates
            resources += await self._read_pages(
                lambda cursor: client.list_resource_templates(cursor=cursor), lambda page: page.resource_templates
            )
        return resources

    async def list_prompts(self) -> list[mcp_types.Prompt]:
        client = (await self._open()).client
        if client.server_capabilities.prompts is None:
            return []
        return await self._read_pages(lambda cursor: client.list_prompts(cursor=cursor), lambda page: page.prompts)

    async def call_tool(
        self, name: str, arguments: dict[str, Any], on_progress: Callable[[str], None] = lambda text: None
    ) -> mcp_types.CallToolResult:
        """Call a tool. If the server dies, the call is not repeated: it may have had an effect."""
        client = (await self._open()).client
        arguments = replace_unencodable_texts(arguments)
        last = float("-inf")

        async def show_progress(progress: float, total: float | None, message: str | None) -> None:
            nonlocal last
            if time.monotonic() - last < UPDATE_INTERVAL:
                return
            last = time.monotonic()
            share = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
            on_progress(f"{(message or share)[:MAX_PROGRESS_CHARS]}\n")

        return await self._request(
            client.call_tool(
                name,
                arguments,
                read_timeout_seconds=self.server.settings.timeout,
                progress_callback=show_progress,
            )
        )

    async def read_resource(self, uri: str) -> mcp_types.ReadResourceResult:
        client = (await self._open()).client
        return await self._request(client.read_resource(replace_unencodable(uri), cache_mode="bypass"))

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> mcp_types.GetPromptResult:
        client = (await self._open()).client
        return await self._request(client.get_prompt(replace_unencodable(name), replace_unencodable_texts(arguments)))

    # Connecting

    async def _open(self) -> _Link:
        """Return the open connection; connect first if there is none. Raises `McpServerError`."""
        while self._link is not None and not self._link.is_usable:
            if self._link.has_ended:
                self._note_failure(self._link.describe_end())
            await self.close()  # at this time another request may connect again
        if self._link is None:
            recent = [moment for moment in self._failures if time.monotonic() - moment < FAILURE_SECONDS]
            if len(recent) >= MAX_FAILURES:
                raise self._build_error(f"not restarted after {len(recent)} failures; the last: {self._last_failure}")
            settings = expand_server(self.server, self._config)
            self._tools = None
            self._link = _Link(self.server, settings, self._config, self._cwd)
        return await self._wait_until_ready(self._link)

    async def _wait_until_ready(self, link: _Link) -> _Link:
        try:
            await link.wait_until_ready()
        except McpServerError as error:
            if self._link is link:
                self._link = None
                self._note_failure(error.reason)
            raise
        return link

    def _note_failure(self, reason: str) -> None:
        self._failures = [*self._failures, time.monotonic()][-MAX_FAILURES:]
        self._last_failure = reason

    def _build_error(self, reason: str) -> McpServerError:
        return McpServerError(self.server.name, reason)

    # Requests

    async def _read_pages(
        self, fetch: Callable[[str | None], Awaitable[Any]], items: Callable[[Any], list[T]]
    ) -> list[T]:
        """Return the first `MAX_ITEMS` items of a list. All pages share one time limit."""

        async def read_all() -> list[T]:
            found: list[T] = []
            cursor: str | None = None
            for _ in range(MAX_PAGES):
                page = await fetch(cursor)
                found += items(page)
                cursor = page.next_cursor
                if cursor is None or len(found) >= MAX_ITEMS:
                    return found[:MAX_ITEMS]
            raise ValueError(f"its list has more than {MAX_PAGES} pages")

        return await self._request(read_all(), self.server.settings.start_timeout)

    async def _request(self, work: Awaitable[T], seconds: float | None = None) -> T:
        """Wait for an answer. Raises `McpServerError` for everything that goes wrong."""
        limit = self.server.settings.timeout if seconds is None else seconds
        link = self._link
        try:
            return await asyncio.wait_for(work, limit)
        except TimeoutError:
            raise _McpTimeout(self.server.name, f"no answer within {limit:g} s") from None
        except MCPError as error:
            if error.code == mcp_types.REQUEST_TIMEOUT:
                raise _McpTimeout(self.server.name, f"no answer within {limit:g} s") from None
            if error.code == mcp_types.CONNECTION_CLOSED or error.message == "Session terminated":
                reason = error.message if link is None else await link.end(error.message)
                raise self._build_error(f"stopped during the request: {reason}") from None
            raise self._build_error(error.message) from error
        except HTTPError as error:
            if link is not None:
                await link.end(str(error))
            raise self._build_error(f"cannot be reached: {error or type(error).__name__}") from error
        except Exception as error:
            raise self._build_error(f"invalid answer: {error}") from error


class _McpTimeout(McpServerError):
    """A server did not answer in time."""


async def _skip_validation(name: str, result: mcp_types.CallToolResult) -> None:
    """Accept every result, whatever the schema of the tool."""


class _Link:
    """One connection, from connecting to its end."""

    def __init__(self, server: McpServer, settings: McpServerSettings, config: Config, cwd: str | None) -> None:
        self.has_new_tools = False
        self._server = server
        self._settings = settings
        self._config = config
        self._cwd = cwd
        self._process: ServerProcess | None = None
        self._client: Client | None = None
        self._end_reason: str | None = None
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())  # a waiter is optional
        self._task = asyncio.create_task(self._hold(), name=f"mcp {server.name}")

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    @property
    def is_usable(self) -> bool:
        return (
            not self._task.done()
            and not self._stop.is_set()
            and self._loop is asyncio.get_running_loop()
            and (self._process is None or not self._process.ended.is_set())
        )

    @property
    def has_ended(self) -> bool:
        """Whether it ended by itself, and not with the event loop that it was opened in."""
        return self._loop is asyncio.get_running_loop()

    async def wait_until_ready(self) -> None:
        await asyncio.shield(self._ready)

    def describe_end(self) -> str:
        if self._end_reason is not None:
            return self._end_reason
        return "the connection was closed" if self._process is None else self._process.describe_end()

    async def end(self, reason: str) -> str:
        """Stop using this connection, and return why it ended."""
        if self._process is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.ended.wait(), 1)
        self._end_reason = reason if self._process is None else self._process.describe_end()
        self._stop.set()
        return self._end_reason

    async def close(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            return  # it was closed with its event loop
        self._stop.set()
        if not self._ready.done():
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _hold(self) -> None:
        """Connect, and keep the connection open until it is closed or the server is gone."""
        try:
            async with asyncio.timeout(self._settings.start_timeout) as limit, AsyncExitStack() as stack:
                transport = self._open_transport()
                client = await stack.enter_async_context(
                    Client(
                        transport,  # pyright: ignore[reportArgumentType] - it yields the same streams
                        client_info=mcp_types.Implementation(name="sessiontree", version=__version__),
                        message_handler=self._handle_message,
                        cache=None,
                    )
                )
                # The server chose the schema: a regular expression in it could block the event loop for hours.
                client.session.validate_tool_result = _skip_validation
                limit.reschedule(None)
                self._client = client
                listener = asyncio.create_task(self._listen(client))
                self._ready.set_result(None)
                try:
                    await self._wait_for_end()
                finally:
                    listener.cancel()
                    await asyncio.wait([listener])
        except TimeoutError:
            self._fail(f"no answer within {self._settings.start_timeout:g} s after its start")
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - the SDK and the server may raise anything
            self._fail(self._describe_failure(error))
        finally:
            if not self._ready.done():
                self._fail("the start was cancelled")

    def _fail(self, reason: str) -> None:
        self._end_reason = self._end_reason or reason
        if not self._ready.done():
            self._ready.set_exception(McpServerError(self._server.name, reason))

    def _describe_failure(self, error: BaseException) -> str:
        inner: Any = error
        while isinstance(inner, BaseExceptionGroup):
            inner = inner.exceptions[0]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        error = cast("BaseException", inner)
        if self._process is not None and self._process.ended.is_set():
            return f"cannot be started: {self._process.describe_end()}"
        if isinstance(error, OSError):
            return f"cannot be started: {error.strerror or error}: {self._settings.command or self._settings.url}"
        return f"cannot be connected: {error or type(error).__name__}"

    @asynccontextmanager
    async def _open_transport(self) -> AsyncGenerator[tuple[Any, Any]]:
        settings = self._settings
        if settings.url is not None:
            seconds = Timeout(CONNECT_SECONDS, read=max(settings.timeout, settings.start_timeout))
            async with (
                create_http_client(settings.headers, seconds) as http,
                streamable_http_client(settings.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
            ):
                yield streams
            return
        assert settings.command is not None
        self._process = ServerProcess()
        env = {**clean_environment(self._config), **settings.env}
        cwd = os.path.join(self._cwd or os.getcwd(), os.path.expanduser(settings.cwd or ""))
        async with self._process.open(os.path.expanduser(settings.command), settings.args, env, cwd) as streams:
            yield streams

    async def _wait_for_end(self) -> None:
        ends = [asyncio.create_task(self._stop.wait())]
        if self._process is not None:
            ends.append(asyncio.create_task(self._process.ended.wait()))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ends:
                task.cancel()

    # Changes

    async def _handle_message(self, message: Any) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self.has_new_tools = True

    async def _listen(self, client: Client) -> None:
        """Note when a server of the newest protocol reports that its tools changed. Older servers send messages."""
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        with suppress(Exception):
            async with client.listen(tools_list_changed=True) as changes:
                self.has_new_tools = True  # they may have changed before the subscription
                async for _ in changes:
                    self.has_new_tools = True


def create_http_client(headers: Mapping[str, str], timeout: Timeout) -> AsyncClient:
    """Return a client that stops reading a body above `MAX_MESSAGE_BYTES`."""
    client = AsyncClient(headers=dict(headers), timeout=timeout, event_hooks={"response": [_limit_body]})
    client.headers["accept-encoding"] = "identity"  # a small compressed body can expand to any size
    return client


async def _limit_body(response: Response) -> None:
    if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        return
    assert isinstance(response.stream, AsyncByteStream)
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    response.stream = _LimitedStream(response.stream, is_compressed=encoding != "identity")


class _LimitedStream(AsyncByteStream):
    def __init__(self, stream: AsyncByteStream, *, is_compressed: bool) -> None:
        self._stream = stream
        self._is_compressed = is_compressed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_compressed:
            raise StreamError("the server compressed its answer, which was not accepted")
        size = 0
        async for data in self._stream:
            size += len(data)
            if size > MAX_MESSAGE_BYTES:
                raise StreamError(f"the server sent a message of more than {MAX_MESSAGE_BYTES >> 20} MiB")
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()
