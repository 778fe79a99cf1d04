"""`raysuite check`: the cluster ends with the command."""

from __future__ import annotations

import json
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from raysuite.cli import app, check
from raysuite.cluster import client
from raysuite.plan import make_plans
from raysuite.records.verdicts import published
from raysuite.spec import Document
from tests import fake_results


@pytest.mark.parametrize(
    ("gpus", "cpus", "nodes", "workers", "batch", "epochs"),
    [
        (4, 96, 2, 4, 256, 16),
        (40, 960, 10, 16, 1024, 64),
        (0, 96, 2, 4, 240, 4),
        (0, 1, 2, 1, 240, 4),
        (0, 7, 4, 7, 238, 4),
        (0, 640, 7, 14, 238, 4),
        (0, 6400, 100, 120, 240, 4),
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


@pytest.mark.parametrize(
    ("gpus", "words", "below"),
    [(0, [], set()), (4, [], {published("GH200").source}), (4, ["--expected=1e9"], {"expected"})],
)
def test_a_check_fails_below_what_is_expected_or_else_published_of_the_gpus_it_used(
    gpus: int, words: list[str], below: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On nodes with GH200; the made-up results are slower."""
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path))
    monkeypatch.setitem(fake_results.ENVIRONMENT, "gpus", [{"name": "GH200"}])
    cluster = SimpleNamespace(site=SimpleNamespace(name="mine"))
    alive = SimpleNamespace(gpus=gpus, cpus=4)
    status = SimpleNamespace(alive=alive, alive_count=1, cluster=cluster)

    def job(folder: object, status: object, command: str) -> None:
        fake_results.write_results(Path(command.split(" --quiet")[0].split()[-1]))

    monkeypatch.setattr(check, "_cluster", lambda *_: nullcontext((None, status)))
    monkeypatch.setattr(check, "_job", job)
    (damaged := tmp_path / "checks" / "mine" / "1" / "check.json").parent.mkdir(parents=True)
    damaged.write_bytes(b"{")
    done = CliRunner().invoke(app, ["check", "mine", *words, "--json"])
    assert f"{damaged} is damaged" in " ".join(done.stderr.split())
    found = json.loads(done.stdout)["figures"]
    assert {each["source"] for each in found if not each["ok"]} == below
    assert done.exit_code == bool(below)
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path / "other"))  # without an earlier check
    shown = CliRunner().invoke(app, ["check", "mine", *words])
    assert shown.exit_code == done.exit_code
    *lines, last = shown.stdout.splitlines()
    figures = [line.partition(" = ")[0].removeprefix("check: ") for line in lines]
    assert figures == [each["what"] for each in found]
    assert [line.endswith(") ok") for line in lines] == [each["ok"] for each in found]
    assert last.startswith(f"check: {'wrong' if below else 'ok'}; written to {tmp_path / 'other'}")


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
