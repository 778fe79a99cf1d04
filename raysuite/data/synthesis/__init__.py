"""Synthetic stand-ins of the named data sets, with their counts, sizes and layouts."""

from raysuite.data.synthesis.making import Made, make
from raysuite.data.synthesis.stand_in import StandIn, plan_stand_in

__all__ = ["Made", "StandIn", "make", "plan_stand_in"]
