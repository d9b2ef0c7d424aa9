"""Agents: a model that runs on a branch, with its loop, tools, queues and permissions."""
