"""What may help a loader, by what bounds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raysuite.records.loading import LoadingBench, LoadingRow
from raysuite.report import text

LARGE = 2.0
"""Pixels of an image over those that the network sees: from here on smaller files pay."""


def advice(
    bound: str, best: LoadingRow, rows: Sequence[LoadingRow], bench: LoadingBench
) -> tuple[str, ...]:
    """What to try, the most promising first; nothing that was tried in this comparison."""
    return tuple(part for part in _parts(bound, best, rows, bench) if part)


def _parts(
    bound: str, best: LoadingRow, rows: Sequence[LoadingRow], bench: LoadingBench
) -> list[str | None]:
    name, width = best.candidate.options.get("name"), best.candidate.width
    processes = _untried(rows, lambda each: each.get("processes"))
    dali = _untried(rows, lambda each: each.get("name") == "dali")
    from_memory = _memory(rows, bench)
    match bound:
        case "nothing":
            return []
        case "other programs":
            return ["the same on a machine where nothing else runs"]
        case "reading":
            return [_shards(bench), from_memory, "a disk of the node's own for the data set"]
        case "threads":
            key = "processes" if best.candidate.options.get("processes") else "threads"
            return [f"--{key} {min(2 * width, cpus(bench))}"]
        case "waiting":
            by_lock = f"loading processes: --processes {width}" if processes else None
            larger = f"a larger batch: --batch {2 * int(bench.plan['batch'])}"
            return [by_lock, "--loader dali" if dali and name != "dali" else None, larger]
        case "decoding":
            parts = [_scaled(rows, bench), from_memory, _on_gpu(rows, bench), _smaller(bench)]
            return parts if any(parts) else ["more cores per worker"]
        case "resizing":
            return [_smaller(bench), "--loader dali" if dali else None, _on_gpu(rows, bench)]
        case _:
            uint8 = "'{name: native, transport: uint8}'" if _gpus(bench) else None
            return [_on_gpu(rows, bench), uint8, "more cores per worker"]


def widest(best: LoadingRow, rows: Sequence[LoadingRow]) -> bool:
    """Whether no row of the same series has more at work."""
    series, width = best.candidate.series, best.candidate.width
    return all(r.candidate.width <= width for r in rows if r.candidate.series == series)


def cpus(bench: LoadingBench) -> int:
    """Cores that the comparison may use."""
    cpu = bench.environment.get("cpu") or {}
    return int(cpu.get("usable_cores") or 1)


def _gpus(bench: LoadingBench) -> int:
    return len(bench.environment.get("gpus") or ())


def _untried(rows: Sequence[LoadingRow], found: Any) -> bool:
    return not any(found(row.candidate.options) for row in rows)


def _memory(rows: Sequence[LoadingRow], bench: LoadingBench) -> str | None:
    material = bench.material
    if material is None or any(
        row.candidate.options.get("name") == "memory" and row.throughput for row in rows
    ):
        return None
    size = material.pixel_bytes * material.samples
    if size > 0.5 * float(bench.environment.get("memory_bytes") or 0):
        return None
    return f"--loader memory (the decoded set takes about {text.size(size)})"


def _scaled(rows: Sequence[LoadingRow], bench: LoadingBench) -> str | None:
    if not bench.material or bench.material.jpeg_share < 0.5 or not _large(bench):
        return None
    if not _untried(rows, lambda each: each.get("decode") == "scaled"):
        return None
    return "--loader '{name: native, decode: scaled}' (other pixels, see docs/data.md)"


def _on_gpu(rows: Sequence[LoadingRow], bench: LoadingBench) -> str | None:
    if not _gpus(bench) or not _untried(rows, lambda each: each.get("device") == "gpu"):
        return None
    return "--loader '{name: dali, device: gpu}'"


def _shards(bench: LoadingBench) -> str | None:
    form = bench.plan["data"].get("format")
    return "TFRecord shards (`raysuite data convert`)" if form in (None, "folder") else None


def _smaller(bench: LoadingBench) -> str | None:
    if not bench.material or not bench.material.encoded or not _large(bench):
        return None
    return "smaller files (`raysuite data convert --shorter-side`)"


def _large(bench: LoadingBench) -> bool:
    facts, material = bench.plan["facts"], bench.material
    seen = facts["image_size"] ** 2 * facts["channels"]
    return material is not None and material.pixel_bytes >= LARGE * seen
