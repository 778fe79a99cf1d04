"""`raysuite.gate.check`, in one process and on two ranks, with seeded defects."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import raysuite
from raysuite.errors import GateError, UserError
from raysuite.gate import Checked, check, library
from raysuite.gate.library import _compare_ranks, _Ranks
from raysuite.measure.script_steps import digest
from tests.ranks import ranks

Step = Callable[[int], None]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def batch(step: int, ranks: int = 1, rank: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 4, generator=generator)
    return x[rank::ranks], (x.sum(1) > 0).long()[rank::ranks]


def stepper(model: nn.Module, ranks: int = 1, rank: int = 0, scale: float = 1.0) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(n: int) -> None:
        x, y = batch(n, ranks, rank)
        optimizer.zero_grad()
        (scale * nn.functional.cross_entropy(model(x), y)).backward()
        optimizer.step()

    return step


def test_equal_training_passes() -> None:
    model, reference = network(), network()
    found = check(
        stepper(model), model, reference=reference, reference_step=stepper(reference), steps=2
    )
    assert found == Checked(2, 4, 1, ranks_compared=True, error=0.0)


def test_an_error_names_parameter_rank_and_step() -> None:
    model, reference = network(), network()
    with pytest.raises(GateError, match=r"^0\.weight of rank 0 .* after step 0: .* is 1;"):
        check(
            stepper(model, scale=2.0), model, reference=reference, reference_step=stepper(reference)
        )


def test_not_a_number_is_no_pass() -> None:
    model, reference = network(), network()
    with pytest.raises(GateError):
        check(
            stepper(model, scale=math.nan),
            model,
            reference=reference,
            reference_step=stepper(reference),
        )


def test_both_parts_of_complex_weights_are_compared_with_the_reference() -> None:
    model, reference = (nn.ParameterList([torch.zeros(1, dtype=torch.complex64)]) for _ in range(2))
    with pytest.raises(GateError, match=r"error / update is 1\.6"):
        check(
            lambda n: model[0].data.fill_(3 - 4j),
            model,
            reference=reference,
            reference_step=lambda n: reference[0].data.fill_(3 + 4j),
        )


class Holder(nn.Module):
    """A network of a user's own that calls a layer as wrappers call the network."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.module = nn.Parameter(torch.ones(2)), nn.Linear(4, 2)


def test_a_layer_that_is_called_module_is_compared() -> None:
    """Its weight is not taken for the other one."""
    model, reference = Holder(), Holder()
    reference.load_state_dict(model.state_dict())

    def step(n: int) -> None:
        model.module.weight.data += 1

    wrapped = nn.ModuleDict({"module": model})
    with pytest.raises(GateError, match=r"^module\.weight of rank 0 differs from the reference"):
        check(step, wrapped, reference=reference, reference_step=lambda n: None)


def test_bad_input_is_refused() -> None:
    model = network()
    with pytest.raises(UserError, match="go together"):
        check(stepper(model), model, reference=network())
    with pytest.raises(UserError, match="go together"):
        check(stepper(model), model, reference_step=stepper(model))
    with pytest.raises(UserError, match="steps: got 0"):
        check(stepper(model), model, steps=0)
    with pytest.raises(UserError, match="differ in the names or shapes of the parameters"):
        check(stepper(model), model, reference=nn.Linear(1, 1), reference_step=stepper(model))
    larger = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 2))
    with pytest.raises(UserError, match=r"0\.bias, 0\.weight, 2\.weight"):
        check(stepper(model), model, reference=larger, reference_step=stepper(larger))
    empty = nn.ParameterDict({"weight": torch.empty(0)})
    with pytest.raises(UserError, match=r"parameters without elements \(weight\)"):
        check(stepper(model), empty)
    same = copy.deepcopy(empty)
    assert check(lambda n: None, empty, reference=same, reference_step=lambda n: None).error == 0
    with pytest.raises(UserError, match="got lazy layers, whose tensors weight, bias have"):
        check(stepper(model), nn.LazyLinear(1))
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].bias += 1
    with pytest.raises(GateError, match="before the first step"):
        check(stepper(model), model, reference=other, reference_step=stepper(other))


def moved(*steps: dict[str, list[float]]) -> tuple[nn.Module, Step]:
    """A model of two tensors, and steps after which they have changed by these values."""
    model = nn.ParameterDict({"a": torch.ones(2), "b": torch.ones(1)})

    def step(n: int) -> None:
        with torch.no_grad():
            for name, values in steps[n].items():
                model[name].copy_(1 + torch.tensor(values))

    return model, step


