"""`raysuite`, and `python -m raysuite`."""

import sys
from typing import NoReturn


def command() -> NoReturn:
    """The console entry. Ctrl-C may come while the command line itself is imported, and built."""
    try:
        from raysuite.cli import command

        command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    command()
