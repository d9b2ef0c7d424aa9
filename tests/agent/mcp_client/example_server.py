"""A real MCP server for the tests. Run it with `stdio`, or with `http PORT`."""

import asyncio
import os
import struct
import sys
import zlib

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.utilities.types import Image
from mcp_types import ToolAnnotations
from pydantic import BaseModel

server = MCPServer("example", version="1.0", log_level="ERROR")


class Weather(BaseModel):
    city: str
    degrees: float


def build_png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0\xff\0\0")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def echo(text: str) -> str:
    """Return the text."""
    return text


@server.tool()
def weather(city: str) -> Weather:
    """Return the weather."""
    return Weather(city=city, degrees=21.5)


@server.tool()
def picture() -> Image:
    """Return an image."""
    return Image(data=build_png(), format="png")


@server.tool()
def environment() -> dict[str, str]:
    """Return the environment of the server."""
    return dict(os.environ)


@server.tool(structured_output=False)
def large(megabytes: int) -> str:
    """Return many lines."""
    return ("x" * 1023 + "\n") * (megabytes << 10)


@server.tool()
def die(code: int = 3) -> str:
    """Exit in the middle of the call."""
    print("out of luck", file=sys.stderr, flush=True)
    os._exit(code)


@server.tool()
def fail() -> str:
    """Raise an error."""
    raise ValueError("the disk is on fire")


@server.tool()
async def wait(path: str, context: Context) -> str:
    """Write a file, report progress, and wait until the call is cancelled."""
    await asyncio.to_thread(write, path, "started")
    await context.report_progress(1, 2, "half way")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        write(path, "cancelled")
        raise
    return "done"


@server.tool()
async def chatter(messages: int, context: Context) -> str:
    """Report progress very often, with long messages."""
    for number in range(messages):
        await context.report_progress(number, messages, "x" * 100_000)
    return "done"


def write(path: str, text: str) -> None:
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


@server.tool()
async def grow(context: Context) -> str:
    """Add another tool."""
    server.add_tool(lambda: "I am new", name="added", description="A new tool.")
    await context.notify_tools_changed()
    await context.session.send_tool_list_changed()
    return "added"


@server.resource("note://today")
def today() -> str:
    """What happened today."""
    return "It rained."


@server.prompt()
def review(language: str) -> str:
    """Ask for a review."""
    return f"Review this {language} code."


if __name__ == "__main__":
    if sys.argv[1] == "http":
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run()
