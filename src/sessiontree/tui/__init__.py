"""The terminal app. Nothing is imported here, so that asking whether it is there costs nothing."""
