"""Loaders are timed in turn, beside bare decoding and bare reading, each in fresh processes."""

from raysuite.orchestrate.loading.rounds import measure

__all__ = ["measure"]
