"""Load initial weights from a file, and freeze parts of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysuite.errors import UserError, some, unmatched
from raysuite.records.journal import class_names
from raysuite.spec.datasets import DatasetFacts, match_classes, other_class

if TYPE_CHECKING:
    from torch import Tensor, nn

_NESTED = ("state_dict", "model_state_dict", "model")
"""Keys of the weights in checkpoints: in Lightning and timm, in PyTorch's tutorials, and in
torchvision's references."""
_SHOWN = 6


def load_weights(network: nn.Module, file: Path, facts: DatasetFacts) -> list[str]:
    """Load weights and buffers into `network` from a file of torch.save or safetensors.

    The classifier (the layer with one output per class of `facts`) keeps its initial values if the
    file has another number of classes, or if the file is in a run's folder and that run's classes
    have other names. Returns the names of the tensors that keep their initial values.

    Raises UserError if the file cannot be read, or if tensors do not fit; the message names them.
    """
    state = network.state_dict()
    given = _unwrapped(_read(file), state)
    own, found = _tensors(state), _tensors(given)
    head = _of_other_classes(own, found, facts.classes)
    of_run = class_names(file.with_name("journal.jsonl"))
    if not head and other_class(of_run, facts.class_names) is not None:
        *_, (last, _) = network.named_parameters()
        layer, outputs = last.rpartition(".")[0], (facts.classes,)
        same = (name for name in own if name.rpartition(".")[0] == layer)
        head = [name for name in same if own[name].shape[:1] == outputs]
        if not head:
            remedy = "give weights of a run with the same classes"
            whose = (
                f"the run of {file} (the network's last layer is not its classifier, so the "
                "classifier's weights cannot be left out)"
            )
            match_classes(of_run, whose, facts.class_names, "the data set", remedy)
    wrong = {
        "missing from the file": own.keys() - found.keys() - _counters(own),
        "not in the model": given.keys() - state.keys(),
        "of another shape": {
            f"{name} {tuple(found[name].shape)} in the file, {tuple(own[name].shape)} in the model"
            for name in own.keys() & found.keys()
            if own[name].shape != found[name].shape and name not in head
        },
    }
    if any(wrong.values()):
        text = "; ".join(
            f"{what}: {some(sorted(names), _SHOWN)}" for what, names in wrong.items() if names
        )
        raise UserError(
            f"model.weights: the weights in {file} do not fit this model: {text}; give weights of "
            "the same architecture and options (torchvision's ImageNet weights need "
            "model.options.stem: large)"
        )
    network.load_state_dict({k: v for k, v in given.items() if k not in head}, strict=False)
    return sorted(head)


def _tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a state_dict, without the other values that get_extra_state may add."""
    import torch

    return {name: each for name, each in state.items() if isinstance(each, torch.Tensor)}


def freeze(network: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the parameters whose names in `named_parameters` match a pattern.

    Raises UserError for patterns without a match, and if all parameters would be frozen.
    """
    parameters = dict(network.named_parameters())
    if wrong := unmatched(patterns, parameters):
        raise UserError(f"model.freeze: {wrong}")
    for name, parameter in parameters.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in parameters.values()):
        raise UserError("model.freeze: every parameter is frozen; keep some trainable")


def _read(file: Path) -> dict[str, Any]:
    import torch

    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: Any = load_file(file)
        else:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # errors of unpickling, of zip files, of the disk
        reason = str(error).strip().splitlines()
        raise UserError(
            f"model.weights: {file} cannot be read: {type(error).__name__}: "
            f"{reason[0] if reason else 'it is empty'}; give a state_dict written by torch.save, "
            "such as a run's model.pt, or a .safetensors file"
        ) from error
    for key in _NESTED:
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(
        isinstance(each, torch.Tensor) or str(name).endswith("_extra_state")
        for name, each in found.items()
    ):
        raise UserError(
            f"model.weights: {file} is not a state_dict (a dictionary of tensors by name); write "
            "one with torch.save(model.state_dict(), FILE)"
        )
    return dict(found)


def _unwrapped(found: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The weights `found` without prefixes of wrappers, such as DistributedDataParallel's `module`,
    so that names match those in `own`. If no names match, `found` is returned unchanged.
    torch.compile's `_orig_mod` is removed anywhere in a name."""
    bare = {name.replace("_orig_mod.", ""): value for name, value in found.items()}
    while bare and not bare.keys() & own.keys():
        first = next(iter(bare)).partition(".")[0] + "."
        if not all(name.startswith(first) for name in bare):
            return found
        bare = {name.removeprefix(first): value for name, value in bare.items()}
    return bare


def _of_other_classes(
    own: Mapping[str, Tensor], found: Mapping[str, Tensor], classes: int
) -> list[str]:
    """The names of the tensors with one row per class, if the file has another number of classes.

    Only the last of these tensors determines the file's number of classes, because other tensors
    may have as many rows by chance, such as the position embedding for 256 tokens in a model of
    bytes.
    """
    rows = [name for name in own.keys() & found.keys() if own[name].shape[:1] == (classes,)]
    last = max(rows, key=list(own).index, default=None)
    if last is None or found[last].ndim == 0 or found[last].shape[0] == classes:
        return []
    others = found[last].shape[:1]
    return [name for name in rows if found[name].shape == others + own[name].shape[1:]]


def _counters(state: dict[str, Tensor]) -> set[str]:
    """The names of BatchNorm's batch counters, which files of torch before 0.4.1 lack."""
    return {name for name in state if name.endswith("num_batches_tracked")}
