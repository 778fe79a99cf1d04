"""Autocast and loss scaling that work in the same way under every framework.

Frameworks implement mixed precision differently; DeepSpeed, for example, also sends gradients in 16
bits. Here weights, gradients and communication stay fp32, and only the forward and backward passes
run in 16 bits: `Autocast` wraps the model, and the framework wraps `Autocast`.

fp16 needs loss scaling (Micikevicius et al. 2018, "Mixed Precision Training", section 3.2). The
scale is per sample: the backward pass in 16 bits begins with the gradient of one sample's loss with
respect to its logits, multiplied by the scale, for any number of ranks, micro-batches and samples
in a global batch. A large batch therefore does not make small gradients vanish. Gradients are
unscaled in fp32: usually in one fused pass after the last backward pass. With compressed gradients,
DeepSpeed or a pipeline, a hook on each weight unscales its gradient as soon as it is computed. On
an overflow, all ranks skip the step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from raysuite.nested import called, mapped, real_views
from raysuite.parallel.comm import Comm

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor; the whole tensor if not sharded."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


_START = 2.0**8
"""Initial scale. torch.amp.GradScaler starts with 2^16 on the mean loss; for a batch of 256
samples, that is 2^8 per sample."""
_GROW_AFTER = 2000
"""Steps without overflow before the scale doubles, as in torch.amp.GradScaler."""
_SMALLEST = 1e-4
"""Smallest scale; a run fails below it, as with fairseq's `--min-loss-scale`."""


class LossScale:
    """Dynamic loss scale; does nothing unless enabled.

    `whole`: whether, after the last backward pass of a step, each rank holds all gradients or its
    shards of them in fp32, averaged over ranks without loss of precision. Without `whole`, hooks
    unscale each gradient as soon as it is computed.
    """

    def __init__(self, model: nn.Module, comm: Comm, enabled: bool, whole: bool = False) -> None:
        self.enabled = enabled
        self.factor = _START if enabled else 1.0
        """The loss scale per sample: in the 16-bit passes, the gradient of one sample's loss is
        multiplied by this factor."""
        self.skipped = 0
        """The number of steps with overflow since the start, or since a checkpoint was loaded."""
        self.shares = comm.size
        """The number of shares into which the loss is divided; see `raysuite.parallel.base`."""
        self._comm = comm
        self._carried = 1.0
        self._good_steps = 0
        self._overflow: Tensor | None = None
        self._skip = False
        self._whole = whole
        self._parameters = [each for each in model.parameters() if each.requires_grad]
        if enabled and not whole:
            for parameter in self._parameters:
                parameter.register_hook(self._unscale)

    def apply(self, logits: Tensor, of_global: float) -> Tensor:
        """Return `logits` [b, classes] (fp32) unchanged; the backward pass scales their gradient.

        A rank's share of the loss is the sum over its samples, times `shares` / `of_global`.
        """
        if not (self.enabled and logits.requires_grad):
            return logits
        self.carry(of_global)
        scaled: Tensor = _Scale.apply(logits, self._carried)
        return scaled

    def carry(self, of_global: float) -> None:
        """Set the scale of the gradients of the next backward pass. Ranks without logits must call
        this before the backward pass."""
        self._carried = self.factor * of_global / self.shares

    def _unscale(self, gradient: Tensor) -> Tensor:
        """The unscaled gradient of one weight. Non-finite values become 0: compression with error
        feedback would otherwise keep them for ever."""
        result = gradient.clone()
        self._unscale_in_place([result])
        return result.nan_to_num_(0.0, 0.0, 0.0)

    def _unscale_in_place(self, gradients: list[Tensor]) -> None:
        if not gradients:
            return
        device = gradients[0].device
        if self._overflow is None:
            self._overflow = torch.zeros(1, device=device)
        # torch.amp.GradScaler's kernel: one pass on a GPU divides and checks for overflow
        torch._amp_foreach_non_finite_check_and_unscale_(
            real_views(gradients),
            self._overflow,
            torch.full((1,), 1 / self._carried, device=device),
        )

    def guard(self, optimizer: torch.optim.Optimizer) -> None:
        """Make `optimizer.step` do nothing in a step whose gradients overflowed on any rank."""
        if not self.enabled:
            return
        update = optimizer.step

        def step(*args: Any, **kwargs: Any) -> Any:
            return None if self._skip else update(*args, **kwargs)

        optimizer.step = step  # type: ignore[method-assign]

    def decide(self) -> None:
        """Decide after a step's last backward pass whether all ranks take the step.

        With `whole`, the gradients are unscaled here. If no gradient is sharded, all ranks have the
        same gradients and decide alike. Otherwise an all-reduce finds overflows of other ranks.
        """
        if not self.enabled:
            return
        alike = self._whole
        if self._whole:
            whole = [each.grad for each in self._parameters if each.grad is not None]
            own = [local_part(each) for each in whole]
            self._unscale_in_place(own)
            alike = all(part is each for part, each in zip(own, whole, strict=True))
        found = torch.zeros(1) if self._overflow is None else self._overflow
        if not alike:
            found = self._comm.all_reduce(found, "max")
        self._skip = bool(found.item() > 0)
        self._overflow = None

    def update(self) -> None:
        """Update the scale after a step: halve it on overflow, double it after many good steps.

        Raises FloatingPointError if the scale gets too small to be useful.
        """
        if not self.enabled:
            return
        if self._skip:
            self.factor, self._good_steps = self.factor / 2, 0
            self.skipped += 1
            if self.factor < _SMALLEST:
                raise FloatingPointError(
                    f"fp16: the loss scale fell below {_SMALLEST:g}, because gradients overflowed "
                    f"in {self.skipped} steps; lower optimizer.lr, or set training.precision to "
                    "bf16 or fp32"
                )
        else:
            self._good_steps += 1
            if self._good_steps % _GROW_AFTER == 0:
                self.factor *= 2

    def state(self) -> dict[str, float]:
        """The state for a checkpoint."""
        return {"sample_factor": self.factor, "good_steps": float(self._good_steps)}

    def load_state(self, state: dict[str, float]) -> None:
        """Restore what `state` returned."""
        self.factor, self._good_steps = state["sample_factor"], int(state["good_steps"])


class _Scale(torch.autograd.Function):
    """The identity, but its backward pass multiplies the gradient by a factor."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class Autocast(nn.Module):
    """Runs the forward and backward pass of `model` in `precision` on images in `memory_format`,
    and converts the output to fp32."""

    def __init__(
        self,
        model: nn.Module,
        precision: str,
        device: torch.device,
        memory_format: str = "contiguous",
    ) -> None:
        super().__init__()
        self.model = model
        self._dtype = DTYPES[precision]
        self._device_type = device.type
        self._memory_format = MEMORY_FORMATS[memory_format]

    def forward(self, images: Any) -> Any:
        """Logits [b, classes] in fp32 for fp32 images [b, C, H, W] of any strides. For other inputs
        (a tuple: positional arguments; a dictionary: keyword arguments), the network's output."""
        inputs = mapped(images, lambda each: each.contiguous(memory_format=self._memory_format))
        if self._dtype is torch.float32:
            return called(self.model, inputs)
        with torch.autocast(self._device_type, dtype=self._dtype):
            output = called(self.model, inputs)
        return mapped(output, lambda each: each.float() if each.is_floating_point() else each)
