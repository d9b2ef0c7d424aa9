"""Slash commands, shared by all front ends, and the session controller that they call."""
