"""Hooks: typed events before and after every operation, their handlers, and how answers combine."""
