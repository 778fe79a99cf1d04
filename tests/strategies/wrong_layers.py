"""Networks that are built anew with one flaw of a careless conversion, for the gate to refuse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from torch import nn

from raysuite.parallel import rebuilt
from raysuite.parallel.rebuilt import Operation

FLAWS = ("epsilon", "momentum", "padding", "layout")
KERAS = {"epsilon": ("eps", 1e-3), "momentum": ("momentum", 0.01)}
"""Flaw -> what BatchNorm has by Keras's own defaults, by torch's name."""


@contextmanager
def flawed(flaw: str) -> Iterator[None]:
    """In its block, networks are built with the flaw; `none` is right."""
    right, right_pads = rebuilt.operations_of, rebuilt.pads

    def operations_of(model: nn.Module) -> list[Operation]:
        wrong = dict([KERAS[flaw]] if flaw in KERAS else [])
        return [
            replace(each, numbers=each.numbers | wrong) if each.kind == "norm" else each
            for each in right(model)
        ]

    def pads(padding: Any) -> list[tuple[int, int]]:
        """TensorFlow's "same" of an even image with stride 2: below and on the right alone."""
        if flaw != "padding":
            return right_pads(padding)
        return [(0, sum(each)) for each in right_pads(padding)]

    orders = rebuilt.CHANNELS_LAST | ({4: (3, 2, 1, 0)} if flaw == "layout" else {})
    with (
        patch.object(rebuilt, "operations_of", operations_of),
        patch.object(rebuilt, "pads", pads),
        patch.object(rebuilt, "CHANNELS_LAST", orders),
    ):
        yield
