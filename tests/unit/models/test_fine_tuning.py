"""Weights from files, and frozen parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysuite import models
from raysuite.errors import UserError
from raysuite.models.fine_tuning import freeze, load_weights
from raysuite.records import Journal, RunStarted
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.experiment import ModelOptions


def facts_of(classes: int, names: tuple[str, ...] = ()) -> DatasetFacts:
    return DatasetFacts(1, 1, classes, channels=3, image_size=32, class_names=names)


def network(classes: int = 10, name: str = "resnet20", **options: object) -> nn.Module:
    return models.build(ModelOptions(name=name, **options), facts_of(classes))


def changed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value + 1 for name, value in state.items()}


@pytest.mark.parametrize("wrap", [None, "state_dict", "model"])
@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.module.", "module._orig_mod.", "network.module.model."]
)
def test_weights_of_common_checkpoints(tmp_path: Path, wrap: str | None, prefix: str) -> None:
    expected = changed(network().state_dict())
    saved = {f"{prefix}{name}": value for name, value in expected.items()}
    torch.save({wrap: saved, "epoch": 3} if wrap else saved, tmp_path / "w.pt")
    begun = network()
    assert load_weights(begun, tmp_path / "w.pt", facts_of(10)) == []
    for name, value in begun.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_names_of_wrappers_are_told_from_the_models_own(tmp_path: Path) -> None:
    wrapped = nn.Sequential()
    wrapped.add_module("module", nn.Linear(3, 2))
    for prefix in ("", "module.", "_orig_mod."):
        saved = {f"{prefix}module.weight": torch.ones(2, 3), f"{prefix}module.bias": torch.ones(2)}
        torch.save(saved, tmp_path / "w.pt")
        load_weights(wrapped, tmp_path / "w.pt", facts_of(2))
    torch.save({"backbone._orig_mod.weight": torch.zeros(2, 3)}, tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"not in the model: backbone\._orig_mod\.weight"):
        load_weights(wrapped, tmp_path / "w.pt", facts_of(2))
    part = nn.Sequential()
    part.add_module("backbone", nn.Linear(3, 2, bias=False))
    load_weights(part, tmp_path / "w.pt", facts_of(2))
    assert not part.state_dict()["backbone.weight"].any()


class Extra(nn.Linear):
    calls = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


@pytest.mark.parametrize("prefix", ["", "module."])
def test_the_extra_state_of_a_module_is_loaded(prefix: str, tmp_path: Path) -> None:
    saved, begun = (nn.Sequential(Extra(3, 4), nn.Linear(4, 2)) for _ in range(2))
    saved[0].calls = 3
    state = {f"{prefix}{name}": each for name, each in saved.state_dict().items()}
    torch.save(state, tmp_path / "w.pt")
    assert load_weights(begun, tmp_path / "w.pt", facts_of(2)) == []
    assert (begun[0].calls, begun[0].weight.equal(saved[0].weight)) == (3, True)
    with pytest.raises(UserError, match=r"not in the model: 0\._extra_state"):
        load_weights(
            nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), tmp_path / "w.pt", facts_of(2)
        )


def test_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    expected = changed(network().state_dict())
    save_file(expected, tmp_path / "w.safetensors")
    begun = network()
    load_weights(begun, tmp_path / "w.safetensors", facts_of(10))
    assert torch.equal(begun.state_dict()["fc.weight"], expected["fc.weight"])


def test_a_head_for_other_classes_keeps_its_own_values(tmp_path: Path) -> None:
    saved = changed(network(10).state_dict())
    torch.save(saved, tmp_path / "w.pt")
    begun = network(7)
    before = {name: value.clone() for name, value in begun.state_dict().items()}
    head = load_weights(begun, tmp_path / "w.pt", facts_of(7))
    assert head == ["fc.bias", "fc.weight"]
    for name, value in begun.state_dict().items():
        assert torch.equal(value, (before if name in head else saved)[name]), name


@pytest.mark.parametrize(
    ("of_run", "now", "own_last", "kept"),
    [
        (("cat", "dog"), ("dog", "cat"), True, ["1.bias", "1.weight"]),
        (("cat", "dog"), ("cat", "dog"), True, []),
        ((), ("dog", "cat"), True, []),
        (("cat", "dog"), ("dog", "cat"), False, None),
    ],
)
def test_classes_of_other_names_have_a_layer_of_their_own(
    tmp_path: Path, of_run: tuple[str, ...], now: tuple[str, ...], own_last: bool, kept: Any
) -> None:
    """In a run's folder. A network that ends in another layer cannot take the weights."""
    plan = {"dataset": {"class_names": of_run}}
    started = RunStarted(run_id="a", record_schema=1, plan=plan, environment={})
    Journal(tmp_path / "journal.jsonl").write(started)
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    network = network if own_last else nn.Sequential(network[1], nn.Linear(2, 5))
    torch.save(changed(network.state_dict()), tmp_path / "model.pt")
    if kept is None:
        with pytest.raises(UserError, match="last layer is not its classifier"):
            load_weights(network, tmp_path / "model.pt", facts_of(2, now))
    else:
        assert load_weights(network, tmp_path / "model.pt", facts_of(2, now)) == kept


