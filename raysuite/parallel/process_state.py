"""Undo the changes that a run makes to its process, so that the next run starts like the first run.

Frameworks change their process. DeepSpeed's stage 3 replaces `torch.nn.functional.linear`, torch
wraps `sys.excepthook` again each time a process group is joined, and environment variables stay
set.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from raysuite.parallel.comm import leave_torch_group

_PACKAGES = ("torch", "numpy")
"""The packages whose functions, classes and methods are restored."""


def _set_environment(variables: dict[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def _attribute(owner: object, name: str) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    return partial(getattr, owner, name), partial(setattr, owner, name)


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (lambda: dict(os.environ), _set_environment),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    *(_attribute(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")),
    (np.geterr, lambda errors: np.seterr(**errors)),
    (np.random.get_state, np.random.set_state),
    (random.getstate, random.setstate),
    _attribute(sys, "excepthook"),
)
"""(function that reads, function that sets) for each restored setting of a process."""


@contextmanager
def restored(device: torch.device) -> Iterator[None]:
    """Restore the process after the context: functions of torch and numpy, environment variables,
    number of threads and random state. If a torch process group was joined within the context, it
    is destroyed. Imported modules stay imported."""
    joined, attributes = dist.is_initialized(), _attributes()
    settings = [(put, get()) for get, put in _SETTINGS]
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        if dist.is_initialized() and not joined:
            leave_torch_group()
        for owner, before in attributes:
            _put_back(owner, before)
        for put, value in settings:
            put(value)


def _attributes() -> list[tuple[Any, dict[str, Any]]]:
    """(owner, its attributes by name) for every module and class of the public API of
    `_PACKAGES`."""
    owners: list[Any] = []
    for name, module in list(sys.modules.items()):
        package, *parts = name.split(".")
        if package in _PACKAGES and not any(part.startswith("_") for part in parts):
            # not isinstance: it reads `__class__`, for which torch's deprecated names warn
            classes = [each for each in vars(module).values() if issubclass(type(each), type)]
            owners += [module, *(each for each in classes if each.__module__ == name)]
    return [(owner, dict(vars(owner))) for owner in owners]


def _put_back(owner: Any, before: dict[str, Any]) -> None:
    """Restore the functions and classes of `owner` that other packages have replaced. torch's own
    wrappers stay, because torch wraps some functions, such as those of optimisers, only once."""
    now = vars(owner)
    for name, value in before.items():
        if (other := now.get(name)) is value:
            continue
        function = callable(value) or isinstance(value, classmethod | property)
        if function and _is_foreign(other):
            setattr(owner, name, value)


def _is_foreign(value: Any) -> bool:
    """Whether a function, or a function that it wraps, is defined outside `_PACKAGES`."""
    while value is not None:
        function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        names = getattr(function, "__globals__", None) or {"__name__": function.__module__}
        if str(names["__name__"]).partition(".")[0] not in _PACKAGES:
            return True
        value = getattr(function, "__wrapped__", None)
    return False
