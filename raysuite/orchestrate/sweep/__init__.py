"""Run a sweep with Ray Tune: trials of one spec, each of which is a run on its own workers."""

from raysuite.orchestrate.sweep.sweep_driver import run

__all__ = ["run"]
