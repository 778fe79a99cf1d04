"""A time budget for a suite: after the first round, a variant is repeated only while time is left
and, from three finished repeats on, only while the confidence interval of its throughput is too
wide. Rank 0 decides this before each run, from the journals."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raysuite.plan import RunPlan
from raysuite.records import Results, RunFinished, Stat, run_figures, summarize
from raysuite.records.names import variant_key, variant_name

FILE, DECLINED = "budget.json", "declined.txt"
MOST_REPEATS = 30
WIDTH = 0.05
"""A variant is not repeated any more if the half width of its throughput's 95 % interval is at most
this share of the mean."""
_LEAST_REPEATS = 3
_MARGIN = 1.15
"""Assumed duration of a variant's next run, relative to its longest run so far. The end of a run
has to be predicted, because the budget does not interrupt runs."""


def begin(results: Results, deadline: float | None) -> None:
    """Set the deadline, in seconds since 1970: a run that would probably end later is not started.
    None: there is no deadline."""
    for file in (FILE, DECLINED):
        (results.folder / file).unlink(missing_ok=True)
    if deadline is not None:
        (results.folder / FILE).write_text(json.dumps({"deadline": deadline}), "utf-8")


def allows(results: Results, plan: RunPlan) -> bool:
    """Whether the budget allows a run to start. If not, append its id to the file DECLINED."""
    try:
        deadline = json.loads((results.folder / FILE).read_text("utf-8"))["deadline"]
    except FileNotFoundError:
        return True
    plans = results.plans()
    own = plan.model_dump(mode="json")
    took = [end.seconds for end in _ends(results, plans, own)]
    took = took or [end.seconds for end in _ends(results, plans, None)]
    late = time.time() + _MARGIN * max(took, default=0.0) > deadline
    if late or (plan.repeat > 0 and suffices(throughput(results, plans, own))):
        with (results.folder / DECLINED).open("a", encoding="utf-8") as stream:
            stream.write(f"{plan.run_id}\n")
        return False
    return True


def declined(results: Results) -> set[str]:
    """The ids of the runs that the budget did not allow to start."""
    file: Path = results.folder / DECLINED
    return set(file.read_text("utf-8").split()) if file.is_file() else set()


def settle(results: Results) -> list[str]:
    """From plan.json, remove the repeats that the budget did not allow; return the lines of a
    summary."""
    left_out, plans = declined(results), results.plans()
    kept = [plan for plan in plans if plan["run_id"] not in left_out or plan["repeat"] == 0]
    results.write_plans(kept)
    lines, enough = [], 0
    variants = {variant_key(plan): plan for plan in reversed(kept)}
    for plan in reversed(variants.values()):
        stat = throughput(results, kept, plan)
        if suffices(stat):
            enough += 1
        elif stat is None or stat.half_width is None:
            lines.append(f"too few repeats of {variant_name(plan)}: n = {stat.n if stat else 0}")
        else:
            width = stat.half_width / stat.mean
            lines.append(f"too few repeats of {variant_name(plan)}: ±{width:.1%} (n = {stat.n})")
    return [
        f"budget: {enough} of {len(variants)} variants have throughput intervals of at most "
        f"±{WIDTH:.0%}",
        *lines,
    ]


def suffices(stat: Stat | None) -> bool:
    """Whether a throughput has enough repeats and an interval that is narrow enough."""
    return (
        stat is not None
        and stat.n >= _LEAST_REPEATS
        and stat.half_width is not None
        and stat.half_width <= WIDTH * stat.mean
    )


def throughput(results: Results, plans: list[dict[str, Any]], own: dict[str, Any]) -> Stat | None:
    """The throughput of a plan's variant over its finished repeats; None if none has finished."""
    same = variant_key(own)
    return summarize(
        run_figures(plan, results.records(plan["run_id"])).throughput
        for plan in plans
        if variant_key(plan) == same
    )


def _ends(
    results: Results, plans: list[dict[str, Any]], own: dict[str, Any] | None
) -> Iterator[RunFinished]:
    for plan in plans:
        if own is None or variant_key(plan) == variant_key(own):
            end = results.end_of(plan["run_id"])
            if isinstance(end, RunFinished):
                yield end
