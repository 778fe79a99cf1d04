"""A sweep: trials of one spec, each a whole run on its own workers, through Ray Tune."""

from raysuite.orchestrate.sweep.sweep_driver import run

__all__ = ["run"]
