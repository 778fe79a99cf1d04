"""A reference for asynchronous pipelines: one process applies gradients with the pipeline's delay.

The process holds every version of every stage's weights. Each micro-batch in turn passes forward
and backward through the whole network, with the versions that the schedule determines. Reference
and pipeline share the schedule and the partition, but no code for execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn

from raysuite.data.base import Batch
from raysuite.parallel.base import BaseStrategy, MakeOptimizer, StepSettings, World, set_lr
from raysuite.parallel.pipeline.blocks import blocks_of
from raysuite.parallel.pipeline.partition import stage_sizes
from raysuite.parallel.single import SingleEngine
from raysuite.spec.strategies import PipelineOptions


class DelayedEngine(SingleEngine):
    """The engine of the reference. A step trains on the micro-batches of all copies of the
    pipeline, one copy after the other."""

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        world: World,
        settings: StepSettings,
        options: PipelineOptions,
    ) -> None:
        super().__init__(model, make_optimizer, world, settings)
        self.schedule = options.pipeline()
        blocks = blocks_of(model)
        sizes = stage_sizes(options, blocks)
        self._stages = [
            list(
                dict.fromkeys(
                    each for block in blocks[end - size : end] for each in block.parameters
                )
            )
            for end, size in zip(accumulate(sizes), sizes, strict=True)
        ]
        self._steps = 0
        self._versions: list[list[list[Tensor]]] = []
        """Versions of the weights: [updates since the pipeline was empty][stages][parameters]."""
        self.drain()

    def drain(self) -> None:
        self._steps, self._versions = 0, [self._copied()]

    def load(self, folder: Path) -> None:
        super().load(folder)
        self.drain()

    def step(self, micro_batches: Sequence[Batch], lr: float) -> Tensor:
        set_lr(self.optimizer, lr)
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.world.device)
        count = self.schedule.micro_batches
        for place, batch in enumerate(micro_batches):
            self._take(self._steps * count + place % count)
            loss, summed = self.loss(batch, self.autocast(batch.images))
            loss.backward()
            total += summed
        self._put(self._versions[-1])
        self.take_step()
        self._steps += 1
        self._versions.append(self._copied())
        return total

    def _copied(self) -> list[list[Tensor]]:
        return [[each.detach().clone() for each in stage] for stage in self._stages]

    def _take(self, micro_batch: int) -> None:
        """Load into each stage the version of its weights that a micro-batch needs."""
        versions = [self.schedule.version(stage, micro_batch) for stage in range(len(self._stages))]
        self._put([self._versions[version][stage] for stage, version in enumerate(versions)])

    @torch.no_grad()
    def _put(self, values: list[list[Tensor]]) -> None:
        for stage, held in zip(self._stages, values, strict=True):
            for parameter, value in zip(stage, held, strict=True):
                parameter.copy_(value)


class Delayed(BaseStrategy):
    """The reference for an asynchronous pipeline. It takes the pipeline's options; the pipeline may
    have any number of copies of the network."""

    engine = DelayedEngine
