"""Synthetic versions of the named data sets, with their counts, sizes and layouts."""

from raysuite.data.synthesis.making import Made, make
from raysuite.data.synthesis.synthetic_set import SyntheticSet, plan_synthetic_set

__all__ = ["Made", "SyntheticSet", "make", "plan_synthetic_set"]
