"""Session formats of other programs: recognizes them, and converts them to session lines and back.

One module per format, each with a `FORMAT`. `formats` lists them. Pure functions: the library opens files and
databases, and passes their records in.
"""
