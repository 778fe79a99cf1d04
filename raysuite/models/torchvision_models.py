"""torchvision's other classifiers by their name there, untrained and as they are."""

from __future__ import annotations

from functools import partial
from typing import Any

import torchvision

from raysuite.models.base import Constructor
from raysuite.spec.datasets import DatasetFacts

_WITHOUT_HEADS = {"aux_logits": False, "init_weights": True}
"""Auxiliary heads would return more than logits; the second is a default that is to change."""


def constructor(name: str, facts: DatasetFacts) -> Constructor:
    """torchvision's builder of the model, and the arguments that this data set asks for."""
    arguments: dict[str, Any] = {"weights": None, "num_classes": facts.classes}
    if name in ("googlenet", "inception_v3"):
        arguments |= _WITHOUT_HEADS
    if name.startswith("vit_"):  # its position embedding is made for one size
        arguments["image_size"] = facts.image_size
    if name.startswith("maxvit_"):  # its windows must tile the image
        arguments["input_size"] = (facts.image_size, facts.image_size)
    return partial(torchvision.models.get_model, name), arguments
