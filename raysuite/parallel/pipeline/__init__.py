"""Pipelines: a network cut into stages, one on each worker."""
