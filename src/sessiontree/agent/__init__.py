"""The agent: the loop, its tools, and what is queued for it."""
