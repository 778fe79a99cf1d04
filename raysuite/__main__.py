"""`python -m raysuite` is `raysuite`."""

from raysuite.cli import main

if __name__ == "__main__":
    main()
