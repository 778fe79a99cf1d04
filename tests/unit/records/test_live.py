from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raysuite.records.live import LivePosition, LiveProgress, live_position


def _wait(file: Path, ready: Callable[[LivePosition], bool]) -> LivePosition:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        position = live_position(file)
        if position is not None and ready(position):
            return position
        time.sleep(0.002)
    raise AssertionError(f"{file}: {live_position(file)}")


def test_the_position_follows_the_steps_and_is_removed_at_the_end(tmp_path: Path) -> None:
    file, live = tmp_path / "progress.json", LiveProgress()
    live.start(file, period_s=0.001)
    try:
        live.begin(1, 2, [32, 32, 32, 4])
        first = _wait(file, lambda at: at.step == 2)
        assert (first.epoch, first.steps, first.images, first.loss) == (1, 4, 64, None)
        assert first.images_per_second is None
        time.sleep(0.05)
        live.step(3, lambda: 0.5)
        live.step(4, lambda: 0.25)
        last = _wait(file, lambda at: at.step == 4)
        assert (last.images, last.loss) == (100, 0.25)
        assert last.images_per_second is not None
        assert 0 < last.images_per_second <= 36 / 0.05
        live.begin(2, 0, [32, 32])
        assert _wait(file, lambda at: at.epoch == 2).images_per_second is None
    finally:
        live.close()
    assert list(tmp_path.iterdir()) == []


def test_without_a_file_nothing_is_started(tmp_path: Path) -> None:
    live, before = LiveProgress(), threading.active_count()
    live.begin(0, 0, [1])
    live.step(1, lambda: 1.0)
    assert threading.active_count() == before
    live.close()


def test_a_folder_that_is_gone_ends_the_writing_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live = LiveProgress()
    live.start(tmp_path / "none" / "progress.json", period_s=0.001)
    live.begin(0, 0, [1])
    deadline = time.monotonic() + 10
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.002)
    live.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_half_a_file_is_no_position(tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    assert live_position(file) is None
    file.write_text('{"time": 1', "utf-8")
    assert live_position(file) is None
