"""The bytes of a step that are computed are those that the frameworks' collectives move."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.launches import found_by

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PADDING = 16
"""DeepSpeed pads its buffers to a multiple of the ranks, on each of the few weights."""

REQUESTS: dict[str, list[tuple[dict[str, Any], int]]] = {
    "ddp": [
        ({"name": "ddp"}, 1),
        ({"name": "ddp", "bucket_mb": 0.1}, 2),
        ({"name": "ddp", "compression": "fp16"}, 1),
        ({"name": "ddp", "compression": "bf16"}, 2),
    ],
    "horovod": [({"name": "horovod"}, 2), ({"name": "horovod", "compression": "fp16"}, 1)],
    "deepspeed": [
        *(({"name": "deepspeed", "zero_stage": stage}, 2) for stage in range(3)),
        ({"name": "deepspeed", "zero_stage": 2, "overlap_comm": True}, 1),
        ({"name": "deepspeed", "zero_stage": 3}, 1),
        ({"name": "deepspeed", "zero_stage": 3}, 2),
        ({"name": "deepspeed", "zero_stage": 3, "overlap_comm": True}, 1),
    ],
    "fsdp": [
        ({"name": "fsdp", "units": "layers"}, 2),
        ({"name": "fsdp", "units": "layers", "reshard_after_forward": False}, 2),
        ({"name": "fsdp", "units": "layers", "reduce_dtype": "bf16"}, 1),
    ],
}
KINDS = {
    "all_reduced": ("allreduce",),
    "reduce_scattered": ("reduce_scatter_base",),
    "all_gathered": ("allgather_base",),
}


@pytest.mark.parametrize("framework", REQUESTS)
def test_bytes_of_a_step(framework: str) -> None:
    found_by_rank_0 = found_by(framework, 2, "traffic_worker", REQUESTS[framework])[0]
    for request, found in zip(REQUESTS[framework], found_by_rank_0, strict=True):
        seen = {
            kind: sum(found["seen"].pop(name, 0) for name in names) for kind, names in KINDS.items()
        }
        assert found["seen"] == {}, request  # no collective of another kind
        assert found["computed"] is not None, request
        assert sum(seen.values()) > 0, request
        for kind, computed in found["computed"].items():
            assert abs(seen[kind] - computed) <= PADDING, (request, kind, seen)
