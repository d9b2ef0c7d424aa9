"""Screens and dialogs of the terminal app."""
