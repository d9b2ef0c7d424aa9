from sessiontree._version import __version__
