"""Sessions as the history of agents of other frameworks, one module per framework.

Each module imports its framework, and needs the extra of the same name. This package imports nothing: you load only
what you use.
"""
