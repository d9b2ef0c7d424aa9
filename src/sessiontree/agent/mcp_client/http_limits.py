"""An HTTP client for MCP servers that does not read bodies without an end.

The SDK limits the events of a stream, but reads any other body as a whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from httpx2 import AsyncByteStream, AsyncClient, Response, StreamError, Timeout

from sessiontree.agent.mcp_client.server_process import MAX_MESSAGE_BYTES


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
