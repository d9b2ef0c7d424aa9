"""The terminal app. This module imports nothing, so checking for the app is cheap."""
