"""The file format: converts bytes to entries and back, including older dialects. Pure."""
