"""Each task is trained and validated as by a plain loop that shares no code with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from raysuite import models
from raysuite.parallel.base import World
from raysuite.plan import RunPlan, make_plans
from raysuite.records import EpochFinished, Record
from raysuite.spec import Document
from raysuite.train.run import execute
from tests.task_sets import CASES, called, mean_loss_of, plain, samples_of, spec_of

EVERY = ["language_model", *CASES]


def plan_of(case: str, folder: Path, **changes: Any) -> RunPlan:
    return make_plans(Document(spec_of(case, folder, **changes), "test"), gpus=0)[0]


def run(plan: RunPlan, **options: Any) -> list[Record]:
    return list(execute(plan, World(0, 1, 0, torch.device("cpu")), **options))


def epochs_of(records: list[Record]) -> list[EpochFinished]:
    return [record for record in records if isinstance(record, EpochFinished)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("RAYSUITE_CACHE", str(cache))
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("case", EVERY)
def test_a_task_is_trained_as_by_a_plain_loop(case: str, accumulate: int, tmp_path: Path) -> None:
    plan = plan_of(case, tmp_path)
    changed = plan.spec.training.model_copy(update={"accumulate": accumulate})
    plan = plan_of(case, tmp_path, training=changed.model_dump(exclude_defaults=True))
    torch.manual_seed(plan.seed)
    network = models.build(plan.spec.model, plan.dataset)
    expected = plain(case, tmp_path, network)
    file = tmp_path / "model.pt"
    epochs = epochs_of(run(plan, model_file=file))
    losses = [loss for epoch in epochs for loss in epoch.losses]
    assert len(losses) >= 20
    assert losses == pytest.approx(expected, rel=1e-5)
    for name, value in torch.load(file).items():
        torch.testing.assert_close(value, network.state_dict()[name], rtol=1e-5, atol=1e-6)
    count, batch = samples_of(case, tmp_path, "val")
    with torch.no_grad():
        inputs, targets = batch(list(range(count)))
        val = mean_loss_of(case)(called(network, inputs), targets).item()
    assert epochs[-1].val_loss == pytest.approx(val, rel=1e-5)
    assert set(epochs[-1].validation) == {each.name for each in plan.task.metrics}
