"""Checkpoints are read as data: whoever can write one may not run code by it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

_ALWAYS, _NEVER = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


@contextmanager
def weights_only(classes: Sequence[type]) -> Iterator[None]:
    """Makes every `torch.load` in its block run no code of the file, whatever its caller asks for.

    For frameworks that load by themselves. `classes` are plain data beside tensors, which they
    also write. Anything else raises pickle.UnpicklingError. (torch, "Serialization semantics",
    TORCH_FORCE_WEIGHTS_ONLY_LOAD.)
    """
    before = {name: os.environ.pop(name, None) for name in (_ALWAYS, _NEVER)}
    os.environ[_ALWAYS] = "1"
    try:
        with torch.serialization.safe_globals(list(classes)):
            yield
    finally:
        del os.environ[_ALWAYS]
        os.environ.update({name: value for name, value in before.items() if value is not None})
