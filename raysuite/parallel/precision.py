"""Autocast and loss scaling that mean the same under every framework.

Frameworks disagree about what mixed precision is: DeepSpeed's own also sends gradients in 16
bits. Here weights, gradients and communication stay fp32, and only the forward and backward
passes run in 16 bits: the model is wrapped *inside* whatever the framework wraps.

fp16 needs loss scaling (Micikevicius et al. 2018, "Mixed Precision Training", section 3.2). The
logits carry the factor into the backward pass, and a hook on each weight takes it out of the
gradient before any framework sees it. A gradient that overflowed makes all ranks skip the step.
The world size, by which a rank's share of the loss is larger than one process's, is taken out of
the factor: a sample's gradient in 16 bits is the same however many ranks there are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from raysuite.parallel.comm import Comm

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_START, _GROW_AFTER = 2.0**16, 2000
"""First scale, and steps without overflow before it doubles: as torch.amp.GradScaler."""


class LossScale:
    """Dynamic loss scale; does nothing unless enabled."""

    def __init__(self, model: nn.Module, comm: Comm, enabled: bool) -> None:
        self.enabled = enabled
        self.factor = _START if enabled else 1.0
        self._comm = comm
        self._good_steps = 0
        self._overflow: Tensor | None = None
        self._skip = False
        if enabled:
            for parameter in model.parameters():
                parameter.register_hook(self._unscale)

    def _unscale(self, gradient: Tensor) -> Tensor:
        found = (~torch.isfinite(gradient)).any()
        self._overflow = found if self._overflow is None else self._overflow | found
        return gradient / self.carried

    @property
    def carried(self) -> float:
        """By what the backward pass is scaled on this rank."""
        return self.factor / self._comm.size

    def guard(self, optimizer: torch.optim.Optimizer) -> None:
        """Make `optimizer.step` do nothing in a step whose gradients overflowed on any rank."""
        if not self.enabled:
            return
        update = optimizer.step

        def step(*args: Any, **kwargs: Any) -> Any:
            return None if self._skip else update(*args, **kwargs)

        optimizer.step = step  # type: ignore[method-assign]

    def decide(self) -> None:
        """After the last backward pass of a step: do all ranks take it?"""
        if not self.enabled:
            return
        found = torch.zeros(()) if self._overflow is None else self._overflow.float()
        self._skip = bool(self._comm.all_reduce(found.reshape(1), "max").item() > 0)
        self._overflow = None

    def update(self) -> None:
        """After the step: halve the scale on overflow, double it after many good steps."""
        if not self.enabled:
            return
        if self._skip:
            self.factor, self._good_steps = self.factor / 2, 0
        else:
            self._good_steps += 1
            if self._good_steps % _GROW_AFTER == 0:
                self.factor *= 2

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"factor": self.factor, "good_steps": float(self._good_steps)}

    def load_state(self, state: dict[str, float]) -> None:
        """Take up what `state` gave."""
        self.factor, self._good_steps = state["factor"], int(state["good_steps"])


class _Scale(torch.autograd.Function):
    """Identity forward; multiplies the gradient backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class Autocast(nn.Module):
    """`model` with forward and backward in `precision`; the logits come out in fp32."""

    def __init__(
        self, model: nn.Module, precision: str, device: torch.device, scale: LossScale
    ) -> None:
        super().__init__()
        self.model = model
        self._dtype = _DTYPES[precision]
        self._device = device.type
        self._scale = scale

    def forward(self, images: Tensor) -> Tensor:
        """Logits [b, classes] fp32 for images [b, C, H, W] fp32."""
        if self._dtype is torch.float32:
            logits: Tensor = self.model(images)
            return logits
        with torch.autocast(self._device, dtype=self._dtype):
            logits = self.model(images)
        logits = logits.float()
        if self._scale.enabled and logits.requires_grad:
            logits = _Scale.apply(logits, self._scale.carried)
        return logits
