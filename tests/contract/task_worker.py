"""What test_tasks.py asks of the ranks of one world: every task, under every variant."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from raysuite import models
from raysuite.data.base import Batch
from raysuite.parallel.base import TorchEngine, World
from raysuite.parallel.ddp import DdpEngine
from raysuite.plan import RunPlan, make_plans
from raysuite.records import EpochFinished, GateVerdict, RunFailed, RunStopped
from raysuite.spec import Document
from raysuite.train import stop_together
from raysuite.train.run import execute
from raysuite.train.stop_together import Stop
from raysuite.train.world import world_from_environment
from tests.contract.launches import write
from tests.task_sets import BATCH, EPOCHS, called, metrics_of, plain, samples_of, spec_of


def plan_of(case: str, strategy: dict[str, Any], workers: int, accumulate: int) -> RunPlan:
    spec = spec_of(
        case,
        Path(os.environ["RAYSUITE_CACHE"]),
        strategy=strategy,
        resources={"workers": workers, "device": "cpu"},
        training={"epochs": EPOCHS, "global_batch": BATCH, "accumulate": accumulate},
    )
    return make_plans(Document(spec, "test"), gpus=0)[0]


def stopped(plan: RunPlan, world: World, folder: Path) -> dict[str, Any]:
    """Stop in the midst of the first epoch, with a checkpoint in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    stop = Stop("preempted", 7.0)
    with patch.object(stop_together, "MEET_SECONDS", 0.0):  # it is asked after every step
        *_, end = execute(
            plan, world, checkpoint=lambda loop: loop.save(folder), requested_end=lambda: stop
        )
    assert isinstance(end, RunStopped), end
    return {"step": end.step}


def trained(plan: RunPlan, case: str, world: World, resume: Path | None = None) -> dict[str, Any]:
    """The gate's verdict, and the errors of losses and weights beside a plain loop."""
    folder = Path(os.environ["RAYSUITE_CACHE"])
    file = folder / "model.pt"
    records = list(execute(plan, world, model_file=file, resume=resume))
    verdict = next(each for each in records if isinstance(each, GateVerdict))
    failed = [each.message for each in records if isinstance(each, RunFailed)]
    epochs = [each for each in records if isinstance(each, EpochFinished)]
    found: dict[str, Any] = {
        "passed": verdict.passed,
        "network": verdict.network,
        "failed": failed,
        "val": epochs[-1].validation if epochs else {},
        "images": [epoch.images for epoch in epochs],
    }
    if failed or world.rank:
        return found
    torch.manual_seed(plan.seed)
    network = models.build(plan.spec.model, plan.dataset)
    expected = torch.tensor(plain(case, folder, network, plan.seed))
    losses = torch.tensor([loss for epoch in epochs for loss in epoch.losses])
    state, reference = torch.load(file), network.state_dict()
    weights = [
        ((state[name] - each).norm() / each.norm()).item() for name, each in reference.items()
    ]
    network.load_state_dict(state)
    count, batch = samples_of(case, folder, "val")
    with torch.no_grad():
        inputs, targets = batch(list(range(count)))
        metrics = metrics_of(case, called(network, inputs), targets)
    assert metrics.keys() == found["val"].keys()
    return found | {
        "metrics": max(
            abs(found["val"][name] / (each or 1) - (each and 1)) for name, each in metrics.items()
        ),
        "steps": len(losses),
        "losses": ((losses - expected).abs() / expected).max().item(),
        "weights": max(weights),
    }


# Seeded defects of DDP with the run's own network, which the gate has to find.


def mean_of_means(self: DdpEngine, batch: Batch, output: Any) -> tuple[Tensor, Tensor]:
    """Divide by this rank's tokens, not by the global batch's."""
    if self.criterion is None:
        return TorchEngine.loss(self, batch, output)
    total = self.criterion(output, batch.labels)
    return total / (batch.labels != -100).sum(), total.detach()


def tied_twice(self: DdpEngine) -> None:
    """Update the first weight, which is tied to the last, once more."""
    TorchEngine.take_step(self)
    if self.criterion is not None:
        first, rate = next(self.model.parameters()), self.optimizer.param_groups[0]["lr"]
        with torch.no_grad():
            first -= rate * first.grad


DEFECTS = {"loss": mean_of_means, "take_step": tied_twice}


@contextmanager
def own_cache() -> Iterator[None]:
    """Verdicts of other code are not known there."""
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, RAYSUITE_CACHE=folder):
        yield


def main(request: dict[str, Any], file: Path) -> None:
    world = world_from_environment("cpu")
    found: dict[str, Any] = {}
    with own_cache():
        for label, (case, strategy, accumulate) in request["runs"].items():
            found[label] = trained(plan_of(case, strategy, world.size, accumulate), case, world)
        for label, (case, strategy, place) in request.get("stopped", {}).items():
            found[label] = stopped(plan_of(case, strategy, world.size, 1), world, Path(place))
        for label, (case, strategy, place) in request.get("resumed", {}).items():
            plan = plan_of(case, strategy, world.size, 1)
            found[label] = trained(plan, case, world, resume=Path(place))
    for name, defect in DEFECTS.items() if request.get("defects") else ():
        with own_cache(), patch.object(DdpEngine, name, defect):
            plan = plan_of("language_model", {"name": "ddp"}, world.size, 1)
            found[name] = trained(plan, "language_model", world)
    write(found, file, world.rank)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
