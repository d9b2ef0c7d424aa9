"""The MCP client: servers that agents use, their connections, and their tools as tools of the agent."""
