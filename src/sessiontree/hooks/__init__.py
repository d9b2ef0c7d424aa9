"""Hooks: typed events before and after everything that happens, and how handlers combine."""
