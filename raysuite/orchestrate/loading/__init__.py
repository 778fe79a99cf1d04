"""Loaders are timed in turn, beside bare decoding and bare reading, each in fresh processes."""

from raysuite.orchestrate.loading.compare import compare
from raysuite.orchestrate.loading.rounds import Fact, measure

__all__ = ["Fact", "compare", "measure"]
