"""Samples of this host: true, a last one always, and no run fails by them."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from raysuite.measure import host_samples
from raysuite.measure.host_samples import Host, sampling
from raysuite.records.system import GpuSample, read_samples, system_file, system_files


def test_a_sample_tells_this_host() -> None:
    with Host() as host:
        end = time.monotonic() + 0.3
        while time.monotonic() < end:  # one processor at work
            sum(range(1000))
        sample = host.sample()
    assert 0 < sample.cpu_busy <= 1
    assert 0 < sample.memory_bytes < sample.memory_total_bytes == psutil.virtual_memory().total
    assert 0 < sample.process_bytes <= sample.memory_total_bytes
    assert sample.received_bytes >= 0
    assert sample.sent_bytes >= 0


def test_gpus_and_traffic_are_in_shares_bytes_and_watts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nvml:
        """Two GPUs; the second one reports only its memory."""

        NVMLError = OSError

        def nvmlDeviceGetCount(self) -> int:  # noqa: N802
            return 2

        def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
            return index

        def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
            return SimpleNamespace(used=3 + handle, total=8)

        def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
            if handle:
                raise OSError
            return SimpleNamespace(gpu=40, memory=7)

        def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
            if handle:
                raise OSError
            return 250_500

        def nvmlShutdown(self) -> None:  # noqa: N802
            left.append(True)

    left: list[bool] = []
    seen = ((100, 1000), (130, 1005))
    traffic = iter([{"bytes_recv": received, "bytes_sent": sent} for received, sent in seen])
    monkeypatch.setattr(host_samples, "nvml", Nvml)
    monkeypatch.setattr(
        psutil,
        "net_io_counters",
        lambda: SimpleNamespace(**next(traffic)),
    )
    with Host() as host:
        sample = host.sample()
    assert (sample.received_bytes, sample.sent_bytes, left) == (30, 5, [True])
    assert sample.gpus == [
        GpuSample(index=0, busy=0.4, memory_bytes=3, memory_total_bytes=8, watts=250.5),
        GpuSample(index=1, busy=None, memory_bytes=4, memory_total_bytes=8, watts=None),
    ]


def test_a_short_run_has_one_sample_and_a_longer_one_more(tmp_path: Path) -> None:
    with sampling(system_file(tmp_path / "short", "a-host")):
        # MLflow is told of a host's samples by a name that depends on whether there are others
        assert list(system_files(tmp_path / "short")) == ["a-host"]
    [(host, file)] = system_files(tmp_path / "short").items()
    assert host == "a-host"
    assert len(list(read_samples(file))) == 1
    longer = system_file(tmp_path / "longer", "a-host")
    with sampling(longer, period_s=0.01):
        while not longer.exists() or len(list(read_samples(longer))) < 3:
            time.sleep(0.01)
    times = [sample.time for sample in read_samples(longer)]
    assert len(times) >= 4
    assert times == sorted(times)
    with sampling(None):
        pass


def test_what_cannot_be_written_ends_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING), sampling(system_file(tmp_path / "file", "a-host")):
        pass
    assert "sampling of this host stopped" in caplog.text


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    file = system_file(tmp_path, "node/1 of 2")
    assert file.name == "system-node_1_of_2.jsonl"
    with sampling(file):
        pass
    file.write_text(file.read_text() + '{"time": 1.0, "cpu_b\n' + file.read_text())
    assert len(list(read_samples(file))) == 2
