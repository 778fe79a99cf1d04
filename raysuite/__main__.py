"""The entry point of `raysuite` and of `python -m raysuite`."""

import sys
from typing import NoReturn


def command() -> NoReturn:
    """Run the command line. Ctrl-C is handled even while the command line is being imported."""
    try:
        from raysuite.cli import command

        command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    command()
