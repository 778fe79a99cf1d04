"""Samples of hosts -> MLflow's system metrics, under the names that MLflow's own monitor gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from raysuite.records.system import SystemSample, read_samples, system_files
from raysuite.track.entries import Point, milliseconds

MEGA = 1e6


def system_points(folder: Path) -> Iterator[Point]:
    """`system/...` of each sample in a run's folder; step n is a host's n-th sample.

    With several hosts, the host's name stands between: `system/HOST/...`.
    """
    files = system_files(folder)
    for host, file in files.items():
        prefix = f"system/{host}/" if len(files) > 1 else "system/"
        for step, sample in enumerate(read_samples(file), 1):
            for name, value in _values(sample):
                yield Point(f"{prefix}{name}", value, milliseconds(sample.time), step)


def _values(sample: SystemSample) -> Iterator[tuple[str, float]]:
    yield "cpu_utilization_percentage", 100 * sample.cpu_busy
    yield "system_memory_usage_megabytes", sample.memory_bytes / MEGA
    if sample.memory_total_bytes:
        share = sample.memory_bytes / sample.memory_total_bytes
        yield "system_memory_usage_percentage", 100 * share
    yield "process_memory_usage_megabytes", sample.process_bytes / MEGA
    yield "network_receive_megabytes", sample.received_bytes / MEGA
    yield "network_transmit_megabytes", sample.sent_bytes / MEGA
    for gpu in sample.gpus:
        told = f"gpu_{gpu.index}_"
        if gpu.busy is not None:
            yield f"{told}utilization_percentage", 100 * gpu.busy
        if gpu.memory_bytes is not None:
            yield f"{told}memory_usage_megabytes", gpu.memory_bytes / MEGA
            if gpu.memory_total_bytes:
                share = gpu.memory_bytes / gpu.memory_total_bytes
                yield f"{told}memory_usage_percentage", 100 * share
        if gpu.watts is not None:
            yield f"{told}power_usage_watts", gpu.watts