def against(
    *ours: dict[str, list[float]],
    theirs: tuple[dict[str, list[float]], ...] = ({"a": [3, 4]}, {"a": [6, 8]}),
    tolerance: float = 0.1,
    ignore: tuple[str, ...] = (),
) -> Checked:
    (model, step), (reference, reference_step) = moved(*ours), moved(*theirs)
    wrapped = model
    for prefix in ("_forward_module", "_fsdp_wrapped_module", "_orig_mod", "module"):
        wrapped = nn.ModuleDict({prefix: wrapped})
    return check(
        step,
        wrapped,
        steps=len(ours),
        reference=reference,
        reference_step=reference_step,
        tolerance=tolerance,
        ignore=ignore,
    )


def test_an_error_is_of_the_change_since_the_first_step() -> None:
    """Off by 0.5 of 5, then of 10; the largest counts, and a tensor that should not change at all
    may not."""
    assert against({"a": [3, 4.5]}, {"a": [6, 8]}) == Checked(2, 2, 1, True, 0.1)
    assert against({"a": [3, 4]}, {"a": [6, 8.5]}).error == 0.05
    with pytest.raises(GateError, match=r"a of rank 0 .* after step 1: .* is 0\.05; .* 4e-02 is"):
        against({"a": [3, 4]}, {"a": [6, 8.5]}, tolerance=0.04)
    with pytest.raises(GateError, match=r"^b of rank 0 .* after step 0: .* is inf;"):
        against({"a": [3, 4], "b": [1e-3]})
    found = against({"a": [3, 4], "b": [1e-3]}, ignore=("b",))
    assert (found.parameters, found.error) == (1, 0.0)
    with pytest.raises(GateError, match=r"^b of rank 0"):
        against({"a": [9, 9], "b": [1e-3]}, ignore=("a",))


class TwoRanks(_Ranks):
    """Rank 0 of two, of which the other's tensors are known."""

    def __init__(self, other: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.other = {name: digest(each) for name, each in other.items()}

    def gathered(self, own: object) -> list[object]:
        return [own, self.other]


def test_ranks_are_equal_to_the_bit_in_all_tensors() -> None:
    own = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3])}
    assert _compare_ranks(own, TwoRanks(own), 7)
    changed, more = {**own, "b": own["b"] + 1}, {**own, "c": own["a"]}
    for name, other in (("b", changed), ("b", {"a": own["a"]}), ("c", more)):
        with pytest.raises(GateError, match=f"^{name} of rank 1 .* after step 7"):
            _compare_ranks(own, TwoRanks(other), 7)


class Meeting:
    """torch.distributed of one of two ranks, which are threads."""

    def __init__(
        self, rank: int, barrier: threading.Barrier, sent: list[torch.Tensor], backend: str
    ) -> None:
        self._rank, self._barrier, self._sent, self._backend = rank, barrier, sent, backend

    def get_backend(self) -> str:
        return self._backend

    def all_gather(self, into: list[torch.Tensor], own: torch.Tensor) -> None:
        self._sent[self._rank] = own
        self._barrier.wait()
        for each, value in zip(into, self._sent, strict=True):
            assert (each.shape, each.dtype) == (value.shape, value.dtype)
            each.copy_(value)
        self._barrier.wait()


@pytest.mark.parametrize("backend", ["cpu:gloo", "mpi"])
def test_all_ranks_have_what_each_has_whatever_its_length(backend: str) -> None:
    barrier, sent = threading.Barrier(2, timeout=60), [torch.empty(0)] * 2
    own = [{"a": "x"}, {"a": "y" * 300, "ü": [1, 2.5, None]}]

    def rank(number: int) -> list[object]:
        ranks = _Ranks()
        ranks.size, ranks._dist = 2, Meeting(number, barrier, sent, backend)  # type: ignore[assignment]
        return ranks.gathered(own[number])

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(rank, range(2))] == [own, own]


