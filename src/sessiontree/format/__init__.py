"""The format: bytes to entries and back, dialects of older files included. Pure."""
