"""Data sets on disk, and loaders that decode samples in a given order."""

from raysuite.data.base import Batch, Loader, Slice
from raysuite.data.formats import prepare
from raysuite.data.loaders import make_loader
from raysuite.data.order import permutation, rank_slices
from raysuite.data.prepared import Prepared, Split
from raysuite.spec.datasets import cache_dir

__all__ = [
    "Batch",
    "Loader",
    "Prepared",
    "Slice",
    "Split",
    "cache_dir",
    "make_loader",
    "permutation",
    "prepare",
    "rank_slices",
]
