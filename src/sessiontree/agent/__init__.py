"""The agent: a model at work on a branch, its loop, its tools, and what is queued for it."""
