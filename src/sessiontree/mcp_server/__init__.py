"""The MCP server: other agents search and read the sessions of a folder, and may add to them if the user allows it."""
