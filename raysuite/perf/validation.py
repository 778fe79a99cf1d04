"""Errors of each kind of prediction, from comparisons with measurements in benchmarks/results."""

from __future__ import annotations

from typing import Literal, NamedTuple

from raysuite.records.names import Plan

Kind = Literal[
    "one machine", "pipelines", "from one", "from at most 8", "from at most 16", "from 64"
]
NOT_VALIDATED = "not validated: predictions of this kind were never compared with measurements"


class Validation(NamedTuple):
    """Relative errors |predicted / measured - 1| of throughput: median and 90th percentile."""

    of: str
    median: float
    p90: float
    page: str
    """A file in benchmarks/results with the same two figures; a test checks that they are equal."""

    @property
    def words(self) -> str:
        return (
            f"the errors of such predictions had a median of {self.median:.1%} and a 90th "
            f"percentile of {self.p90:.0%}, for {self.of} (benchmarks/results/{self.page})"
        )


_AACH = "21 published figures of 128 to 1,024 GPUs"
VALIDATIONS: dict[Kind, Validation] = {
    "one machine": Validation(
        "56 variants of two image networks on one node of 2 CPU cores",
        0.025,
        0.064,
        "prediction.md",
    ),
    "pipelines": Validation(
        "11 simulated steps of an image network on one node of 2 CPU cores",
        0.046,
        0.140,
        "simulation.md",
    ),
    "from one": Validation(_AACH, 0.556, 0.88, "prediction_scale_out.md"),
    "from at most 8": Validation(_AACH, 0.145, 0.45, "prediction_scale_out.md"),
    "from at most 16": Validation(_AACH, 0.158, 0.45, "prediction_scale_out.md"),
    "from 64": Validation(_AACH, 0.061, 0.30, "prediction_scale_out.md"),
}


def words(kind: Kind | None) -> str:
    """The text that is printed with a prediction of this kind."""
    return NOT_VALIDATED if kind is None else VALIDATIONS[kind].words


def of_plan(plan: Plan) -> Kind | None:
    """The kind of a prediction from a calibration of one node; None if it was not validated. GPUs
    count as not validated: only eight predictions, all for one H200, were compared with
    measurements."""
    if plan["device"] != "cpu" or "task" in plan:  # plans of classification have no "task"
        return None
    return "pipelines" if plan["spec"]["strategy"].get("stages") else "one machine"


def of_rate(plan: Plan) -> Kind | None:
    """The kind of a simulation from the measured rate of one worker; None if it was not validated.
    Only simulations of image classification on GPUs were compared with published figures."""
    return "from one" if plan["device"] == "gpu" and "task" not in plan else None


def of_scaling(measured: int) -> Kind | None:
    """The kind of an extrapolation from up to `measured` workers; None if it was not validated."""
    kinds: dict[int, Kind] = {64: "from 64", 16: "from at most 16", 8: "from at most 8"}
    return next((kind for least, kind in kinds.items() if measured >= least), None)
