"""The bytes of a step that are computed are those that the frameworks' collectives move."""

from __future__ import annotations

import pytest

from tests.contract.launches import found_by
from tests.contract.variants import VARIANTS

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PADDING = 16
"""DeepSpeed pads its buffers to a multiple of the ranks, on each of the few weights."""

KINDS = {
    "all_reduced": ("allreduce",),
    "reduce_scattered": ("reduce_scatter_base",),
    "all_gathered": ("allgather_base",),
}


@pytest.mark.parametrize("framework", dict.fromkeys(v.name for v in VARIANTS.values() if v.traffic))
def test_bytes_of_a_step(framework: str) -> None:
    requests = [(v.options, n) for v in VARIANTS.values() if v.name == framework for n in v.traffic]
    found_by_rank_0 = found_by(framework, 2, "traffic_worker", requests)[0]
    for request, found in zip(requests, found_by_rank_0, strict=True):
        seen = {
            kind: sum(found["seen"].pop(name, 0) for name in names) for kind, names in KINDS.items()
        }
        assert found["seen"] == {}, request  # no collective of another kind
        assert found["computed"] is not None, request
        assert sum(seen.values()) > 0, request
        for kind, computed in found["computed"].items():
            assert abs(seen[kind] - computed) <= PADDING, (request, kind, seen)
