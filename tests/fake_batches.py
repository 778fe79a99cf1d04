"""A Record of a batch that was found by trial, as if it had been looked for."""

from __future__ import annotations

from typing import Any

from raysuite.records.batch_trials import BatchFound


def batch_found(run_id: str, **changes: Any) -> BatchFound:
    """Micro-batches of 32, two of them to a step, unless `changes` say otherwise."""
    data = {
        "key": "training.accumulate",
        "goal": "largest",
        "micro_batch": 32,
        "accumulate": 2,
        "global_batch": 64,
        "bound": "memory",
        "memory_share": 0.9,
        "tried": [],
        "seconds": 1.0,
    }
    return BatchFound.model_validate({"run_id": run_id, **data, **changes})
