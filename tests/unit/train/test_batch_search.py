"""The search for a batch in one process, and what a host's memory lets be tried."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from raysuite.errors import RunError
from raysuite.measure.peak_memory import available_bytes
from raysuite.parallel.base import World
from raysuite.parallel.comm import NoComm
from raysuite.parallel.single import Single
from raysuite.plan import RunPlan, make_plans
from raysuite.plan.batch_candidates import outcome
from raysuite.records.batch_trials import BatchTried, TriedFile
from raysuite.spec import Document
from raysuite.train import batch_search
from raysuite.train.batch_search import search_batch, too_much
from raysuite.train.building import build_model
from raysuite.train.run import execute
from tests.digit_arrays import DATA

ALONE = World(0, 1, 0, torch.device("cpu"))


def wish(training: dict[str, object], above: int = 10**6, at_call: int = 1) -> RunPlan:
    data = {
        "name": "found",
        "model": {
            "name": "tests.hungry_model:Hungry",
            "options": {"above": above, "at_call": at_call},
        },
        "data": DATA,
        "training": {"epochs": 1, **training},
        "resources": {"device": "cpu"},
    }
    return make_plans(Document(data, "test"), gpus=0)[0]


@pytest.fixture(autouse=True)
def _one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")


@pytest.mark.thorough
def test_the_largest_batch_in_one_process(tmp_path: Path) -> None:
    plan, file = wish({"batch_per_worker": "auto"}, above=50), TriedFile(tmp_path / "tried")
    assert search_batch(plan, ALONE, file) == 32
    made, found = outcome(plan, file.read(), 1.0)
    assert (made.micro_batch, made.global_batch, found.bound) == (32, 32, "memory")
    assert [each.micro_batch for each in found.tried] == [2, 4, 8, 16, 32, 64, 32]
    assert found.tried[5].message == "out of memory on rank 0"
    assert all(each.peak_bytes[0] <= each.limit_bytes[0] for each in found.tried if each.fits)


@pytest.mark.thorough
def test_what_fits_alone_and_not_in_true_steps(tmp_path: Path) -> None:
    """The model of each trial is another: the second batch of one comes in steps alone."""
    plan = wish({"batch_per_worker": "auto"}, above=20, at_call=2)
    file = TriedFile(tmp_path / "tried")
    assert search_batch(plan, ALONE, file) == 16
    together = [each for each in file.read() if each.stage == "together"]
    assert [each.fits for each in together] == [False] * (len(together) - 1) + [True]


@pytest.mark.thorough
def test_a_batch_that_is_given_is_cut(tmp_path: Path) -> None:
    plan = wish({"global_batch": 60, "accumulate": "auto"}, above=25)
    file = TriedFile(tmp_path / "tried")
    assert search_batch(plan, ALONE, file) == 20
    made, found = outcome(plan, file.read(), 1.0)
    assert (made.micro_batch, made.accumulate, made.global_batch) == (20, 3, 60)
    assert found.key == "training.accumulate"


@pytest.mark.thorough
def test_the_fastest_is_timed_in_rounds(tmp_path: Path) -> None:
    plan = wish({"batch_per_worker": {"auto": "fastest", "at_most": 8}})
    file = TriedFile(tmp_path / "tried")
    size = search_batch(plan, ALONE, file)
    _, found = outcome(plan, file.read(), 1.0)
    assert found.micro_batch == size
    timed = [each for each in found.tried if each.stage == "together"]
    assert {each.micro_batch for each in timed} == {2, 4, 8}
    assert all((each.images_per_second or 0) > 0 for each in timed)
    assert sum(each.micro_batch == size for each in timed) == 3


def test_nothing_fits(tmp_path: Path) -> None:
    plan, file = wish({"batch_per_worker": "auto"}, above=1), TriedFile(tmp_path / "tried")
    assert search_batch(plan, ALONE, file) == 0
    with pytest.raises(RunError, match="no batch size was"):
        outcome(plan, file.read(), 1.0)


@pytest.mark.thorough
def test_it_can_be_stopped_and_gone_on_with(tmp_path: Path) -> None:
    plan, file = wish({"batch_per_worker": "auto"}, above=50), TriedFile(tmp_path / "tried")
    assert search_batch(plan, ALONE, file, lambda: len(file.read()) >= 2) == 0
    assert len(file.read()) == 2
    assert search_batch(plan, ALONE, file) == 32
    assert [each.micro_batch for each in file.read()] == [2, 4, 8, 16, 32, 64, 32]


def test_a_plan_is_not_run_before_its_batch_is_found() -> None:
    with pytest.raises(ValueError, match="to be found"):
        next(execute(wish({"batch_per_worker": "auto"}), ALONE))


def fitted(peaks: dict[int, int], limit: int) -> list[BatchTried]:
    return [
        BatchTried(
            stage="alone", micro_batch=size, fits=True, peak_bytes=[1, peak], limit_bytes=[9, limit]
        )
        for size, peak in peaks.items()
    ]


@given(st.integers(0, 1000), st.integers(1, 100), st.integers(0, 4), st.integers(1, 10**5))
def test_a_host_is_not_driven_out_of_memory(fixed: int, each: int, known: int, limit: int) -> None:
    """Memory that is so much, and so much more for each sample, is foreseen to the byte."""
    sizes = [2**n for n in range(known + 1)]
    tried = fitted({size: fixed + each * size for size in sizes}, limit)
    wanted = fixed + each * 2 * sizes[-1]
    refused = too_much(tried, 2 * sizes[-1])
    if known:
        assert (refused is not None) == (wanted > limit)
    elif refused is None:  # of one size it cannot be told what is fixed
        assert wanted <= limit
    if refused is not None:
        assert not refused.fits
        assert "not tried" in refused.message


def test_memory_is_foreseen_from_the_largest_size_and_one_of_half_of_it() -> None:
    """180 bytes at 16 and 100 at 8 are 10 for each sample: 340 at 32. Neither 12, which is too near
    to 16, nor what did not fit, was not measured or ran in full steps counts."""
    size, peaks, limit = 32, {8: 100, 12: 110, 16: 180}, 340
    others = [
        BatchTried(stage="together", micro_batch=20, fits=True, peak_bytes=[999] * 2),
        BatchTried(stage="alone", micro_batch=24, fits=False, peak_bytes=[999] * 2),
        BatchTried(stage="alone", micro_batch=28, fits=True),
    ]
    assert too_much([*others, *fitted(peaks, limit)], size) is None
    refused = too_much([*fitted(peaks, limit - 1), *others], size)
    assert refused is not None
    assert (refused.stage, refused.micro_batch, refused.fits) == ("alone", size, False)
    assert refused.message == "not tried: it would need about 340 B, more than 339 B"
    for limit, fits in ((90, True), (89, False)):  # more samples free no memory
        assert (too_much(fitted({8: 100, 16: 90}, limit), size) is None) == fits


def test_nothing_is_foreseen_before_anything_was_tried() -> None:
    assert too_much([], 64) is None


def test_ranks_of_one_host_divide_what_is_left_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_search, "available_bytes", lambda device: 12_000)
    plan = wish({"batch_per_worker": {"auto": "largest", "memory_share": 0.5}})
    world = World(1, 3, 1, torch.device("cpu"))
    assert batch_search._Ranks(plan, world, Single(), NoComm())._limit == 6_000
    monkeypatch.setattr(batch_search, "gather_plain", lambda comm, own: ["another", own, own])
    assert batch_search._Ranks(plan, world, Single(), NoComm())._limit == 3_000


def test_what_is_left_of_a_host() -> None:
    left = available_bytes(torch.device("cpu"))
    assert 0 < left <= psutil.virtual_memory().total


def test_a_size_is_tried_alone_with_its_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[nn.Module] = []

    def build(plan: RunPlan, world: World) -> nn.Module:
        made.append(build_model(plan, world))
        return made[0]

    monkeypatch.setattr(batch_search, "build_model", build)
    plan = wish({"batch_per_worker": "auto"})
    found = batch_search._Ranks(plan, ALONE, Single(), NoComm()).alone(3)
    assert (found.stage, found.micro_batch, found.fits) == ("alone", 3, True)
    assert all(each.grad is not None and each.grad.any() for each in made[0].parameters())


def ranks_of(size: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(batch_search, "available_bytes", lambda device: 1000)
    plan = wish({"batch_per_worker": {"auto": "largest", "memory_share": 0.1}})
    return batch_search._Ranks(plan, World(0, size, 0, torch.device("cpu")), Single(), NoComm())


@pytest.mark.parametrize(
    ("others", "fits", "message"),
    [
        ([[1, 100, 100]], True, ""),
        ([[1, 150, 100], [1, 101, 100]], False, "ranks 1, 2 took 150 B, of 100 B"),
        ([[1, 150, 100], [0, 0, 100]], False, "out of memory on rank 2"),
    ],
)
def test_a_size_fits_if_every_rank_stays_within_its_limit(
    others: list[list[int]], fits: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This one takes 70 bytes more than at first."""

    ranks = ranks_of(1, monkeypatch)
    monkeypatch.setattr(batch_search, "gather_plain", lambda comm, own: [own, *others])
    memory = SimpleNamespace(process_bytes=lambda: ranks._held + 70)
    assert ranks._agreed("together", 4, True, memory, 3.0) == BatchTried(
        stage="together",
        micro_batch=4,
        fits=fits,
        peak_bytes=[70, *(each[1] for each in others)],
        limit_bytes=[100] * (1 + len(others)),
        images_per_second=3.0,
        message=message,
    )


