"""``python -m pathspace``: the command line, where the ``pathspace`` script is not on the path."""

from pathspace.cli import main

if __name__ == "__main__":
    main()
