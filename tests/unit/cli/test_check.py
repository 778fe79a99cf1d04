"""`raysuite check`: the cluster ends with the command."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from raysuite.cli import check
from raysuite.cluster import client
from raysuite.plan import make_plans
from raysuite.spec import Document


@pytest.mark.parametrize(
    ("gpus", "cpus", "nodes", "workers", "batch", "epochs"),
    [
        (4, 96, 2, 4, 256, 16),
        (40, 960, 10, 16, 1024, 64),
        (0, 96, 2, 4, 240, 4),
        (0, 1, 2, 1, 240, 4),
    ],
)
def test_the_suite_has_a_worker_for_each_gpu_or_two_for_each_node(
    gpus: int, cpus: int, nodes: int, workers: int, batch: int, epochs: int
) -> None:
    plans = make_plans(Document(check.suite_of(gpus, cpus, nodes), "check.yaml"), gpus)
    assert [plan.repeat for plan in plans] == [0, 1, 2]
    for plan in plans:
        assert (plan.workers, plan.device) == (workers, "gpu" if gpus else "cpu")
        assert (plan.global_batch, plan.spec.training.epochs) == (batch, epochs)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_cluster(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    folder, ended = SimpleNamespace(), []
    monkeypatch.setattr(check, "bring_up", lambda *_: folder)
    monkeypatch.setattr(client, "status_of", lambda _: None)

    def down(found: Any, grace_s: float) -> list[str]:
        ended.append(found)
        return []

    monkeypatch.setattr(client, "down", down)
    with pytest.raises(SystemExit) as stopped, check._cluster("local", None):
        signal.raise_signal(number)
    assert (stopped.value.code, ended) == (128 + number, [folder])
