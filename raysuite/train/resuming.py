"""Messages about the runs that a resumed command skips, for Ray and for torchrun."""

from __future__ import annotations

from collections.abc import Sequence

from raysuite.plan import RunPlan
from raysuite.records import Results, RunFailed
from raysuite.records.ends import is_left


def left_alone(plans: Sequence[RunPlan], results: Results) -> list[str]:
    """A message for each failed run, with how to repeat it, and a message if no run is left to
    resume."""
    ends = [results.end_of(plan.run_id) for plan in plans]
    lines = [
        f"{plan.title}: not repeated, because it failed: {end.message}; to repeat it from its "
        "first step, add --retry-failed"
        for plan, end in zip(plans, ends, strict=True)
        if isinstance(end, RunFailed) and not is_left(end)
    ]
    if not any(map(is_left, ends)):
        lines.append(f"nothing to resume: every run in {results.folder} has ended")
    return lines
