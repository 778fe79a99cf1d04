"""What a run tells of its costs: energy of each epoch, top-5, and the count of a model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raysuite import models
from raysuite.data import make_loader, prepare, rank_slices
from raysuite.measure.power_meter import PowerMeter, Reading
from raysuite.parallel.base import World
from raysuite.parallel.comm import NoComm
from raysuite.records import EpochFinished, Record, RunCosts, run_figures
from raysuite.records.power import PowerUse
from raysuite.train import cost_meter
from tests.unit.train.conftest import plan_of, run


def epochs_of(records: list[Record]) -> list[EpochFinished]:
    return [record for record in records if isinstance(record, EpochFinished)]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A counter like the kernel's, which stands still unless a test moves it."""
    folder = tmp_path / "powercap" / "intel-rapl:0"
    folder.mkdir(parents=True)
    for name, content in (("name", "package-0"), ("max_energy_range_uj", 10**9), ("energy_uj", 5)):
        (folder / name).write_text(f"{content}\n")
    monkeypatch.setattr(cost_meter, "PowerMeter", partial(PowerMeter, powercap=folder.parent))
    return folder


def test_energy_of_each_epochs_training(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn in validation is not in it."""
    begin = PowerMeter.begin
    counted = [1000]

    def draw(microjoules: int) -> None:
        counted[0] += microjoules
        (package / "energy_uj").write_text(f"{counted[0]}\n")

    def begin_and_train(meter: PowerMeter) -> None:
        draw(7_000_000)  # since the last epoch's training
        begin(meter)
        draw(1_437_000)

    monkeypatch.setattr(PowerMeter, "begin", begin_and_train)
    plan = plan_of()
    records = run(plan)
    for epoch in epochs_of(records):
        assert epoch.power is not None
        assert epoch.power.host_joules == [pytest.approx(1.437)]
        assert epoch.power.device_joules == epoch.power.device_busy == [None]
        assert epoch.power.devices == [""]
        assert len(epoch.power.hosts[0]) == 12
    found = run_figures(plan.model_dump(mode="json"), records).costs
    assert found is not None
    assert found.host_joules == pytest.approx(1e-3)  # 1437 images
    assert found.device_joules is None


def test_off_reads_nothing(package: Path) -> None:
    records = run(plan_of(measure_power="off", training_epochs=1))
    assert epochs_of(records)[0].power is None


def test_without_a_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_meter, "PowerMeter", partial(PowerMeter, powercap=tmp_path))
    assert epochs_of(run(plan_of(training_epochs=1)))[0].power is None


def test_top5_is_that_of_the_model(tmp_path: Path) -> None:
    plan = plan_of(training_epochs=1, optimizer_lr=0.001)
    file = tmp_path / "model.pt"
    (epoch,) = epochs_of(run(plan, model_file=file))
    model = models.build(plan.spec.model, plan.dataset)
    model.load_state_dict(torch.load(file, weights_only=True))
    model.eval()
    loader = make_loader(
        prepare(plan.spec.data, plan.dataset), "val", plan.spec.loader, torch.device("cpu")
    )
    (step,) = rank_slices(torch.arange(360).numpy(), 360, 1, 0)
    (batch,) = loader.batches(step)
    with torch.no_grad():
        logits = model(batch.images)
    loader.close()
    true = logits.gather(1, batch.labels.unsqueeze(1))
    among = ((logits > true).sum(1) < 5).float().mean().item()
    assert epoch.val_top5 == pytest.approx(among)
    assert epoch.val_accuracy < epoch.val_top5 < 1


def test_a_model_that_cannot_be_counted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise cost_meter.UserError("it is odd")

    cost_meter._counted.cache_clear()
    monkeypatch.setattr(cost_meter.models, "cost_of", fails)
    plan = plan_of(training_epochs=1)
    records = run(plan)
    (found,) = (record for record in records if isinstance(record, RunCosts))
    assert (found.forward_flops, found.message) == (None, "it is odd")
    figures = run_figures(plan.model_dump(mode="json"), records)
    assert figures.throughput is not None
    assert figures.costs is not None
    assert figures.costs.flops is None


@pytest.mark.parametrize("counters", [(0, 7), (3, 0), (0, 0)])
def test_each_workers_readings_are_its_own_and_none_where_it_has_no_counter(
    counters: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    other_device = 5 if counters[0] else 0
    other = [2.0, 0.25, None, other_device, 0]
    monkeypatch.setattr(cost_meter, "gather_plain", lambda comm, own: [own, other])
    power = cost_meter.EpochPower(plan_of(measure_power="off"), World.alone(torch.device("cpu")))
    power._meter = SimpleNamespace(device=counters[0], host=counters[1])  # type: ignore[assignment]
    power._reading = Reading(None, 0.5, 3.0)
    first, host, second = (f"{n:012x}" if n else "" for n in (*counters, other_device))
    assert power.use(NoComm()) == (
        PowerUse(
            devices=[first, second],
            device_joules=[None, 2.0],
            device_busy=[0.5, 0.25],
            hosts=[host, ""],
            host_joules=[3.0, None],
        )
        if any(counters)
        else None
    )


@pytest.mark.parametrize(
    ("names", "precision", "tf32", "peak"),
    [
        (["NVIDIA H200"] * 2, "bf16", True, ("NVIDIA H200", 989.5e12, "bf16")),
        (["NVIDIA A100-SXM4-40GB"] * 2, "fp32", True, ("NVIDIA A100-SXM4-40GB", 156e12, "tf32")),
        (["NVIDIA A100-SXM4-40GB"] * 2, "fp32", False, ("NVIDIA A100-SXM4-40GB", 19.5e12, "fp32")),
        (["NVIDIA H200", "NVIDIA H100 PCIe"], "bf16", True, ("", None, "")),
        (["NVIDIA GeForce RTX 4090"] * 2, "bf16", True, ("NVIDIA GeForce RTX 4090", None, "")),
    ],
)
def test_a_peak_is_of_the_device_that_all_workers_have_and_of_the_runs_format(
    names: list[str],
    precision: str,
    tf32: bool,
    peak: tuple[str, float | None, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names[0])
    monkeypatch.setattr(cost_meter, "gather_plain", lambda comm, name: names)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    world = World(0, 2, 0, torch.device("cuda"))
    found = cost_meter.run_costs(plan_of(training_precision=precision), world, NoComm())
    assert (found.device, found.peak_flops, found.peak_format) == peak
