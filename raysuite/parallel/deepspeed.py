"""DeepSpeed with ZeRO (Rajbhandari et al. 2020, "ZeRO", SC'20).

`loss.backward()` alone leaves gradients unsynchronised, so every step calls `engine.backward` and
`engine.step`. DeepSpeed's division of the loss by the number of micro-batches is switched off,
because the loss is already a share of the global batch's loss.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from raysuite.errors import MissingPartError
from raysuite.parallel.base import (
    FrameworkEngine,
    StepSettings,
    TorchGroupStrategy,
    World,
    kept_settings,
    set_lr,
    unreadable,
)
from raysuite.spec.strategies import DeepSpeedOptions
from raysuite.units import MIB

if TYPE_CHECKING:
    from raysuite.data.base import Batch

# Checkpoints are read as data: a file of another user must not run code.

_ALWAYS, _NEVER = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


@contextmanager
def weights_only(classes: Sequence[type]) -> Iterator[None]:
    """Within the context, `torch.load` runs no code of the file, whatever its arguments are.

    Needed for frameworks that call torch.load themselves. `classes`: classes of plain data that the
    framework writes in addition to tensors. Raises pickle.UnpicklingError if the file contains any
    other class. (torch, "Serialization semantics", TORCH_FORCE_WEIGHTS_ONLY_LOAD.)
    """
    before = {name: os.environ.pop(name, None) for name in (_ALWAYS, _NEVER)}
    os.environ[_ALWAYS] = "1"
    try:
        with torch.serialization.safe_globals(list(classes)):
            yield
    finally:
        del os.environ[_ALWAYS]
        os.environ.update({name: value for name, value in before.items() if value is not None})


_NO_CLIPPING = 0.0
_FP32_BYTES = 4
_BUCKET_STEP = 2
"""Bucket sizes are multiples of this number of values: ZeRO refuses buckets of an odd size."""

_MUON = "deepspeed.runtime.zero.muon.muon_optimizer"


def _deepspeed() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import deepspeed
    except ImportError as error:
        raise MissingPartError(
            f"DeepSpeed cannot be loaded ({error}); `make setup` installs it"
        ) from error
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    return deepspeed


def _forget_groups() -> None:
    """Clear DeepSpeed's cached groups, so that it uses the group that this process joins next."""
    from deepspeed.comm import comm
    from deepspeed.utils import groups

    comm.cdb = None
    for name, value in vars(groups).items():
        if name.startswith("_") and name.endswith("_GROUP"):
            setattr(groups, name, {} if isinstance(value, dict) else None)


def _choose_accelerator(device: torch.device) -> None:
    """Set DeepSpeed's accelerator to `device`. DeepSpeed's default is a GPU if the machine has one.

    On a CPU, DeepSpeed would also compile an all-reduce through shared memory, which needs a
    compiler at run time and works only within one node. Gloo is used instead.
    """
    from deepspeed.accelerator import get_accelerator, set_accelerator
    from deepspeed.ops import __compatible_ops__ as operators

    operators["deepspeed_shm_comm"] = False
    if get_accelerator().device_name() != device.type:
        from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
        from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

        set_accelerator(CPU_Accelerator() if device.type == "cpu" else CUDA_Accelerator())


def engine_config(
    options: DeepSpeedOptions, settings: StepSettings, workers: int
) -> dict[str, Any]:
    """DeepSpeed's configuration: fp32 weights and gradients, clipping, accumulation, ZeRO."""
    values = int(options.bucket_mb * MIB / _FP32_BYTES)
    bucket = max(_BUCKET_STEP, values - values % _BUCKET_STEP)
    zero: dict[str, Any] = {
        "stage": options.zero_stage,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
        "contiguous_gradients": True,
        "reduce_scatter": True,
    }
    if options.overlap_comm is not None:
        zero["overlap_comm"] = options.overlap_comm
    # otherwise DeepSpeed computes the norm in every step, and waits for it, even if it is unused
    if options.zero_stage in (1, 2) and not settings.needs_norm and options.offload == "none":
        zero["compute_grad_norm"] = False
    if options.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if options.offload == "parameters":
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_batch_size": settings.micro_batch * settings.accumulate * workers,
        "train_micro_batch_size_per_gpu": settings.micro_batch,
        "gradient_accumulation_steps": settings.accumulate,
        "gradient_clipping": settings.clip_norm or _NO_CLIPPING,
        "zero_optimization": zero,
        # ZeRO accepts torch's Adam by name; SGD is elementwise like Adam, and the gate checks it
        "zero_allow_untested_optimizer": True,
        # do not replace the spec's optimiser when its state is offloaded
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
        "wall_clock_breakdown": False,
        # throughput timers synchronise the device twice per micro-batch
        "timers": {"throughput": {"enabled": False}},
    }


def _data_classes() -> list[type]:
    """The classes in ZeRO's checkpoints other than tensors and plain values."""
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [LossScaler, ZeroStageEnum, fragment_address]


@contextmanager
def _without_muon() -> Iterator[None]:
    """Replace DeepSpeed's Muon with an empty class, so that no optimiser is an instance of it.

    DeepSpeed uses Muon only in isinstance tests. Importing the real class takes a second.
    """
    if _MUON in sys.modules:
        yield
        return
    sys.modules[_MUON] = SimpleNamespace(MuonWithAuxAdam=type("MuonWithAuxAdam", (), {}))  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[_MUON]


