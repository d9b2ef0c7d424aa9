"""Stores: where the lines of sessions are kept. `base` is the protocol, the others keep it."""
