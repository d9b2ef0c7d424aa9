"""Slash commands: one set for every front end, and the desk that they work on."""
