"""Bytes that one optimiser step's collectives move, computed from what each framework does.

A test counts the collectives of DDP's and DeepSpeed's steps and holds these figures equal to them.
Flags, norms and loss scales, of some bytes each, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from raysuite.records.names import Plan

_REUSED_BELOW = 10**9
"""DeepSpeed's `stage3_max_reuse_distance`: smaller models keep what the forward pass gathered for
the backward pass."""


@dataclass(frozen=True)
class Traffic:
    """Of one optimiser step: bytes of the whole buffers that a rank's collectives combine."""

    all_reduced: int = 0
    reduce_scattered: int = 0
    all_gathered: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.all_reduced + self.reduce_scattered + self.all_gathered

    def sent(self, workers: int) -> float:
        """Bytes that each of n workers sends where algorithms are optimal in bandwidth.

        `2 (n - 1) / n` of what is all-reduced, `(n - 1) / n` of what is reduce-scattered or
        gathered: over the time, NCCL's bus bandwidth (NVIDIA/nccl-tests, doc/PERFORMANCE.md).
        """
        part = (workers - 1) / workers
        return part * (2 * self.all_reduced + self.reduce_scattered + self.all_gathered)


def step_traffic(plan: Plan, parameters: int, gradient_bytes: int) -> Traffic | None:
    """The collectives of an optimiser step of a plan.

    `parameters` are the numbers of the model, `gradient_bytes` the fp32 gradients of those that
    are trained. None where it depends on more than that: PowerSGD and Adasum, offloading, ZeRO-3
    with accumulation or 10^9 parameters, a strategy of the user's own.

    ZeRO's authors count 2 Ψ numbers that each worker sends in stages 1 and 2, and 3 Ψ in stage 3
    (Rajbhandari et al. 2020, "ZeRO", section 7). DeepSpeed 0.19 all-reduces the gradients in
    stages 1 and 2, where a reduce-scatter would do, and then gathers the weights: 3 Ψ. In stage 3
    it gathers the weights once, not twice, unless they are very many: 2 Ψ.
    """
    strategy, workers = plan["spec"]["strategy"], int(plan["workers"])
    if workers == 1:
        return Traffic()
    match strategy["name"]:
        case "ddp":
            bits = {"none": 32, "fp16": 16, "bf16": 16}.get(strategy.get("compression", "none"))
            return None if bits is None else Traffic(gradient_bytes * bits // 32)
        case "horovod":
            if strategy.get("adasum"):
                return None
            halves = 1 if strategy.get("compression") == "fp16" else 2
            return Traffic(gradient_bytes * halves // 2)
        case "deepspeed" if strategy.get("offload", "none") == "none":
            return _zero(int(strategy["zero_stage"]), plan, parameters, gradient_bytes)
    return None


def _zero(stage: int, plan: Plan, parameters: int, gradient_bytes: int) -> Traffic | None:
    accumulate = int(plan["accumulate"])
    if stage == 0:
        return Traffic(gradient_bytes)
    if stage < 3:  # from stage 2 on, each micro-batch's gradients are reduced
        return Traffic(gradient_bytes * (accumulate if stage == 2 else 1), 0, gradient_bytes)
    if accumulate > 1 or parameters >= _REUSED_BELOW:
        return None
    return Traffic(0, gradient_bytes, 4 * parameters)