def test_a_single_number_is_no_layer_of_classes(tmp_path: Path) -> None:
    torch.save({**network().state_dict(), "fc.bias": torch.tensor(1.0)}, tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"shape: fc\.bias \(\) in the file, \(10,\) in the model"):
        load_weights(network(), tmp_path / "w.pt", facts_of(10))


def gpt(classes: int, sequence: int) -> nn.Module:
    facts = DatasetFacts(1, 1, classes, channels=0, image_size=0, sequence=sequence)
    return models.build(ModelOptions(name="gpt"), facts)


@pytest.mark.parametrize(("in_file", "classes"), [(10, 10), (10, 7), (16, 16), (10, 16)])
def test_positions_of_another_sequence_are_no_classes(
    tmp_path: Path, in_file: int, classes: int
) -> None:
    """Also beside a vocabulary of another size, and if it is as large as the sequence is long."""
    torch.save(gpt(in_file, 8).state_dict(), tmp_path / "w.pt")
    with pytest.raises(
        UserError,
        match=r"of another shape: embedding\.place\.weight \(8, 64\) in the file, \(16, 64\) in "
        r"the model; ",
    ):
        load_weights(gpt(classes, 16), tmp_path / "w.pt", facts_of(classes))


@pytest.mark.parametrize("classes", [7, 16])
def test_a_vocabulary_of_another_size_leaves_the_positions(tmp_path: Path, classes: int) -> None:
    saved = changed(gpt(10, 16).state_dict())
    torch.save(saved, tmp_path / "w.pt")
    begun = gpt(classes, 16)
    head = load_weights(begun, tmp_path / "w.pt", facts_of(classes))
    assert head == ["embedding.token.weight", "head.weight"]
    place = "embedding.place.weight"
    assert torch.equal(begun.state_dict()[place], saved[place])


def test_the_last_layer_is_found_by_its_place_and_not_by_its_name(tmp_path: Path) -> None:
    """Of a model with as many positions as classes."""

    def built(classes: int) -> nn.Module:
        return nn.ModuleDict({"z": nn.Embedding(16, 2), "a": nn.Linear(2, classes)})

    torch.save(built(10).state_dict(), tmp_path / "w.pt")
    assert load_weights(built(16), tmp_path / "w.pt", facts_of(16)) == ["a.bias", "a.weight"]


def test_a_hidden_layer_of_another_width_is_no_layer_of_classes(tmp_path: Path) -> None:
    torch.save(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)).state_dict(), tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"shape: 0\.bias .*, 0\.weight .*, 1\.weight "):
        load_weights(
            nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), tmp_path / "w.pt", facts_of(3)
        )


def test_torchvisions_own_state_fits_the_large_stem_alone(tmp_path: Path) -> None:
    from torchvision.models import resnet18

    torch.save(resnet18().state_dict(), tmp_path / "w.pt")
    options = {"name": "resnet18", "options": {"stem": "large"}}
    assert load_weights(network(5, **options), tmp_path / "w.pt", facts_of(5)) == [
        "fc.bias",
        "fc.weight",
    ]
    with pytest.raises(UserError, match=r"conv1\.weight .*stem: large"):
        load_weights(network(5, "resnet18"), tmp_path / "w.pt", facts_of(5))


def test_all_names_that_do_not_fit_are_told(tmp_path: Path) -> None:
    state = network().state_dict()
    state["extra"] = state.pop("fc.bias")
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(UserError) as caught:
        load_weights(network(), tmp_path / "w.pt", facts_of(10))
    assert "file: fc.bias" in str(caught.value)
    assert "model: extra" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no pickle", None])
def test_a_file_that_is_none(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "w.pt"
    if content is None:
        torch.save([1, 2], file)
    else:
        file.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.weights"):
        load_weights(network(), file, facts_of(10))


def test_frozen_parameters() -> None:
    frozen = network(freeze=("conv*", "stage1.0.*"))
    for name, parameter in frozen.named_parameters():
        assert parameter.requires_grad != name.startswith(("conv", "stage1.0.")), name
    with pytest.raises(UserError, match="'nothing'"):
        freeze(network(), ["fc.*", "nothing"])
    with pytest.raises(UserError, match="every parameter"):
        freeze(network(), ["*"])
