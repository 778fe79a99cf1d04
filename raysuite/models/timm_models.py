"""Make untrained models of timm by their names in timm (`timm:NAME`)."""

from __future__ import annotations

import difflib
from typing import Any

from raysuite import lazy
from raysuite.errors import UserError
from raysuite.models.base import Constructor
from raysuite.spec.datasets import DatasetFacts

PREFIX = "timm:"


def constructor(name: str, facts: DatasetFacts) -> Constructor:
    """timm's `create_model`, and its arguments for this data set.

    Raises MissingPartError without timm, and UserError if timm has no model of that name.
    """
    wanted = name.removeprefix(PREFIX)
    create = lazy.load("timm:create_model")
    configuration = _configuration(wanted)
    known = {"num_classes": facts.classes, "in_chans": facts.channels}
    if configuration is not None and configuration.fixed_input_size:  # these models take img_size
        known["img_size"] = facts.image_size
    arguments: dict[str, Any] = {"model_name": wanted, "pretrained": False}
    # for tasks other than classification, these facts may be 0
    return create, arguments | {key: value for key, value in known.items() if value}


def check(name: str) -> None:
    """Raise MissingPartError without timm, and UserError if timm has no model of this name."""
    _configuration(name.removeprefix(PREFIX))


def _configuration(name: str) -> Any:
    """timm's configuration of a pretrained model of that name, or None."""
    if not lazy.load("timm:is_model")(name):
        near = difflib.get_close_matches(name, lazy.load("timm:list_models")(), n=3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UserError(
            f"timm has no model {name!r}; {hint}"
            "`python -c 'import timm; print(timm.list_models())'` lists them"
        )
    try:
        return lazy.load("timm.models:get_pretrained_cfg")(name)
    except RuntimeError as error:  # the model does not have the tag after the dot
        plain = name.partition(".")[0]
        raise UserError(f"timm: {error} Leave the tag out: timm:{plain}") from error
