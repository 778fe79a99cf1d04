"""Collectives of a group of one process."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from raysuite.parallel.base import TorchGroupStrategy, World
from raysuite.parallel.comm import NoComm, TorchComm, gather_plain


@pytest.fixture
def comm() -> Iterator[TorchComm]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield TorchComm(torch.device("cpu"))
    dist.destroy_process_group()


def test_the_result_of_an_all_reduce_shares_no_memory_with_its_value(comm: TorchComm) -> None:
    value = torch.ones(3)
    found = comm.all_reduce(value, "sum")
    found += 1
    assert value.tolist() == [1.0] * 3


def test_plain_values_of_any_length_are_gathered_in_the_order_of_ranks() -> None:
    values = [{"a": "ü" * 9}, "", [1, 2.5, None]]
    texts = [json.dumps(each).encode() for each in values]

    class Middle(NoComm):
        """The second of three ranks."""

        def all_gather(self, value: Tensor) -> Tensor:
            if value.dtype == torch.int64:
                rows = [[len(each)] for each in texts]
                assert value.tolist() == rows[1]
                return torch.tensor(rows)
            most = len(max(texts, key=len))
            rows = [[*each, *[0] * (most - len(each))] for each in texts]
            assert value.tolist() == rows[1]
            return torch.tensor(rows, dtype=torch.uint8)

    assert gather_plain(Middle(), values[1]) == values
    assert gather_plain(NoComm(), values[0]) == values[:1]


def test_a_strategy_leaves_the_group_that_it_joined_alone() -> None:
    def started() -> TorchGroupStrategy:
        strategy = TorchGroupStrategy()
        strategy.start(World.alone(torch.device("cpu")))
        return strategy

    first, second = started(), started()
    second.stop()
    assert dist.is_initialized()
    first.stop()
    assert not dist.is_initialized()
    first.stop()
