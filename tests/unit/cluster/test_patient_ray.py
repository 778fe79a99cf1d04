"""A raylet that died while its node started is seen at once, and its logs are shown."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raysuite.cluster.agent.patient_ray import raylet_lives, tails, temp_folder


@pytest.mark.parametrize("reaped", [False, True])
def test_a_raylet_that_has_ended_is_seen(tmp_path: Path, reaped: bool) -> None:
    program = shutil.copy(shutil.which("sleep") or "", tmp_path / "raylet")
    raylet = subprocess.Popen([program, "60"])
    try:
        _until(raylet_lives)
        raylet.kill()
        if reaped:
            raylet.wait()
        _until(lambda: not raylet_lives())
    finally:
        raylet.kill()
        raylet.wait()


def test_another_child_is_none() -> None:
    other = subprocess.Popen(["sleep", "60"])
    assert not raylet_lives()
    other.kill()
    other.wait()


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert true()


def test_its_logs_are_shown_by_their_ends(tmp_path: Path) -> None:
    logs = tmp_path / "session_latest" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("x" * 5000 + "the end", "utf-8")
    (logs / "raylet.err").write_text("", "utf-8")
    (logs / "runtime_env_agent.err").write_text("why", "utf-8")
    shown = tails(temp_folder(["ray", "start", f"--temp-dir={tmp_path}"]))
    assert shown.startswith("--- runtime_env_agent.err\nwhy\n--- raylet.out\nx")
    assert shown.endswith("the end")
    assert len(shown) < 2000
