"""The Agent Client Protocol: the agent inside an editor, on standard input and output."""
