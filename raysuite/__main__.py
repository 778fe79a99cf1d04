"""The command line, as `raysuite` and as `python -m raysuite`."""

import sys
from typing import NoReturn


def command() -> NoReturn:
    """The console entry point. It handles Ctrl-C even during the import of the command line."""
    try:
        from raysuite.cli import command

        command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    command()
