"""Collectives of a group of one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from raysuite.parallel.comm import TorchComm


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
