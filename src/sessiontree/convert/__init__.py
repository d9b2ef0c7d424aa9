"""Converts stored messages to the message forms of other SDKs, and back.

Pure functions, one module per format. `to_…` turns a context into messages that the SDK accepts. `from_…` turns
messages of the SDK into bodies to append. What one side cannot hold is listed in the result.
"""
