"""Samples become MLflow's system metrics, under its own names; of several hosts, each is named."""

from __future__ import annotations

from pathlib import Path

from raysuite.records.system import (
    GpuSample,
    SystemSample,
    read_samples,
    system_file,
    system_files,
)
from raysuite.track.upload import system_points

GPU = GpuSample(
    index=1, busy=0.5, memory_bytes=2 * 10**9, memory_total_bytes=8 * 10**9, watts=300.0
)
SAMPLE = SystemSample(
    time=1_700_000_000.5,
    cpu_busy=0.25,
    memory_bytes=10**9,
    memory_total_bytes=4 * 10**9,
    process_bytes=5 * 10**8,
    received_bytes=3_000_000,
    sent_bytes=1_000_000,
    gpus=[
        GPU,
        GpuSample(index=2, busy=None, memory_bytes=None, memory_total_bytes=None, watts=None),
    ],
)


def write(folder: Path, host: str, samples: int) -> None:
    lines = [SAMPLE.model_dump_json() + "\n"] * samples
    system_file(folder, host).write_text("".join(lines), "utf-8")


def test_one_host(tmp_path: Path) -> None:
    write(tmp_path, "a", samples=2)
    points = list(system_points(tmp_path))
    assert {point.step for point in points} == {1, 2}
    assert {point.timestamp for point in points} == {1_700_000_000_500}
    assert {point.key: point.value for point in points} == {
        "system/cpu_utilization_percentage": 25.0,
        "system/system_memory_usage_megabytes": 1000.0,
        "system/system_memory_usage_percentage": 25.0,
        "system/process_memory_usage_megabytes": 500.0,
        "system/network_receive_megabytes": 3.0,
        "system/network_transmit_megabytes": 1.0,
        "system/gpu_1_utilization_percentage": 50.0,
        "system/gpu_1_memory_usage_megabytes": 2000.0,
        "system/gpu_1_memory_usage_percentage": 25.0,
        "system/gpu_1_power_usage_watts": 300.0,
    }


def test_several_hosts_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path, "a", samples=1)
    write(tmp_path, "b", samples=1)
    keys = {point.key for point in system_points(tmp_path)}
    assert "system/a/cpu_utilization_percentage" in keys
    assert "system/b/cpu_utilization_percentage" in keys


def test_none(tmp_path: Path) -> None:
    assert list(system_points(tmp_path)) == []


def test_a_hosts_name_is_that_of_a_file(tmp_path: Path) -> None:
    write(tmp_path, "n-1.a_b/c d", samples=2)
    (tmp_path / "journal.jsonl").touch()
    [(host, file)] = system_files(tmp_path).items()
    assert (host, file) == ("n-1.a_b_c_d", tmp_path / "system-n-1.a_b_c_d.jsonl")
    file.write_text(file.read_text("utf-8").replace("{", "", 1), "utf-8")
    assert list(read_samples(file)) == [SAMPLE], "the other line is damaged"
