"""A raylet that died while its node started is seen at once, and its logs are shown."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from raysuite.cluster.agent.patient_ray import raylet_died, tails, temp_folder


def test_a_raylet_that_has_ended_is_seen(tmp_path: Path) -> None:
    program = shutil.copy(shutil.which("sleep") or "", tmp_path / "raylet")
    lives = subprocess.Popen([program, "60"])
    try:
        assert not raylet_died()
        lives.kill()
        deadline = time.monotonic() + 30
        while not raylet_died() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert raylet_died()
    finally:
        lives.kill()
        lives.wait()
    assert not raylet_died()


def test_another_child_that_has_ended_says_nothing() -> None:
    ended = subprocess.Popen(["true"])
    time.sleep(0.2)
    assert not raylet_died()
    ended.wait()


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
