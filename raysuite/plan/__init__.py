"""Expand a matrix into specs, and specs into RunPlans, without importing torch or Ray."""

from raysuite.plan.dataset import check_unchanged, official, passed_over
from raysuite.plan.matrix import expand
from raysuite.plan.resolve import groups, make_plans, placed
from raysuite.plan.run_plan import RunPlan

__all__ = [
    "RunPlan",
    "check_unchanged",
    "expand",
    "groups",
    "make_plans",
    "official",
    "passed_over",
    "placed",
]
