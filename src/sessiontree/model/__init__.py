"""The model protocol, its implementations, and the code that finds a model by name."""