def test_a_rank_without_memory_in_full_steps_ends_unless_it_is_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others may wait for it. Other errors are those of the run."""

    def raises(error: Exception) -> Any:
        def fails(*_: object) -> None:
            raise error

        return fails

    for size in (1, 2):
        ranks = ranks_of(size, monkeypatch)
        ranks._pass = ranks._steps = raises(torch.OutOfMemoryError("CUDA out of memory"))
        assert not ranks.alone(4).fits
        if size == 1:
            assert not ranks.together(4).fits
        else:
            with pytest.raises(MemoryError):
                ranks.together(4)
        ranks._pass = ranks._steps = raises(ValueError("its own"))
        for tried in (ranks.alone, ranks.together):
            with pytest.raises(ValueError, match="its own"):
                tried(4)


def test_a_size_that_will_not_fit_into_a_host_is_recorded_and_not_tried(tmp_path: Path) -> None:
    plan, file = wish({"batch_per_worker": "auto"}), TriedFile(tmp_path / "tried")
    for size in (2, 4):
        file.begin("alone", size)
        each = BatchTried(
            stage="alone", micro_batch=size, fits=True, peak_bytes=[100 * size], limit_bytes=[700]
        )
        file.end(each)
    on_gpu = World(0, 1, 0, torch.device("cuda"))
    assert batch_search._next(plan, on_gpu, file) == ("alone", 8)
    assert len(file.read()) == 2
    assert batch_search._next(plan, ALONE, file) == ("together", 4)
    assert [(each.micro_batch, each.fits) for each in file.read()] == [
        *((2, True), (4, True), (8, False))
    ]


def test_rank_0_alone_chooses_the_next_trial_unless_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, file = wish({"batch_per_worker": "auto"}), TriedFile(tmp_path / "tried")
    second = World(1, 2, 1, torch.device("cpu"))
    for sent in (("together", 8), ("alone", 4), None):
        with monkeypatch.context() as patch:
            received = [sent and list(sent), None]
            patch.setattr(batch_search, "gather_plain", lambda comm, own, found=received: found)
            assert batch_search._next_of_all(plan, second, NoComm(), file, lambda: False) == sent
    assert batch_search._next_of_all(plan, ALONE, NoComm(), file, lambda: True) is None
    assert file.read() == []
    assert batch_search._next_of_all(plan, ALONE, NoComm(), file, lambda: False) == ("alone", 2)
    assert [each.micro_batch for each in file.read()] == [2]
