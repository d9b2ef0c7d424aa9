"""Slash commands: one set for every front end, and the controller that they work on."""
