"""Make the loader that a spec names; only then is the loader's module imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysuite.data.base import Loader
from raysuite.data.prepared import Prepared, Split
from raysuite.errors import DataError
from raysuite.lazy import load
from raysuite.spec.loaders import LoaderOptions

if TYPE_CHECKING:
    import torch


def make_loader(
    prepared: Prepared,
    split: Split,
    options: LoaderOptions,
    device: torch.device,
    channels_last: bool = False,
    images: bool = True,
) -> Loader:
    """The loader that `options` names, for one split, with its batches on `device`.

    `channels_last`: whether images on a GPU have torch's memory format channels_last. `images`:
    whether the worker needs images; if False, only labels are read.

    Raises MissingPartError if the loader is not installed, and DataError if the loader cannot load
    this data set on this device.
    """
    if prepared.data.transform is not None and not options.transforms:
        raise DataError(
            f"data.transform: the loader {options.name} does not call Python for each image; use "
            "another loader"
        )
    if prepared.tensors and not options.tensors:
        raise DataError(f"loader.name: {options.name} loads only images; use native")
    if options.loads and not images and not prepared.tensors:
        from raysuite.data.loaders.labels import LabelLoader

        return LabelLoader(prepared, split, device)
    implementation = options.tensors if prepared.tensors else options.implementation
    loader: Loader = load(implementation)(prepared, split, options, device, channels_last)
    return loader
