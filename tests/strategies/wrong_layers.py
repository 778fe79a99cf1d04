"""TensorFlow's network with one flaw of a careless conversion: what the gate must refuse."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import nn

from raysuite.parallel import tensorflow

FLAWS = ("epsilon", "momentum", "padding", "layout")


@contextmanager
def flawed(flaw: str) -> Any:
    """In its block, networks are built with the flaw; `none` is right."""
    right: Callable[..., Any] = tensorflow.make_layer

    def make_layer(layer: Any, keras: Any) -> Any:
        made = right(layer, keras)
        if isinstance(layer, nn.BatchNorm2d) and flaw == "epsilon":
            made.epsilon = 1e-3  # Keras's own default
        if isinstance(layer, nn.BatchNorm2d) and flaw == "momentum":
            made.momentum = 0.99  # as well
        return made

    def pads(padding: Any) -> list[tuple[int, int]]:
        """TensorFlow's "same" of an even image with stride 2: below and on the right alone."""
        right_pads: list[tuple[int, int]] = before(padding)
        if flaw != "padding":
            return right_pads
        return [(0, sum(each)) for each in right_pads]

    before = tensorflow.pads
    orders = {4: (2, 3, 1, 0), 2: (1, 0)} | ({4: (3, 2, 1, 0)} if flaw == "layout" else {})
    with (
        patch.object(tensorflow, "make_layer", make_layer),
        patch.object(tensorflow, "pads", pads),
        patch.object(tensorflow, "_TO_TF", orders),
    ):
        yield
