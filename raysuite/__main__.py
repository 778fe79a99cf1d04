"""`python -m raysuite` is `raysuite`."""

from raysuite.cli import command

if __name__ == "__main__":
    command()
