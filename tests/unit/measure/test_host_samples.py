"""Samples of this host: true, a last one always, and no run fails by them."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import psutil
import pytest

from raysuite.measure.host_samples import Host, sampling
from raysuite.records.system import read_samples, system_file, system_files


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
