"""Rows and runs as CSV and JSON: unrounded values, with units in the names of keys and columns."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

from raysuite.records import Ratio, Row, RunFigures, Stat
from raysuite.records.metrics import metrics_of
from raysuite.records.names import block_name
from raysuite.records.schema import finite as finite
from raysuite.records.statistics import LEVEL, outlying


def csv_text(rows: Iterable[dict[str, Any]], more: Iterable[dict[str, Any]] = repeat({})) -> str:
    """`row_data` of each row as CSV: one line each, unrounded values, units in the column names.

    `more` has further columns for each row, such as the searched keys of a sweep.
    """
    return csv_of(_flat(row) | own for row, own in zip(rows, more, strict=False))


def csv_of(records: Iterable[dict[str, Any]]) -> str:
    """Records as CSV, one line each; the columns are the union of their keys."""
    known = list(records)
    header = list(dict.fromkeys(key for record in known for key in record))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(known)
    return stream.getvalue()


def searched_values(row: Row, searched: Sequence[str]) -> dict[str, Any]:
    """A row's values of the searched keys; None for a key whose condition (`when`) is not met."""
    label = row.runs[0].plan["label"]
    values = {key: label.get(key) for key in searched}
    return {k: block_name(v) if isinstance(v, dict) else v for k, v in values.items()}


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            parts = {k: v for k, v in value.items() if k not in ("values", "outliers")}
            flat |= {f"{key}_{part}": item for part, item in parts.items()}
        else:
            flat[key] = value
    return flat


def json_text(data: Mapping[str, Any]) -> str:
    """Plain data as JSON, with one line for each value and for each item of a list."""
    lines = []
    for key, value in data.items():
        if isinstance(value, list) and value:
            items = ",\n  ".join(json.dumps(each, ensure_ascii=False) for each in value)
            written = f"[\n  {items}\n ]"
        else:
            written = json.dumps(value, ensure_ascii=False)
        lines.append(f" {json.dumps(key, ensure_ascii=False)}: {written}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def row_data(row: Row) -> dict[str, Any]:
    """A row as plain data; `low` and `high` are the ends of the reported interval."""
    traffic = row.traffic
    return {
        "name": row.name,
        "strategy": row.strategy,
        "loader": row.loader,
        "work": row.work,
        "workers": row.workers,
        "device": row.device,
        "global_batch": row.global_batch,
        "runs": len(row.runs),
        "runs_counted": len(row.counted),
        "status": row.status,
        "gate": row.gate,
        "baseline": row.baseline,
        "scaling": row.scaling,
        "speed_up": _ratio(row.speed_up),
        "efficiency": _ratio(row.efficiency),
        "relative_to_best": _ratio(row.to_best),
        "beside": row.beside,
        "relative_throughput": _ratio(row.relative),
        "break_even_steps": _ratio(row.break_even),
        "efficiency_above_one": row.superlinear,
        "target_met": row.target_met,
        **_stats({metric.column: row.figures[metric.name] for metric in row.metrics}),
        "all_reduced_bytes_per_step": traffic and traffic.all_reduced,
        "reduce_scattered_bytes_per_step": traffic and traffic.reduce_scattered,
        "all_gathered_bytes_per_step": traffic and traffic.all_gathered,
        "sent_bytes_per_step": traffic and traffic.sent(row.workers),
        "diverged": row.diverged,
    }


def run_data(run: RunFigures) -> dict[str, Any]:
    verdict, metrics = run.verdict, metrics_of(run.task)
    return {
        "run_id": run.run_id,
        "name": run.name,
        "variant": run.variant,
        "repeat": run.plan["repeat"],
        "seed": run.plan["seed"],
        "status": run.status,
        "reason": run.reason,
        "attempts": run.attempts,
        "gate": run.gate,
        "verdict": verdict and verdict.model_dump(mode="json", exclude={"run_id", "kind"}),
        "skipped": {
            record.split: record.model_dump(include={"samples", "skipped", "places"})
            for record in run.skipped
        },
        "batch_found": run.batch and run.batch.model_dump(mode="json", exclude={"run_id", "kind"}),
        **{metric.column: metric.value(run) for metric in metrics},
        "costs": run.costs
        and {
            **{
                each.column: each.value(run)
                for each in metrics
                if each.table == "costs" or hasattr(run.costs, each.name)
            },
            "counted": run.costs.counted
            and run.costs.counted.model_dump(mode="json", exclude={"run_id", "kind", "time"}),
        },
    }


def _stats(figures: Mapping[str, Stat | None]) -> dict[str, dict[str, Any]]:
    found = _outliers(figures)
    return {
        name: {
            "mean": figure and figure.mean,
            "low": figure and figure.low,
            "high": figure and figure.high,
            "n": figure.n if figure else 0,
            "values": list(figure.values) if figure else [],
            "outliers": found.get(name, []),
        }
        for name, figure in figures.items()
    }


def _outliers(figures: Mapping[str, Stat | None]) -> dict[str, list[int]]:
    """Name of a figure -> indices of the repeats that are outliers, by Grubbs' test at a level of
    5 % for each figure. Figures with the same number of repeats are tested in one call."""
    import numpy as np

    alike: dict[int, dict[str, Stat]] = {}
    for name, figure in figures.items():
        if figure is not None:
            alike.setdefault(figure.n, {})[name] = figure
    return {
        name: np.flatnonzero(mask).tolist()
        for group in alike.values()
        for name, mask in zip(
            group, outlying(np.array([each.values for each in group.values()]), LEVEL), strict=True
        )
    }


def _ratio(figure: Ratio | None) -> dict[str, Any]:
    return {name: figure and getattr(figure, name) for name in ("value", "low", "high")}
