"""An MCP server that misbehaves. Run it with a mode, on standard input and output.

`schema` returns what its own schema rejects slowly, `slow` lists pages without an end, `silent` does not list anything,
`many` lists more tools than anybody needs, and `damaged` answers calls with the line in their argument.
"""

import json
import sys
import time
from typing import Any

mode = sys.argv[1]
schema = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}


def send(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def list_tools() -> dict[str, Any]:
    count = 400 if mode == "many" else 1
    tools = [{"name": f"tool{number}", "inputSchema": {"type": "object"}} for number in range(count)]
    if mode == "schema":
        tools[0]["outputSchema"] = schema
    return {"tools": tools, "nextCursor": None if mode in ("schema", "damaged") else "next"}


for line in sys.stdin:
    request = json.loads(line)
    method = request["method"]
    if "id" not in request:
        continue
    if method == "initialize":
        info = {"name": "hostile", "version": "0.1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    elif method == "tools/list":
        if mode == "silent":
            continue
        if mode == "slow":
            time.sleep(0.1)
        result = list_tools()
    elif method == "tools/call" and mode == "damaged":
        print(request["params"]["arguments"]["line"].replace("ID", str(request["id"])), flush=True)
        continue
    elif method == "tools/call":
        result = {"content": [], "structuredContent": {"text": "a" * 28 + "!"}}
    else:
        send({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
        continue
    send({"id": request["id"], "result": result})
