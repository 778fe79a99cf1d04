"""A sweep: trials of one spec, each a whole run on workers of its own, through Ray Tune."""

from raysuite.orchestrate.sweep.sweep_driver import run

__all__ = ["run"]
