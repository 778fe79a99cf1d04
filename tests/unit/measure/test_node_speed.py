"""The figures of a node, from the seconds of its work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from raysuite.measure import node_speed

CPU = torch.device("cpu")


def test_figures_are_amounts_of_work_per_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def half_a_second(work: Callable[[], object], device: torch.device) -> float:
        work()
        return 0.5

    monkeypatch.setattr(node_speed, "_mean_s", half_a_second)
    monkeypatch.setattr(node_speed, "_read_s", lambda folder: 0.5)
    assert node_speed.node_figures(CPU, tmp_path) == {
        "matrix": pytest.approx(0.536870912),  # 2 * 512^3 operations
        "memory": pytest.approx(0.134217728),  # 2^23 fp32 numbers, read and written
        "disk": pytest.approx(134.217728),  # 64 MiB
    }
    monkeypatch.undo()
    monkeypatch.setattr(node_speed, "_mean_s", half_a_second)
    assert node_speed.node_figures(CPU, tmp_path / "missing").keys() == {"matrix", "memory"}


def test_a_mean_is_over_all_calls_but_those_of_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def work() -> None:
        now[0] += 1.0 if now[0] < 3 else 0.15  # three calls of the warm-up

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    assert node_speed._mean_s(work, CPU) == pytest.approx(0.15)
