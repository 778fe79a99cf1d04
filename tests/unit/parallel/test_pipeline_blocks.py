"""Networks as lists of blocks, and where they are cut."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import nn

from raysuite import models
from raysuite.errors import UserError
from raysuite.parallel.pipeline.blocks import blocks_of, partition, prune
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.experiment import ModelOptions


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("resnet20", 11), ("resnet18", 10), ("resnet50", 18), ("vgg11", 9), ("mobilenet_v2", 20)],
)
def test_blocks_one_after_the_other_are_the_network(name: str, blocks: int) -> None:
    facts = DatasetFacts(train_samples=1, val_samples=1, classes=10, channels=3, image_size=32)
    torch.manual_seed(0)
    model = models.build(ModelOptions(name=name), facts).eval()
    found = blocks_of(model)
    assert len(found) == blocks
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected, x = model(images), images
        for block in found:
            x = block(x)
    assert torch.equal(x, expected)
    whole = dict(model.named_parameters())
    prune(model, found[2:4])
    kept = dict(model.named_parameters())
    assert kept
    assert {id(each) for each in kept.values()} == {
        id(each) for block in found[2:4] for each in block.parameters
    }
    assert all(whole[key] is each for key, each in kept.items())


def test_a_network_of_ones_own() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 2)

        def layers(self) -> list[nn.Module]:
            return [self.one, self.one]

    class Opaque(nn.Module):
        pass

    assert len(blocks_of(nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.ReLU(True)))) == 1
    with pytest.raises(UserError, match=r"other\.weight"):
        blocks_of(Tied())
    with pytest.raises(UserError, match="Opaque"):
        blocks_of(Opaque())


def test_the_partition_is_the_best_of_all() -> None:
    draws = random.Random(5)
    for _ in range(1000):
        costs = [draws.choice([0, 1, 2, 3, 5, 8]) for _ in range(draws.randint(2, 10))]
        stages = draws.randint(1, min(5, len(costs)))
        found = partition(costs, stages)
        assert len(found) == stages
        assert sum(found) == len(costs)
        assert min(found) >= 1
        assert worst(costs, found) == min(
            worst(costs, [b - a for a, b in itertools.pairwise([0, *cuts, len(costs)])])
            for cuts in itertools.combinations(range(1, len(costs)), stages - 1)
        )
    with pytest.raises(UserError, match="2 blocks"):
        partition([1, 1], 3)


def worst(costs: list[int], sizes: list[int]) -> int:
    ends = list(itertools.accumulate(sizes))
    return max(sum(costs[end - size : end]) for end, size in zip(ends, sizes, strict=True))