class DeepSpeedEngine(FrameworkEngine):
    """A training step with DeepSpeed's engine."""

    whole_gradients = False

    def wrap(self) -> None:
        # DeepSpeed broadcasts weights as bytes and shards them flat: they must be contiguous
        self.model.to(memory_format=torch.contiguous_format)
        self._stage = self.options.zero_stage
        # stage 3 replaces the weights by shards, so names are stored first
        self._names = [name for name, _ in self.model.named_parameters()]
        self.engine: Any
        deepspeed = _deepspeed()
        with _without_muon():
            self.engine, self._optimizer, _, _ = deepspeed.initialize(
                model=self.autocast,
                optimizer=self.optimizer,
                config=engine_config(self.options, self.settings, self.world.size),
                dist_init_required=False,
            )

    def step(self, micro_batches: Sequence[Batch], lr: float) -> Tensor:
        set_lr(self._optimizer, lr)
        total = torch.zeros((), device=self.world.device)
        skipped = self.engine.skipped_steps
        for index, batch in enumerate(micro_batches):
            loss, summed = self.loss(batch, self.engine(batch.images))
            self.engine.backward(loss, scale_wrt_gas=False)
            total += summed
            if index == len(micro_batches) - 1:
                self.scale.decide()
                if self.settings.needs_norm and self._stage == 0:
                    self.gradient_norm()
            self.engine.step()
        if self.settings.needs_norm and self._stage:
            norm = self.engine.get_global_grad_norm()
            self.figures["gradient_norm"] = torch.as_tensor(norm, device=self.world.device)
        self.scale.update()
        if self.engine.skipped_steps > skipped and not self.scale.enabled:
            self._diverge()
        return total

    def _diverge(self) -> None:
        """Set the weights to NaN, which is the effect of a step with non-finite gradients under
        the other strategies.

        DeepSpeed skips steps with non-finite gradients even in fp32: in stage 3, and in stages 1
        and 2 if it computes the norm of the gradients. Otherwise the run would continue without
        updates, and its throughput would be reported as if it had trained.
        """
        from deepspeed import utils

        parameters: list[Any] = [each for each in self.model.parameters() if each.requires_grad]
        sharded = self._stage == 3
        whole = _deepspeed().zero.GatheredParameters(parameters, modifier_rank=0, enabled=sharded)
        with torch.no_grad(), whole:
            for parameter in parameters:
                parameter.fill_(math.nan)
        for parameter in parameters:  # also the optimiser's copies, which are in checkpoints
            if sharded:
                lost = torch.full_like(parameter.ds_tensor, math.nan)
                utils.safe_set_local_fp32_param(parameter, lost)
            else:
                utils.safe_set_full_fp32_param(parameter, parameter)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.engine(images)
        return logits

    def weights(self) -> dict[str, Tensor]:
        parameters = list(self.model.parameters())
        with _deepspeed().zero.GatheredParameters(parameters, enabled=self._stage == 3):
            return {
                name: parameter.detach().cpu().clone()
                for name, parameter in zip(self._names, parameters, strict=True)
            }

    def save(self, folder: Path) -> None:
        self.engine.save_checkpoint(str(folder), tag="engine", client_state=self.scale.state())

    def load(self, folder: Path) -> None:
        settings = {
            name: getattr(self._optimizer, name)
            for name in ("clip_grad", "compute_grad_norm")
            if hasattr(self._optimizer, name)
        }
        if settings.get("compute_grad_norm") is False:
            # else DeepSpeed refuses a checkpoint of a run with clipping
            self._optimizer.compute_grad_norm = True
        with weights_only(_data_classes()), kept_settings(self._optimizer):
            try:
                _, state = self.engine.load_checkpoint(str(folder), tag="engine")
            except pickle.UnpicklingError as error:
                raise unreadable(folder / "engine", error) from None
        for name, value in settings.items():
            setattr(self._optimizer, name, value)
        self.scale.load_state(state)

    def close(self) -> None:
        super().close()
        self.engine.destroy()
        if "deepspeed.runtime.zero.parameter_offload" in sys.modules:
            _forget(self.engine.module)


def _forget(model: nn.Module) -> None:
    """Release two references to the model that ZeRO-3 never releases (DeepSpeed 0.19): in its stack
    of modules, and in the keys of a cached method."""
    from deepspeed.runtime.zero import parameter_offload
    from deepspeed.runtime.zero.partitioned_param_coordinator import (
        PartitionedParameterCoordinator as Coordinator,
    )

    stack = parameter_offload.FWD_MODULE_STACK
    stack[:] = [each for each in stack if each is not model]
    released = Coordinator._PartitionedParameterCoordinator__params_to_release
    for cell in getattr(released, "__closure__", None) or ():
        if hasattr(cell.cell_contents, "cache_clear"):
            cell.cell_contents.cache_clear()


class DeepSpeed(TorchGroupStrategy):
    """ZeRO's stage decides whether optimiser state, gradients and weights are sharded."""

    engine = DeepSpeedEngine

    def start(self, world: World) -> None:
        """Join torch's group, on which DeepSpeed communicates.

        Raises MissingPartError if DeepSpeed is absent.
        """
        deepspeed = _deepspeed()
        super().start(world)
        _choose_accelerator(world.device)
        backend = "nccl" if world.device.type == "cuda" else "gloo"
        # DeepSpeed reads this variable, which a process without torchrun or Ray lacks
        os.environ.setdefault("LOCAL_RANK", str(world.local_rank))
        deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)

    def stop(self) -> None:
        joined = self._joined
        super().stop()
        if joined:
            _forget_groups()
