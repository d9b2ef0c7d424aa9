"""`python -m sessiontree` is the command."""

from sessiontree.cli import main

if __name__ == "__main__":
    main()
