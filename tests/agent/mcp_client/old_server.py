"""An MCP server of an older protocol, written without an SDK. It gets a tool after the first call.

It also prints rubbish, which a client has to ignore.
"""

import json
import sys

tools = ["first"]


def send(message: dict[str, object]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


print("Welcome! This is no JSON.", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    method = request["method"]
    if "id" not in request:
        continue
    if method == "initialize":
        info = {"name": "old", "version": "0.1"}
        capabilities = {"tools": {"listChanged": True}}
        result = {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}
    elif method == "tools/list":
        hints = {"readOnlyHint": True}
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}, "annotations": hints} for name in tools]}
    elif method == "tools/call":
        tools = ["first", "second"]
        send({"method": "notifications/tools/list_changed"})
        result = {"content": [{"type": "text", "text": f"called {request['params']['name']}"}]}
    else:
        send({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
        continue
    send({"id": request["id"], "result": result})
