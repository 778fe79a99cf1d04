"""Each trial of `raysuite doctor`, for real."""

from __future__ import annotations

import pytest

from raysuite.measure.parts import TRIED, Part, State, try_part
from tests.require import require

OPTIONAL = ("horovod", "deepspeed", "dali", "timm", "gpu")


@pytest.mark.integration
@pytest.mark.parametrize("part", TRIED, ids=lambda part: part.trial)
def test_part_works(part: Part) -> None:
    if part.trial in OPTIONAL:
        require(part.trial)
    finding = try_part(part)
    assert finding.state is State.WORKS, finding.note
