"""HorovodTrainer: Horovod's ranks under Ray Train V2, by its own and beside the users of Ray."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.require import require

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.integration,
    pytest.mark.slow,
    # Ray copies its own deprecated settings
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
]

WORKERS = 2


def on_each_rank(config: dict[str, Any]) -> None:
    """What a user's training function sees, written to a file per rank."""
    import horovod.torch as hvd
    import ray.train
    import torch

    context = ray.train.get_context()
    rank = hvd.rank()
    found = {
        "size": hvd.size(),
        "ray_rank": context.get_world_rank(),
        "local": [hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()],
        "sum": hvd.allreduce(torch.tensor([float(rank + 1)]), op=hvd.Sum).item(),
        "from_0": hvd.broadcast(torch.tensor([float(rank) + 5]), root_rank=0).item(),
        "variables": {k: v for k, v in os.environ.items() if k.startswith("HOROVOD_")},
        "pid": os.getpid(),
    }
    (Path(config["folder"]) / f"{config['name']}-{rank}.json").write_text(json.dumps(found))
    if config.get("raises") and rank == 1:
        raise ValueError("as asked")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    require("horovod")
    from raysuite.orchestrate.cluster import connect

    with pytest.MonkeyPatch.context() as patch:
        # the workers import this module by its name
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        with connect(None):
            yield


def fit(folder: Path, name: str, config: Any = None, **loop: Any) -> list[dict[str, Any]]:
    from ray.train import RunConfig, ScalingConfig

    from raysuite.orchestrate.horovod_trainer import HorovodTrainer

    HorovodTrainer(
        on_each_rank,
        train_loop_config={"folder": str(folder), "name": name, **loop},
        horovod_config=config,
        scaling_config=ScalingConfig(num_workers=WORKERS, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name=name, storage_path=str(folder / "ray")),
    ).fit()
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(WORKERS)]


@pytest.mark.usefixtures("cluster")
def test_ranks_reduce_and_leave(tmp_path: Path) -> None:
    from raysuite.orchestrate.horovod_trainer import HorovodConfig

    mine = {k: v for k, v in os.environ.items() if k.startswith("HOROVOD_")}
    tuned = HorovodConfig(fusion_threshold_mb=2, cycle_time_ms=3.5, start_timeout_s=45)
    found = fit(tmp_path, "tuned", tuned)
    for rank, each in enumerate(found):
        assert each["size"] == WORKERS
        assert each["ray_rank"] == rank
        assert each["local"] == [rank, WORKERS, 0, 1]
        assert each["sum"] == 3.0
        assert each["from_0"] == 5.0
        assert each["variables"]["HOROVOD_FUSION_THRESHOLD"] == str(2 * 2**20)
        assert each["variables"]["HOROVOD_CYCLE_TIME"] == "3.5"
        assert each["variables"]["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "45"
    # another trainer has workers of its own, and neither it nor the driver inherits anything
    again = fit(tmp_path, "plain")
    assert [each["sum"] for each in again] == [3.0, 3.0]
    assert {each["pid"] for each in again}.isdisjoint(each["pid"] for each in found)
    default = HorovodConfig().variables()
    for each in again:
        assert default.items() <= each["variables"].items()
    assert {k: v for k, v in os.environ.items() if k.startswith("HOROVOD_")} == mine


@pytest.mark.usefixtures("cluster")
def test_an_error_on_one_rank_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="as asked"):
        fit(tmp_path, "raises", raises=True)
