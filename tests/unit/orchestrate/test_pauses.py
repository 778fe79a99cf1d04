"""Pauses between two runs: the workers wait for the driver, and not for ever."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from raysuite.orchestrate import stopping
from raysuite.orchestrate.stopping import Pauses, wait_for_driver


def test_the_driver_acts_while_the_workers_wait(tmp_path: Path) -> None:
    pauses = Pauses(tmp_path, every_s=0.0)
    acted: list[bool] = []
    wait_for_driver(tmp_path)  # nothing is asked for
    time.sleep(0.01)
    pauses.poll(lambda: acted.append(True))  # asks
    pauses.poll(lambda: acted.append(True))  # no run has ended yet
    assert acted == []
    worker = threading.Thread(target=wait_for_driver, args=(tmp_path,))
    worker.start()
    while not acted:
        assert worker.is_alive()
        pauses.poll(lambda: acted.append(worker.is_alive()))
    worker.join(10)
    assert not worker.is_alive()
    assert acted == [True]


def test_a_pause_ends_where_what_is_done_in_it_fails(tmp_path: Path) -> None:
    pauses = Pauses(tmp_path, every_s=0.0)
    time.sleep(0.01)
    pauses.poll(lambda: None)
    worker = threading.Thread(target=wait_for_driver, args=(tmp_path,))
    worker.start()
    while stopping._number(tmp_path / stopping.PAUSED_FILE) == 0:
        time.sleep(0.01)
    with pytest.raises(ConnectionError):
        pauses.poll(_fails)
    worker.join(10)
    assert not worker.is_alive()


def _fails() -> None:
    raise ConnectionError


def test_a_driver_that_does_not_come_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "_PAUSE_S", 0.1)
    pauses = Pauses(tmp_path, every_s=0.0)
    time.sleep(0.01)
    pauses.poll(lambda: None)
    wait_for_driver(tmp_path)


def test_without_a_driver_that_pauses_nothing_is_waited_for(tmp_path: Path) -> None:
    wait_for_driver(tmp_path)
    assert list(tmp_path.iterdir()) == []
