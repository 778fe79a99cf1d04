"""What a run's images and devices cost: counted once a run, and metered in each epoch."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from raysuite import models
from raysuite.errors import UserError
from raysuite.measure.peaks import peak
from raysuite.measure.power import PowerMeter, Reading
from raysuite.models.costs import ModelCost
from raysuite.parallel.base import World
from raysuite.parallel.comm import Comm
from raysuite.plan import RunPlan
from raysuite.records import RunCosts
from raysuite.records.power import PowerUse
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.experiment import ModelOptions


class EpochPower:
    """What the devices and hosts of all workers draw in each epoch's training."""

    def __init__(self, plan: RunPlan, world: World) -> None:
        self._meter = PowerMeter(world.device) if plan.spec.measure.power == "auto" else None
        self._reading = Reading()

    def begin(self) -> None:
        """Before the first step."""
        if self._meter is not None:
            self._meter.begin()

    def end(self) -> None:
        """After the last step, before anything is computed of it."""
        if self._meter is not None:
            self._reading = self._meter.end()

    def use(self, comm: Comm) -> PowerUse | None:
        """The epoch's readings of all workers; every rank calls it. None where there are none."""
        if self._meter is None:
            return None
        mine, meter = self._reading, self._meter
        values = [mine.device_joules, mine.device_busy, mine.host_joules]
        row = [*(math.nan if each is None else each for each in values), meter.device, meter.host]
        rows = comm.all_gather(torch.tensor(row, dtype=torch.float64)).tolist()
        joules, busy, host_joules, devices, hosts = (
            [row[place] for row in rows] for place in range(5)
        )
        if not any(devices) and not any(hosts):
            return None
        return PowerUse(
            devices=_names(devices),
            device_joules=_known(joules),
            device_busy=_known(busy),
            hosts=_names(hosts),
            host_joules=_known(host_joules),
        )

    def close(self) -> None:
        """Stop sampling."""
        if self._meter is not None:
            self._meter.close()


def _names(numbers: list[float]) -> list[str]:
    return [f"{int(number):012x}" if number else "" for number in numbers]


def _known(values: list[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


def run_costs(plan: RunPlan, world: World, comm: Comm) -> RunCosts:
    """What one image of `plan` costs, and what the workers' device can do; every rank calls it."""
    device = _device(world, comm)
    known = peak(device, plan.spec.training.precision, _tf32())
    cost, message = None, ""
    try:
        with torch.random.fork_rng(devices=[]):
            cost = _counted(plan.spec.model.model_dump_json(), plan.dataset)
    except UserError as error:
        message = str(error)
    return RunCosts(
        run_id=plan.run_id,
        parameters=None if cost is None else cost.parameters,
        forward_flops=None if cost is None else cost.forward_flops,
        gradient_bytes=None if cost is None else cost.gradient_bytes,
        message=message,
        device=device,
        peak_flops=known and known.flops,
        peak_format=known.number_format if known else "",
        peak_source=known.source if known else "",
    )


@lru_cache
def _counted(model: str, facts: DatasetFacts) -> ModelCost:
    """Once a process, which several runs share: deep networks take seconds."""
    return models.cost_of(ModelOptions.model_validate_json(model), facts)


def _device(world: World, comm: Comm) -> str:
    """The name of all workers' device; empty on CPUs, and where they are not alike."""
    name = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else ""
    mine = torch.zeros(256, dtype=torch.int64)
    content = name.encode()[: len(mine)]
    mine[: len(content)] = torch.tensor(list(content), dtype=torch.int64)
    rows = comm.all_gather(mine)
    return name if bool((rows == rows[0]).all()) else ""


def _tf32() -> bool:
    """Whether convolutions in fp32 may be computed in TF32."""
    return bool(torch.backends.cudnn.allow_tf32)