@pytest.fixture
def alone() -> Iterator[None]:
    """In a group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_shards_that_are_dtensors_are_gathered_for_the_reference_and_not_held_against_ranks() -> (
    None
):
    from torch.distributed.fsdp import fully_shard

    def checked(scale: float) -> Checked:
        model, reference = network(), network()
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
        right = stepper(reference)
        return check(stepper(model, scale=scale), model, reference=reference, reference_step=right)

    found = checked(1.0)
    assert (found.ranks, found.ranks_compared, found.parameters) == (1, False, 4)
    assert found.error == pytest.approx(0, abs=1e-6)
    with pytest.raises(
        GateError, match=r"^0\.weight of rank 0 .* reference after step 0: .* is 1;"
    ):
        checked(2.0)


@pytest.mark.usefixtures("alone")
def test_parameters_beside_shards_are_compared_after_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.distributed.fsdp import fully_shard

    class Standing(_Ranks):
        """Rank 0 of two, of which the other trains for one step only."""

        first: object = None

        def gathered(self, own: object) -> list[object]:
            self.first = self.first or own
            return [own, self.first]

    monkeypatch.setattr(library, "_Ranks", Standing)
    model = network()
    fully_shard(model[0], mesh=dist.init_device_mesh("cpu", (1,)))
    with pytest.raises(GateError, match=r"^2\.weight of rank 1 .* rank 0 after step 1:"):
        check(stepper(model), model)


@pytest.mark.usefixtures("alone")
def test_other_shards_are_refused_and_equal_ranks_are_compared() -> None:
    class FullyShardedDataParallel(nn.Module):
        """As torch's, by its name."""

        def __init__(self) -> None:
            super().__init__()
            self.module = network()

    assert _Ranks()._dist is dist
    model = FullyShardedDataParallel()
    with pytest.raises(UserError, match=r"^got FullyShardedDataParallel: "):
        check(stepper(model), model)
    plain = network()
    assert check(stepper(plain), plain) == Checked(3, 4, 1, ranks_compared=True, error=None)


DEFECTS = {
    "none": "",
    "sharded": "",
    "not wrapped": "0.weight of rank 1 differs from that of rank 0 after step 0",
    "ignored": "2.bias of rank 1 differs from that of rank 0 after step 0",
    "summed": "differs from the reference after step 0",
}


def worker(defect: str) -> str:
    """One rank: what `check` raised, or nothing."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model, reference = network(), network()
    wrapped: nn.Module = model
    if defect == "sharded":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=dist.init_device_mesh("cpu", (size,)))
    elif defect != "not wrapped":
        if defect == "ignored":
            nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
                model, ["2.bias"]
            )
        wrapped = nn.parallel.DistributedDataParallel(model)
    try:
        check(
            stepper(wrapped, size, rank, scale=2.0 if defect == "summed" else 1.0),
            wrapped,
            reference=reference,
            reference_step=stepper(reference),
        )
    except GateError as error:
        return str(error)
    return ""


@pytest.mark.integration
def test_defects_of_two_ranks_are_named(tmp_path: Path) -> None:
    ranks(2, "tests.unit.gate.test_library", tmp_path / "found")
    found: dict[str, str] = json.loads((tmp_path / "found").read_text("utf-8"))
    assert found.keys() == DEFECTS.keys()
    for defect, words in DEFECTS.items():
        assert words in found[defect]
        assert bool(words) == bool(found[defect])


ALONE = """
import sys
sys.path.append(sys.argv[1])
import torch
from raysuite.gate import check
model = torch.nn.Linear(2, 2)
def step(n):
    with torch.no_grad():
        model.weight += 1
assert check(step, model).parameters == 2
"""


def with_what_it_requires(name: str, found: set[str]) -> None:
    """Add the top folders and files of an installed package and of all that it requires."""
    from importlib import metadata

    from packaging.requirements import Requirement

    package = metadata.distribution(name)
    found |= {str(package.locate_file(file.parts[0])) for file in package.files or ()}
    for each in map(Requirement, package.requires or ()):
        if each.marker is None or each.marker.evaluate({"extra": ""}):
            with_what_it_requires(each.name, found)


def test_torch_alone_is_needed(tmp_path: Path) -> None:
    found = {str(Path(raysuite.__file__).parent)}
    with_what_it_requires("torch", found)
    for each in map(Path, found):
        if each.name not in ("..", "__pycache__"):
            (tmp_path / each.name).symlink_to(each)
    isolated = [sys.executable, "-I", "-S", "-W", "ignore", "-c", ALONE, str(tmp_path)]
    subprocess.run(isolated, check=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    told = {defect: worker(defect) for defect in DEFECTS}
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(told), "utf-8")
    dist.destroy_process_group()
