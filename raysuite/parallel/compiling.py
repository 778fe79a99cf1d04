"""Compile the model with torch.compile, and measure the time that compiling takes.

`precision.Autocast` is compiled before a framework wraps it. DDP's buckets then also cut the
compiled graph (torch's DDPOptimizer), so that gradients are still reduced during the backward pass.
Loss, loss scale and optimiser are not compiled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class Compiler:
    """The time and number of compilations. `enabled`: whether anything is compiled."""

    def __init__(self, enabled: bool = False) -> None:
        self.enabled = enabled
        self.seconds = 0.0
        """Seconds of compilation, including the recording of CUDA graphs."""
        self.graphs = 0
        """The number of compilations: see `EpochFinished.graphs`."""

    @property
    def graph_breaks(self) -> dict[str, int]:
        """Reason -> number of graph breaks for this reason; empty if the model is one graph."""
        return {}

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure the time of one compilation by a framework other than torch."""
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began
        self.graphs += 1

    def cold(self) -> None:
        """Until `close`, make torch cache compiled code in a new folder. With a shared cache, the
        compile seconds of a run and of its repeats would not be comparable."""

    def close(self) -> None:
        """Release the compiled graphs, which refer to the model."""


class TorchCompiler(Compiler):
    """Compile `module` in place with torch.compile."""

    def __init__(self, module: nn.Module, mode: str, device: torch.device) -> None:
        super().__init__(enabled=True)
        self._device = device
        self._began = 0.0
        self._cold: Any = None
        from torch._dynamo import callback, utils

        # a CUDA build of torch warns if there is no GPU
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
        # torch limits the number of recompilations, and then runs a model uncompiled; the graphs of
        # earlier engines would count
        torch._dynamo.reset()
        self._handler, self._breaks = callback.callback_handler, utils.counters["graph_break"]
        self._breaks.clear()
        self._handler.register_start_callback(self._begin)
        self._handler.register_end_callback(self._end)
        module.compile(mode=mode)

    @property
    def graph_breaks(self) -> dict[str, int]:
        return dict(self._breaks) if self.enabled else {}

    def cold(self) -> None:
        from torch._inductor.utils import fresh_cache

        self._cold = fresh_cache()
        self._cold.__enter__()

    def close(self) -> None:
        if not self.enabled:
            return
        self.enabled = False
        self._handler.remove_start_callback(self._begin)
        self._handler.remove_end_callback(self._end)
        if self._cold is not None:
            self._cold.__exit__(None, None, None)
        torch._dynamo.reset()

    def _begin(self, _: object) -> None:
        if self._device.type == "cuda":  # the time of earlier steps is training time
            torch.cuda.synchronize(self._device)
        self._began = time.perf_counter()

    def _end(self, _: object) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.seconds += time.perf_counter() - self._began
        self.graphs += 1
