"""Steps of a training script, as its hooks count them: real loops of torch in this process."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from raysuite import mark
from raysuite.measure import power_meter
from raysuite.measure.script_steps import Recorder, Row, counted, digest, observe, samples_hash
from raysuite.records.script_records import RankLog
from tests.unit.measure.test_power_meter import Library


class Loop:
    """A network, its optimiser and two loaders, as scripts have them."""

    def __init__(self, samples: int = 40, batch: int = 8) -> None:
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        data = TensorDataset(torch.randn(samples, 4), torch.zeros(samples, dtype=torch.long))
        self.loader, self.val = DataLoader(data, batch), DataLoader(data, batch)

    def backward(self, x: torch.Tensor, y: torch.Tensor) -> None:
        nn.functional.cross_entropy(self.model(x), y).backward()

    def epoch(self, accumulate: int = 1) -> None:
        for place, (x, y) in enumerate(self.loader):
            self.backward(x, y)
            if (place + 1) % accumulate == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., RankLog]:
    def observed(script: Callable[[], None], check: int = 0, power: bool = False) -> RankLog:
        file = tmp_path / "rank-0.jsonl"
        recorder = Recorder(file, check, power)
        with observe(recorder):
            script()
        recorder.end(None)
        return RankLog.read(file)

    return observed


def samples(log: RankLog) -> list[int]:
    return [row[3] for row in log.rows]


def test_a_step_is_the_optimisers_with_the_samples_of_its_batches(log: Any) -> None:
    found = log(Loop(samples=20, batch=8).epoch)
    assert samples(found) == [8, 8, 4]
    assert found.model["parameters"] == 10
    assert found.model["optimizer"] == "SGD"
    assert found.marks["first_batch"] <= found.marks["first_step"] <= found.marks["ended"]


def test_gradient_accumulation_is_one_step(log: Any) -> None:
    def script() -> None:
        loop = Loop(samples=9)
        batches = [[0], [1, 2], [3, 4, 5], [6, 7], [8]]
        loop.loader = DataLoader(loop.loader.dataset, batch_sampler=batches)
        loop.epoch(accumulate=2)

    found = log(script)
    assert samples(found) == [3, 5]
    assert found.model["pass_samples"] == 7  # five batches of 3 / 2, as a whole number


def test_energy_is_that_since_the_first_step(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def script() -> None:
        mark.step(samples=5)
        gpu.millijoules += 1500
        enough = gpu.asked + 3  # the second is of the new value, and on record before the third
        while gpu.asked < enough:
            pass
        mark.step(samples=5)

    gpu, before = Library(), set(threading.enumerate())
    monkeypatch.setattr(power_meter, "PERIOD_S", 0.001)
    monkeypatch.setattr(power_meter.Gpu, "found", lambda _: power_meter.Gpu(gpu, "", "GPU-1"))
    found = log(script, power=True)
    assert found.model["counters"]["device"] > 0
    assert (found.power["device_joules"], found.power["device_busy"]) == (1.5, pytest.approx(0.4))
    assert 0.0 < found.power["at"] - found.rows[0][0] < found.rows[1][0] - found.rows[0][0]
    assert set(threading.enumerate()) <= before


def test_a_compared_step_has_the_sum_of_its_micro_batches_losses(log: Any) -> None:
    def script() -> None:
        loop = Loop(samples=40, batch=5)
        with torch.no_grad():
            losses = [nn.functional.cross_entropy(loop.model(x), y).item() for x, y in loop.loader]
        expected.append(sum(losses[:4]))
        loop.epoch(accumulate=4)

    expected: list[float] = []
    first, *_ = log(script, check=1).checks
    assert first["loss"] == pytest.approx(expected[0], rel=1e-5)


@pytest.mark.parametrize("without_gradients", [True, False])
def test_an_evaluation_is_marked_and_its_samples_do_not_count(
    log: Any, without_gradients: bool
) -> None:
    def script() -> None:
        loop = Loop(samples=16)
        for _ in range(2):
            loop.epoch()
            with torch.set_grad_enabled(not without_gradients):
                for x, _ in loop.val:
                    loop.model(x)

    found = log(script)
    assert samples(found) == [8, 8, 8, 8]
    assert [row[5] for row in found.rows] == [False, False, True, False]


def test_two_loaders_in_step_are_no_evaluation(log: Any) -> None:
    def script() -> None:
        loop = Loop()
        for (x, y), _ in zip(loop.loader, loop.val, strict=True):
            loop.backward(x, y)
            loop.optimizer.step()

    found = log(script)
    assert samples(found) == [8] * 5
    assert not any(row[5] for row in found.rows)


def test_a_second_optimiser_is_a_part_of_the_same_step(log: Any) -> None:
    def script() -> None:
        loop, other = Loop(), Loop()
        for x, y in loop.loader:
            loop.backward(x, y)
            loop.optimizer.step()
            other.backward(x, y)
            other.optimizer.step()

    assert samples(log(script)) == [8] * 5


def test_an_optimiser_that_no_longer_steps_is_replaced(log: Any) -> None:
    def script() -> None:
        loop = Loop()
        torch.optim.SGD(loop.model.parameters(), lr=0.0).step()
        loop.epoch()

    found = log(script)
    assert len(found.rows) == 5
    assert found.marks["first_step"] > found.rows[0][0], "a script's start lasts until its own step"


def test_waits_for_the_loader_and_pauses_are_measured(log: Any) -> None:
    class Slow(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            time.sleep(0.02)
            return super().__getitem__(index)

    def script() -> None:
        loop = Loop()
        slow = DataLoader(Slow(torch.randn(4, 4), torch.zeros(4, dtype=torch.long)), 2)
        for x, y in slow:
            loop.backward(x, y)
            loop.optimizer.step()
            time.sleep(0.1)

    first, second = log(script).rows
    assert first[2] >= 0.04
    assert second[2] >= 0.04
    assert second[6] >= 0.1 > second[2]


@pytest.mark.parametrize("ahead", [False, True], ids=["batch by batch", "read ahead"])
def test_the_end_of_a_loaders_pass_is_a_wait_and_no_pause(log: Any, ahead: bool) -> None:
    class Processes(torch.utils.data.BatchSampler):  # which a loader ends with its pass
        def __iter__(self) -> Any:
            yield from super().__iter__()
            time.sleep(0.2)

    def read_ahead(loader: Any) -> Any:
        batches = iter(loader)
        held = next(batches)
        for batch in batches:
            yield held
            held = batch
        yield held

    def script() -> None:
        loop = Loop()
        data = TensorDataset(torch.randn(4, 4), torch.zeros(4, dtype=torch.long))
        order = Processes(torch.utils.data.SequentialSampler(data), 2, drop_last=False)
        loader = DataLoader(data, batch_sampler=order)
        for _ in range(2):
            for x, y in read_ahead(loader) if ahead else loader:
                loop.backward(x, y)
                loop.optimizer.step()
            time.sleep(0.1)

    rows = log(script).rows
    late = 1 if ahead else 2  # the step before which the first pass ends
    assert len(rows) == 4
    assert rows[late][2] >= 0.2
    assert 0.1 <= rows[2][6] < 0.2, "the script's own pause"
    assert all(row[6] < 0.1 for row in (rows[1], rows[3]))


def test_steps_without_a_loader_have_no_samples(log: Any) -> None:
    def script() -> None:
        loop = Loop()
        for _ in range(3):
            loop.backward(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))
            loop.optimizer.step()

    assert samples(log(script)) == [None, None, None]


def test_marked_steps_replace_those_of_optimisers(log: Any) -> None:
    def script() -> None:
        loop = Loop()
        for _ in range(3):
            for _ in range(2):
                loop.optimizer.step()
            mark.step(samples=5, tokens=50)

    found = log(script, check=2)
    assert [(row[3], row[4]) for row in found.rows] == [(5, 50)] * 3
    assert [each["step"] for each in found.checks] == [1, 2]
    mark.step(samples=1)  # without a launcher: nothing


def test_marks_without_samples_have_those_of_the_loader_and_the_given_loss(log: Any) -> None:
    def script() -> None:
        loop = Loop(samples=24)
        for place, _ in enumerate(loop.loader):
            mark.step(loss=0.5 + place, tokens=[None, 7, None][place])

    found = log(script, check=3)
    assert [(row[3], row[4]) for row in found.rows] == [(8, None), (None, 7), (8, None)]
    assert [each["loss"] for each in found.checks] == [0.5, 1.5, 2.5]


def test_marked_steps_need_no_optimiser(log: Any) -> None:
    found = log(lambda: mark.step(samples=5))
    assert [row[3:] for row in found.rows] == [[5, None, False, 0.0]]
    assert found.model == {
        "rates": [],
        "pass_samples": None,
        "parameters": None,
        "optimizer": "",
        "device": "cpu",
        "threads": torch.get_num_threads(),
        "counters": {},
        "layers": [],
        "names": [],
    }
    assert found.end.pop("memory") > 2**20
    assert found.end.pop("marks").keys() == {"first_step", "ended"}
    assert found.end == {"error": "", "peer_lost": False, "device_memory": 0}


@pytest.mark.parametrize(
    ("error", "described"),
    [
        (None, ""),
        (SystemExit(), ""),
        (SystemExit(0), ""),
        (SystemExit(3), "SystemExit: 3"),
        (SystemExit("no"), "SystemExit: no"),
        (ValueError("no"), "ValueError: no"),
        (SyntaxError("no", ("train.py", 3, 1, "x = (")), "SyntaxError: no"),
    ],
)
def test_an_end_with_an_error_is_described(
    error: BaseException | None, described: str, tmp_path: Path
) -> None:
    file = tmp_path / "rank-0.jsonl"
    Recorder(file, 0, False).end(error, peer_lost=error is not None)
    end = RankLog.read(file).end
    assert (end["error"], end["peer_lost"]) == (described, error is not None)


def test_only_the_first_steps_parameters_are_digested(log: Any) -> None:
    torch.manual_seed(0)
    found = log(lambda: Loop().epoch(), check=2)
    assert [each["step"] for each in found.checks] == [1, 2]
    assert found.checks[0]["parameters"] != found.checks[1]["parameters"]
    assert len(found.checks[1]["parameters"]) == 2
    assert 0 < found.checks[0]["samples"] != found.checks[1]["samples"]
    assert len(found.rows) == 5
    assert found.model["pass_samples"] == 40
    assert found.model["rates"] == [0.1]
    assert found.checks[0]["loss"] == pytest.approx(0.7, abs=0.7)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.zeros(3, 5), (3, None)),
        ({"input_ids": torch.zeros(3, 5), "labels": torch.zeros(3, 5)}, (3, 15)),
        ([("a", "b"), [torch.zeros(7, 1)]], (7, None)),
        (SimpleNamespace(name="x", image=torch.zeros(4, 2)), (4, None)),
        ({"epoch": torch.zeros(()), "image": torch.zeros(6)}, (6, None)),
        ({"input_ids": [1, 2], "labels": torch.zeros(2)}, (2, None)),
        ([[[[torch.zeros(7)]]]], (7, None)),
        ([[[[[torch.zeros(7)]]]]], (None, None)),
        ("text", (None, None)),
        (torch.zeros(()), (None, None)),
    ],
)
def test_samples_of_a_batch_are_its_first_tensors_first_axis(batch: Any, expected: Any) -> None:
    assert counted(batch) == expected


def test_the_first_steps_are_on_record_before_the_next_ones(log: Any, tmp_path: Path) -> None:
    numbers = []

    def script() -> None:
        loop = Loop()
        for x, y in loop.loader:
            loop.backward(x, y)
            loop.optimizer.step()
            numbers.append(len(RankLog.read(tmp_path / "rank-0.jsonl").rows))

    log(script)
    assert numbers == [1, 2, 3, 4, 5]


def test_a_hash_of_samples_does_not_depend_on_order_and_division() -> None:
    x, y = torch.randn(8, 3), torch.arange(8)
    whole, order = samples_hash([x, y]), torch.randperm(8)
    parts = [samples_hash({"x": x[own], "y": y[own]}) for own in (order[:3], order[3:])]
    assert sum(parts) == whole
    assert samples_hash([x, y.flip(0)]) != whole
    assert samples_hash("text") is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_a_digest_is_of_the_bits_of_a_tensor_in_its_order(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    assert digest(tensor) == digest([tensor.T.contiguous().T])
    other = tensor.clone()
    other[-1, -1] = 0
    assert len({digest(each) for each in (tensor, tensor.T, other, tensor[:0], 0)}) == 5


def test_a_digest_of_a_tensor_that_holds_others_is_of_their_bits() -> None:
    jagged = [
        torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3) + last], layout=torch.jagged)
        for last in (0, 0, 1)
    ]
    one, same, other = map(digest, jagged)
    assert one == same != other


def test_flat_views_of_shards_are_known_by_their_wrapper(log: Any) -> None:
    class FullyShardedDataParallel(nn.Module):
        """Named like that of torch.distributed.fsdp, which needs a process group."""

    def script() -> None:
        weight = nn.Parameter(torch.ones(4))
        weight.sum().backward()
        torch.optim.SGD([weight], lr=0.1).step()

    before = log(script, check=1)
    wrapper = FullyShardedDataParallel()
    found = log(script, check=1)
    assert isinstance(wrapper, nn.Module)
    assert [each["sharded"] for each in (before.checks[-1], found.checks[-1])] == [False, True]
    assert (before.model["parameters"], found.model["parameters"]) == (4, None)


def test_an_iterable_data_set_is_not_asked_for_its_length(log: Any) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __len__(self) -> int:
            raise AssertionError

        def __iter__(self) -> Any:
            yield from zip(torch.randn(8, 4), torch.zeros(8, dtype=torch.long), strict=True)

    def script() -> None:
        loop = Loop()
        loop.loader = DataLoader(Stream(), 4)
        loop.epoch()

    found = log(script)
    assert samples(found) == [4, 4]
    assert found.model["pass_samples"] is None


def test_what_was_replaced_in_torch_is_restored(tmp_path: Path) -> None:
    before = DataLoader.__iter__, torch.Tensor.backward, torch.distributed.init_process_group
    with observe(Recorder(tmp_path / "log", 1, False)):
        assert DataLoader.__iter__ is not before[0]
    after = DataLoader.__iter__, torch.Tensor.backward, torch.distributed.init_process_group
    assert after == before


@pytest.mark.parametrize(("status", "error"), [(0, ""), (3, "SystemExit: 3")])
def test_a_script_that_leaves_by_os_exit_has_all_its_steps_and_an_end(
    status: int, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    loop = Loop(samples=120, batch=8)
    with observe(Recorder(file := tmp_path / "rank-0.jsonl", 0, False)):
        loop.epoch()
        os._exit(status)
        found = RankLog.read(file)
    assert (samples(found), found.end["error"], left) == ([8] * 15, error, [status])
    assert found.marks["first_step"] <= found.marks["ended"]
    assert os._exit == left.append


def test_steps_of_a_process_that_the_script_forked_are_not_counted(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script() -> None:
        loop = Loop(samples=24)
        loop.epoch()
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            loop.optimizer.step()
            mark.step(samples=8)
        loop.epoch()

    assert samples(log(script)) == [8] * 6


def test_the_forming_of_a_process_group_is_timed(log: Any) -> None:
    def script() -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            Loop().epoch()
        finally:
            dist.destroy_process_group()

    marks = log(script).marks
    assert marks["group_begins"] < marks["group_formed"] < marks["first_batch"]


def test_the_samples_of_a_compared_step_are_those_read_with_gradients(log: Any) -> None:
    loop = Loop(samples=16)
    first, second = (samples_hash(batch) for batch in loop.loader)

    def script() -> None:
        with torch.no_grad():
            list(loop.loader)
        loop.epoch()

    assert [each["samples"] for each in log(script, check=3).checks] == [first, second]


def test_batches_that_were_read_ahead_are_noted_in_the_step_after_their_reading(
    log: Any, tmp_path: Path
) -> None:
    def script() -> None:
        loop = Loop(samples=24)
        for x, y in list(loop.loader):
            loop.backward(x, y)
            loop.optimizer.step()

    log(script)
    noted = map(json.loads, (tmp_path / "rank-0.jsonl").read_text().splitlines())
    rows = [row for each in noted if each["kind"] == "steps" for row in each["rows"]]
    assert [row[3:6] for row in rows] == [[24, None, False], [0, 0, False], [0, 0, False]]


def test_items_that_no_loader_has_batched_are_not_counted(log: Any) -> None:
    def script() -> None:
        loop = Loop()
        loop.loader = DataLoader(loop.loader.dataset, batch_size=None)
        for _ in loop.loader:
            loop.optimizer.step()
            break

    assert samples(log(script)) == [None]


def test_a_loader_within_a_loader_is_counted_once_and_has_its_length(log: Any) -> None:
    class Outer(DataLoader):  # type: ignore[type-arg]
        def _get_iterator(self) -> Any:
            return iter(inner)

    def script() -> None:
        loop = Loop()
        loop.loader = Outer(loop.loader.dataset, 40)
        lengths.append(len(iter(loop.loader)))
        loop.epoch()

    inner, lengths = Loop(samples=24).loader, list[int]()
    expected = [samples_hash(batch) for batch in inner]
    found = log(script, check=3)
    assert (samples(found), lengths) == ([8, 8, 8], [3])
    assert [each["samples"] for each in found.checks] == expected


def test_deepspeeds_calls_for_each_group_are_one_step_of_shards(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))

    def script() -> None:
        loop = Loop(samples=24)
        for x, y in loop.loader:
            loop.backward(x, y)
            loop.optimizer.step()
            loop.optimizer.step()

    found = log(script, check=1)
    assert samples(found) == [8, 8, 8]
    assert (found.checks[0]["sharded"], found.model["parameters"]) == (True, None)


def test_layers_that_train_and_parameters_are_named(log: Any) -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    network = Wrapper(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm3d(2), nn.Dropout3d().eval()))
    nameless = nn.Parameter(torch.zeros(1))

    def script() -> None:
        torch.optim.SGD([*network.parameters(), nameless], lr=0.1).step()

    found = log(script, check=1)
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "parameter 4"]
    assert found.model["names"] == names
    assert "BatchNorm3d" in found.model["layers"]
    assert "Dropout3d" not in found.model["layers"]


def test_a_loss_of_several_values_is_not_recorded(log: Any) -> None:
    def script() -> None:
        loop = Loop(samples=8)
        loop.model(torch.zeros(1, 4)).backward(torch.ones(1, 2))
        loop.epoch()

    [check] = log(script, check=1).checks
    assert isinstance(check["loss"], float)


def test_steps_are_numbered_from_1(tmp_path: Path) -> None:
    recorder, numbers = Recorder(tmp_path / "rank-0.jsonl", 0, False), list[int]()
    recorder.on_step = numbers.append
    with observe(recorder):
        Loop(samples=24).epoch()
    assert numbers == [1, 2, 3]


def test_only_steps_that_the_device_has_completed_are_written(tmp_path: Path) -> None:
    class Event:
        def __init__(self, at: float, is_done: bool = True) -> None:
            self.at, self.is_done = at, is_done

        def query(self) -> bool:
            return self.is_done

        def elapsed_time(self, end: Event) -> float:
            return end.at - self.at

    file = tmp_path / "rank-0.jsonl"
    recorder, last = Recorder(file, 0, False), Event(135.0, is_done=False)
    recorder._events = [Event(10.0), Event(35.0), last]
    recorder._rows = [Row(end, None, 0.0, 1, None, False, 0.0) for end in (1.0, 2.0)]
    for done, wanted in ((False, [(1.0, 0.025)]), (True, [(1.0, 0.025), (2.0, 0.1)])):
        last.is_done = done
        recorder.flush()
        assert [tuple(row[:2]) for row in RankLog.read(file).rows] == wanted


@pytest.mark.parametrize(
    ("error", "waits"),
    [(None, 1), (SystemExit(0), 1), (SystemExit(3), 0), (ValueError("no"), 0)],
)
def test_the_last_steps_are_waited_for_unless_the_script_failed(
    error: BaseException | None, waits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    event = SimpleNamespace(query=lambda: False, synchronize=lambda: waited.append(1))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", int)
    recorder = Recorder(tmp_path / "rank-0.jsonl", 0, False)
    recorder._events = [event, event]
    recorder.end(error)
    assert len(waited) == waits
