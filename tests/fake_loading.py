"""Comparisons of loaders with figures of one's choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raysuite.plan.loading import candidates, checked_data, loader_blocks
from raysuite.records.loader_rates import Failure, LoadingBench, Material, Timing

Speed = tuple[Sequence[float], float]
"""Images/s of each round, and cores busy."""


def fake_bench(
    speeds: Mapping[str, Speed],
    *,
    loaders: Sequence[Any] = ("native", "dali", "memory", "synthetic"),
    threads: Sequence[int] = (1, 2),
    cpus: int = 2,
    gpus: int = 0,
    others: float | Mapping[str, float] = 0.0,
    failures: Mapping[str, str] | None = None,
    **material: Any,
) -> LoadingBench:
    """A comparison over an image folder of 500 x 375 JPEGs, seen at 224 pixels.

    `others`: cores that other programs kept busy, beside all candidates or beside those named.
    """
    facts = {
        "train_samples": 20_000,
        "val_samples": 1000,
        "classes": 10,
        "channels": 3,
        "image_size": 224,
    }
    known = {
        "samples": 20_000,
        "image_bytes": 1e5,
        "pixel_bytes": 500 * 375 * 3,
        "jpeg_share": 1.0,
        "encoded": True,
        "augment": "resized_crop_flip",
        "read_before": True,
    }
    data = checked_data({"name": "image_folder", "path": "photos", "image_size": 224})
    plan = {
        "data": data.model_dump(mode="json"),
        "facts": facts,
        "split": "train",
        "batch": 64,
        "seconds": 3.0,
        "images": None,
        "repeats": max(len(rates) for rates, _ in speeds.values()) if speeds else 1,
        "device": "cpu",
    }
    beside = others if isinstance(others, Mapping) else dict.fromkeys(speeds, others)
    timings = [
        Timing(
            candidate=name,
            repeat=repeat,
            images=int(1000 * rate),
            seconds=1000.0,
            cpu_seconds=1000 * cores,
            machine_seconds=1000 * (cores + beside.get(name, 0.0)),
            start_seconds=1.0,
        )
        for name, (rates, cores) in speeds.items()
        for repeat, rate in enumerate(rates)
    ]
    bench = LoadingBench(
        name="image_folder",
        time=1.8e9,
        plan=plan,
        candidates=tuple(candidates(loader_blocks(loaders), threads, [])),
        environment={
            "cpu": {"usable_cores": cpus},
            "gpus": [{"name": "a GPU"}] * gpus,
            "memory_bytes": 2**40,
        },
        material=Material(**{**known, **material}),
        timings=tuple(timings),
        failures=tuple(
            Failure(candidate=name, repeat=0, reason=reason)
            for name, reason in (failures or {}).items()
        ),
        complete=True,
    )
    assert {each.candidate for each in timings} <= {each.name for each in bench.candidates}
    return bench
