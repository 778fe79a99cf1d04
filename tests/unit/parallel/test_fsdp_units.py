"""Which parts of a network fsdp gathers together, and that weights of several parts are trained."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from raysuite.data.base import Batch
from raysuite.errors import UserError
from raysuite.parallel import fsdp, make_strategy
from raysuite.parallel.base import StepSettings, World
from raysuite.parallel.fsdp import Fsdp, FsdpEngine, share_of, units
from raysuite.spec.strategies import FsdpOptions

CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.more = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.more(torch.tanh(self.inner(x)))
        return result


def network(tie: Callable[[nn.Sequential], None]) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Flatten(), Block(), Block(), Block(), nn.Linear(16, 16), nn.Linear(16, 10)
    )
    tie(net)
    return net


def two_blocks(net: nn.Sequential) -> None:
    net[2].inner.weight = net[1].inner.weight  # type: ignore[union-attr,assignment]


def block_and_root(net: nn.Sequential) -> None:
    net[4].weight = net[1].inner.weight  # type: ignore[union-attr,assignment]


def within_a_block(net: nn.Sequential) -> None:
    net[1].more.weight = net[1].inner.weight  # type: ignore[union-attr,assignment]


def one_block_twice(net: nn.Sequential) -> None:
    net[2] = net[1]


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()


def test_blocks_are_the_largest_modules_whose_class_occurs_several_times() -> None:
    one, two = nn.Sequential(Stage()), nn.Sequential(Stage(), Stage(), nn.Linear(16, 16))
    assert units(one, "blocks") == [one[0].first, one[0].second]
    assert units(two, "blocks") == [two[0], two[1]]
    assert units(nn.Sequential(Block(), nn.Linear(16, 16), nn.Linear(16, 16)), "blocks") == []
    assert units(one, "layers") == [
        layer for block in (one[0].first, one[0].second) for layer in (block.inner, block.more)
    ]


TIES = {two_blocks: 1, block_and_root: 2, within_a_block: 3, one_block_twice: 2}
"""-> blocks that share no weight with another part."""


@pytest.mark.parametrize(("gathered", "error"), [("fp32", 1e-6), ("bf16", 1e-3)])
@pytest.mark.parametrize("each", ["blocks", "layers"])
@pytest.mark.parametrize("tie", TIES)
def test_tied_weights_are_trained_as_by_a_plain_loop(
    tie: Callable[[nn.Sequential], None], each: str, gathered: str, error: float
) -> None:
    plain, sharded = network(tie), network(tie)
    if each == "blocks":
        assert len(units(sharded, each)) == TIES[tie]
    images, labels = torch.randn(4, 1, 4, 4), torch.arange(4)
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    options = FsdpOptions(units=each, gather_dtype=gathered)  # type: ignore[arg-type]
    strategy = make_strategy(options)
    strategy.start(World(0, 1, 0, torch.device("cpu")))
    try:
        engine = strategy.prepare(
            sharded, lambda parameters: torch.optim.SGD(parameters, 0.1), StepSettings(4)
        )
        for _ in range(2):
            optimizer.zero_grad()
            functional.cross_entropy(plain(images), labels).backward()
            optimizer.step()
            engine.step([Batch(images, labels, 4, 4)], 0.1)
        found = engine.weights()
    finally:
        strategy.stop()
    expected = dict(plain.named_parameters())
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value.detach(), rtol=0, atol=error, msg=name)


@pytest.mark.parametrize("before", [1, 2, 3, 5])
@pytest.mark.parametrize("now", [1, 2, 3, 4, 7])
def test_a_rank_keeps_the_rows_that_torch_chunk_gives_it(before: int, now: int) -> None:
    for rows in (1, 2, 3, 5, 8, 9, 10):
        whole = torch.arange(2.0 * rows).view(rows, 2)
        expected = [*whole.chunk(now), *[whole[:0]] * now][:now]  # later ranks have none
        shards = [*whole.chunk(before), *[whole[:0]] * before][:before]
        for rank in range(now):
            assert torch.equal(share_of(shards, now, rank), expected[rank])


@pytest.mark.parametrize("copies", [1, 2, 4])
def test_there_are_as_many_copies_as_the_spec_gives(copies: int) -> None:
    world = World(0, 4, 0, torch.device("cpu"))
    assert Fsdp(FsdpOptions(copies=copies))._copies(world) == copies


@pytest.mark.parametrize(
    ("hosts", "copies"),
    [
        *(("aa", 1), ("aabb", 2), ("abcd", 4), ("aaaabbbb", 2)),
        *((hosts, None) for hosts in ("aaab", "abab", "aab", "aaaab")),
    ],
)
def test_each_node_has_a_copy_if_its_workers_follow_one_another(
    hosts: str, copies: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsdp, "TorchComm", lambda device: None)
    monkeypatch.setattr(fsdp, "gather_plain", lambda comm, own: list(hosts))
    strategy, world = Fsdp(FsdpOptions(copies="nodes")), World(0, len(hosts), 0, CPU)
    refusal = pytest.raises(UserError, match=r"strategy\.copies: the value `nodes`")
    with nullcontext() if copies else refusal:
        assert strategy._copies(world) == copies


def test_a_further_copy_saves_nothing_and_loads_what_the_first_one_saved(tmp_path: Path) -> None:
    """Ranks 0 and 1 are copies of one shard."""
    strategy = make_strategy(FsdpOptions())
    strategy.start(World(0, 1, 0, torch.device("cpu")))
    try:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))
        engines = []
        for rank in (0, 1):
            torch.manual_seed(rank)
            engine = FsdpEngine(
                nn.Linear(2, 3),
                lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
                World(rank, 2, rank, torch.device("cpu")),
                StepSettings(4),
                FsdpOptions(copies=2),
                mesh,
            )
            engine.step([Batch(torch.randn(4, 2), torch.arange(4) % 3, 4, 4)], 0.1)
            engines.append(engine)
        first, second = engines
        second.save(tmp_path)
        assert list(tmp_path.iterdir()) == []
        first.save(tmp_path)
        assert [file.name for file in tmp_path.iterdir()] == ["engine-0.pt"]
        second.load(tmp_path)
        found, expected = second.weights(), first.weights()
        momenta = [
            [each["momentum_buffer"].full_tensor() for each in engine.optimizer.state.values()]
            for engine in engines
        ]
    finally:
        strategy.stop()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert [each.shape for each in momenta[1]] == [(3, 2), (3,)]
    torch.testing.assert_close(momenta[1], momenta[0], rtol=0, atol=0)
