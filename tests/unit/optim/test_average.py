"""The average of the weights against its formula and torch's own."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from raysuite.optim.average import WeightAverage
from raysuite.parallel.base import read_state

DECAY = 0.8


def test_the_average_follows_its_formula() -> None:
    model = torch.nn.BatchNorm1d(2)
    average = WeightAverage(model, DECAY)
    expected = torch.zeros(4)
    for step in range(4):
        with torch.no_grad():
            model.weight.fill_(step * step)
            model.running_mean.fill_(10.0 * step)
        now = torch.tensor([step * step] * 2 + [10.0 * step] * 2)
        expected = now if step == 0 else DECAY * expected + (1 - DECAY) * now
        average.update(model)
    assert average.model.running_mean is not None
    found = torch.cat([average.weights()["weight"], average.model.running_mean])
    torch.testing.assert_close(found, expected)
    assert not average.model.training
    assert not average.model.weight.requires_grad


def test_indices_and_counts_are_copied() -> None:
    model = torch.nn.BatchNorm1d(2)
    index = torch.arange(100_000)
    model.register_buffer("index", index.clone())
    average = WeightAverage(model, 0.9999)
    for count in range(1, 6):
        model.num_batches_tracked.fill_(count)
        average.update(model)
    assert torch.equal(average.model.get_buffer("index"), index)
    assert average.model.get_buffer("num_batches_tracked").item() == 5


def test_complex_weights_are_averaged_too() -> None:
    """Also if no tensor of the model is of real numbers."""
    model = torch.nn.ParameterList([torch.zeros(1, dtype=torch.complex64)])
    average = WeightAverage(model, 0.5)
    for value in (2 + 4j, 4 + 12j):
        model[0].data.fill_(value)
        average.update(model)
    assert average.weights()["0"].tolist() == [3 + 8j]


def test_nothing_of_the_average_is_read_on_the_host() -> None:
    """Meta tensors have no values to read."""
    model = torch.nn.BatchNorm1d(2, device="meta")
    average = WeightAverage(model, DECAY)
    for _ in range(2):
        average.update(model)


def test_a_checkpoint_of_torchs_averaged_model_is_read(tmp_path: Path) -> None:
    theirs = AveragedModel(
        torch.nn.BatchNorm1d(2), multi_avg_fn=get_ema_multi_avg_fn(DECAY), use_buffers=True
    )
    ours = WeightAverage(torch.nn.BatchNorm1d(2), DECAY)
    model = torch.nn.BatchNorm1d(2)
    torch.nn.init.normal_(model.weight)
    theirs.update_parameters(model)
    torch.save(theirs.state_dict(), tmp_path / "average.pt")
    ours.load_state(read_state(tmp_path / "average.pt"))
    torch.nn.init.normal_(model.weight)
    theirs.update_parameters(model)
    ours.update(model)
    assert torch.equal(ours.weights()["weight"], theirs.module.weight)
    torch.save(ours.state(), tmp_path / "average.pt")
    theirs.load_state_dict(torch.load(tmp_path / "average.pt", weights_only=True))
    assert theirs.n_averaged.item() == 2
