"""Count the steps of an unchanged training script, in each of its ranks.

- A step ends with the `step` of a torch optimiser (`register_optimizer_step_post_hook`). Only the
  optimiser that steps first counts, so that a GAN's second optimiser adds no steps. If another
  optimiser steps twice in a row, it counts in place of the first. With gradient accumulation,
  `step` is called once for several batches.
- Samples are counted in the batches that the script takes from its DataLoader. torch has no hook
  for this, so `DataLoader.__iter__` is replaced in this process.
- `torch.distributed.init_process_group` is replaced too, to time the forming of the process group,
  and `os._exit`, to record the end of the script.

A rank appends its measurements to its own file, about once a second, as lines of JSON. All times
are seconds of the monotonic clock, which all processes of a host share. On request, a thread
samples the energy of host and device once a second from the first step on.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from raysuite import mark
from raysuite.nested import leaves

_FLUSH_S = 1.0
_FLUSH_EACH = 10
"""The number of first steps that are written one by one, so that the file shows the step after
which a rank hangs."""
_MOST_DEPTH = 4
"""Depth to which nested batches are searched for a tensor."""


def rank_file(folder: Path, rank: int) -> Path:
    """The file of a rank's measurements."""
    return folder / f"rank-{rank}.jsonl"


class Row(NamedTuple):
    """One step of one rank. All figures cover the time since the end of the previous step."""

    end: float
    device_s: float | None
    """Seconds by the device's clock; None on a CPU."""
    wait_s: float
    """Seconds of waiting for the training loader."""
    samples: int | None
    tokens: int | None
    evaluates: bool
    """Whether the script evaluated: it read a batch while gradients were disabled, or more than one
    batch of a loader other than the training loader."""
    idle_s: float
    """Seconds from the end of the previous step to the first request to the training loader,
    without the time in which the loader ended its previous pass (such as its processes)."""


Own = tuple[int | None, int | None, float, bool, float]
"""The fields samples, tokens, wait_s, evaluates and idle_s of a Row."""


@dataclass
class _Read:
    """The data read from one loader since the last step."""

    began: float
    length: int | None = None
    """Number of batches in a pass over the loader; None if unknown."""
    batches: int = 0
    samples: int | None = 0
    tokens: int | None = 0
    wait_s: float = 0.0
    without_gradients: bool = False


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


class Recorder:
    """Records the steps of this process."""

    def __init__(self, file: Path, check: int, power: bool) -> None:
        self._file, self._pid, self._check, self._power = file, os.getpid(), check, power
        self._meter: Any = None
        self._rows: list[Row] = []
        self._flushed = time.perf_counter()
        self._optimizer: Any = None
        self._other: Any = None
        """An optimiser that has stepped since the last step of `_optimizer`."""
        self._depth = 0
        self._marked = False
        self._train: int | None = None
        self._batches: dict[int, _Read] = {}
        """Id of a loader -> the data read from it since the last step."""
        self._ended = time.perf_counter()
        self._ending_s = 0.0
        """Seconds since the last step in which the training loader ended a pass."""
        self._events: list[Any] = []
        self._steps = 0
        self._hash: int | None = 0
        """Hash of the samples read since the last step; None if samples have no tensors."""
        self._pass_samples: int | None = None
        self._sharded = False
        self._loss: float | None = None
        self.on_step: Callable[[int], None] | None = None
        """Called at the end of each step with the step's number, counted from 1."""
        self.on_read: Callable[[], AbstractContextManager[object]] = nullcontext
        """The context in which a batch is requested."""
        self.marks: dict[str, float] = {}
        """Name of a moment -> its time, in seconds of the monotonic clock."""

    @property
    def on_device(self) -> bool:
        """Whether steps are timed by CUDA events."""
        return bool(self._events)

    @property
    def checks(self) -> bool:
        """Whether parameters are compared after the first steps."""
        return self._check > 0

    @property
    def _is_forked(self) -> bool:
        """Whether the script forked this process, which is not measured: its steps would be added
        to the file of its parent."""
        return os.getpid() != self._pid

    # Methods that the hooks call.

    def before_step(self, optimizer: Any, *_: Any) -> None:
        self._depth += 1

    def after_step(self, optimizer: Any, *_: Any) -> None:
        """Handle a step. Steps of a wrapper and of the optimiser that it wraps count once."""
        self._depth -= 1
        if self._depth > 0 or self._marked or self._is_forked:
            return
        if self._optimizer is None:
            self._optimizer = optimizer
        elif optimizer is not self._optimizer:
            if optimizer is not self._other:
                self._other = optimizer
                return
            # the first optimiser no longer steps: Horovod uses one step to broadcast its state
            self._optimizer = optimizer
            if self._steps == 1:
                self.marks["first_step"] = time.perf_counter()
        elif self._is_same_step():
            return
        self._other = None
        self._end_step(self._own_samples())

    def marked(self, samples: int | None, tokens: int | None, loss: float | None) -> None:
        """Handle the end of a step that the script itself has marked."""
        if self._is_forked:
            return
        if not self._marked:
            self._marked = True
            self._rows.clear()
            self._events.clear()
            self._steps = 0
            self.add("marked", {})
        self._loss = self._loss if loss is None else loss
        given = self._own_samples()
        if samples is not None or tokens is not None:
            given = (samples, tokens, *given[2:])
        self._end_step(given)

    def began_epoch(self, loader: int, began: float, length: int | None) -> None:
        """Handle the beginning of a pass over a loader, with `length` batches (None: unknown)."""
        self._read(loader, began)[0].length = length

    def _read(self, loader: int, began: float) -> tuple[_Read, float]:
        """Add the wait since `began` to a loader's _Read; return the _Read and the current time."""
        now = time.perf_counter()
        read = self._batches.setdefault(loader, _Read(began))
        read.wait_s += now - began
        return read, now

    def fetched(self, loader: int, began: float, batch: Any, known: bool) -> None:
        """Count a batch that the loader has returned to the script. `known`: whether the loader
        forms batches; if not, samples cannot be counted."""
        import torch

        read, now = self._read(loader, began)
        self.marks.setdefault("first_batch", now)
        read.batches += 1
        samples, tokens = counted(batch) if known else (None, None)
        read.samples, read.tokens = _sum(read.samples, samples), _sum(read.tokens, tokens)
        if not torch.is_grad_enabled():
            read.without_gradients = True
        elif self._steps < self._check:
            self._hash = _sum(self._hash, samples_hash(batch))

    def ended_pass(self, loader: int, began: float) -> None:
        """Handle a request since `began` to which a loader had no further batch."""
        if loader == self._train:
            self._ending_s += time.perf_counter() - began

    def backward(self, loss: Any) -> None:
        """Add the loss of a backward pass to the step's loss; called only if steps are checked."""
        if self._steps < self._check and loss.numel() == 1:
            self._loss = (self._loss or 0.0) + float(loss.detach())

    # The end of a step.

    def _is_same_step(self) -> bool:
        """Whether this call of `step` belongs to a step that has been counted: DeepSpeed calls
        `step` once per group of parameters."""
        return _has_loaded("deepspeed") and bool(self._train) and not self._batches

    def _own_samples(self) -> Own:
        """The data read from the training loader since the last step."""
        read, self._batches = self._batches, {}
        ending_s, self._ending_s = self._ending_s, 0.0
        if self._train not in read:
            found = [k for k, each in read.items() if each.batches and not each.without_gradients]
            if found:
                self._train = found[-1]
            elif self._train is None:
                return None, None, 0.0, False, 0.0
            else:  # a loader that reads ahead has delivered this step's batch earlier
                wait_s = ending_s + sum(each.wait_s for each in read.values())
                return 0, 0, wait_s, bool(read), 0.0
        evaluates = any(
            each.without_gradients or (key != self._train and each.batches > 1)
            for key, each in read.items()
        )
        own = read[self._train]
        if self._pass_samples is None and own.length and own.batches and own.samples:
            self._pass_samples = own.length * own.samples // own.batches
        idle = own.began - self._ended - ending_s
        return own.samples, own.tokens or None, own.wait_s + ending_s, evaluates, idle

    def _end_step(self, own: Own) -> None:
        now = time.perf_counter()
        if self._steps == 0:
            self.marks["first_step"] = now
            self._sharded = _are_shards(self._tensors())
            self._describe()
        self._steps += 1
        if self._events:
            self._events.append(_event())
        self._ended = now
        self._rows.append(Row(now, None, own[2], own[0], own[1], *own[3:]))
        if self._steps <= self._check:
            self.add("check", self._checked())
        if now - self._flushed > _FLUSH_S or self._steps <= _FLUSH_EACH:
            self.flush()
        if self.on_step is not None:
            self.on_step(self._steps)

    def _describe(self) -> None:
        """At the first step, write a description of the trained network."""
        import torch

        tensors = self._tensors()
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        if device is not None:
            self._events.append(_event())
        self.add(
            "model",
            {
                "rates": self._rates(),
                "pass_samples": self._pass_samples,
                "parameters": _count(tensors, self._sharded),
                "optimizer": "" if self._optimizer is None else type(self._optimizer).__name__,
                "device": "gpu" if self._events else "cpu",
                "threads": torch.get_num_threads(),
                "counters": self._counters(device or torch.device("cpu")) if self._power else {},
                "layers": _layers_that_differ() if self._check else [],
                "names": _names(tensors) if self._check else [],
            },
        )

    def _counters(self, device: Any) -> dict[str, Any]:
        """Begin to measure energy. Return the device and host whose energy this rank reads, and
        messages on missing counters."""
        from raysuite.measure.power_meter import PowerMeter

        meter = self._meter = PowerMeter(device)
        meter.begin()
        return {"device": meter.device, "host": meter.host, "missing": meter.missing}

    def _tensors(self) -> list[Any]:
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        return [tensor for group in groups for tensor in group["params"]]

    def _rates(self) -> list[float]:
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        return [float(group["lr"]) for group in groups if "lr" in group]

    def _checked(self) -> dict[str, Any]:
        """The values to compare after a step: digests of the parameters and of the state of torch's
        random generator, the hash of the samples, and the loss."""
        import torch

        loss, self._loss = self._loss, None
        samples, self._hash = self._hash, 0
        return {
            "step": self._steps,
            "parameters": [digest(tensor) for tensor in self._tensors()],
            "sharded": self._sharded,
            "random": digest(torch.get_rng_state()),
            "samples": samples,
            "loss": loss,
        }

    # The file.

    def flush(self) -> None:
        """Append the steps that are not in the file yet; on a GPU, only completed steps."""
        self._flushed = time.perf_counter()
        rows, self._rows = self._rows, []
        if self._events:
            seconds = self._on_device(len(rows))
            self._rows = rows[len(seconds) :]
            rows = [row._replace(device_s=s) for row, s in zip(rows, seconds, strict=False)]
        if rows:
            self.add("steps", {"rows": rows})
        if rows and self._meter is not None and self._meter.last is not None:
            at, reading = self._meter.last
            self.add("power", {"at": at, **asdict(reading)})

    def _on_device(self, most: int) -> list[float]:
        """Seconds of up to `most` steps that the device has completed; remove their events."""
        seconds: list[float] = []
        while len(self._events) > 1 and len(seconds) < most and self._events[1].query():
            seconds.append(self._events[0].elapsed_time(self._events[1]) / 1e3)
            del self._events[0]
        return seconds

    def end(self, error: BaseException | None, peer_lost: bool = False) -> None:
        """Record the end of the script: its exception, and whether another rank was lost."""
        if self._is_forked:
            return
        described = _described(error)
        if len(self._events) > 1 and not described:
            self._events[-1].synchronize()
        self.flush()
        if self._meter is not None:
            self._meter.close()
        self.marks["ended"] = time.perf_counter()
        self.add(
            "end",
            {
                "marks": self.marks,
                "error": described,
                "peer_lost": peer_lost,
                "memory": status_bytes("VmHWM"),
                "device_memory": _peak_device_bytes() if self._events else 0,
            },
        )

    def add(self, kind: str, content: Mapping[str, Any]) -> None:
        """Append a line of the kind `kind`, such as the file's head or a profile."""
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"kind": kind, **content}) + "\n")


def _event() -> Any:
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def counted(batch: Any, depth: int = 0) -> tuple[int | None, int | None]:
    """Number of samples of a batch (length of the first axis of its first tensor) and number of
    tokens (elements of `input_ids`); each is None if its tensor is missing."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return (int(shape[0]), None) if len(shape) else (None, None)
    if depth >= _MOST_DEPTH:
        return None, None
    if isinstance(batch, Mapping):
        ids: Any = batch.get("input_ids")
        inside: Sequence[Any] = list(batch.values())
        tokens = int(ids.numel()) if hasattr(ids, "numel") else None
    elif isinstance(batch, list | tuple):
        inside, tokens = batch, None
    else:
        inside, tokens = list(getattr(batch, "__dict__", {}).values()), None
    for each in inside:
        samples, _ = counted(each, depth + 1)
        if samples is not None:
            return samples, tokens
    return None, tokens


def digest(value: Any) -> str:
    """Hexadecimal SHA-256 of all tensors in a value; for sharded tensors, of this rank's part."""
    import torch

    found = hashlib.sha256()
    for tensor in leaves(value):
        if not isinstance(tensor, torch.Tensor):
            continue
        own: Any = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        own = own.detach().cpu().contiguous()
        if hasattr(own, "__tensor_flatten__"):  # made of several tensors, as quantised tensors are
            names, _ = own.__tensor_flatten__()
            found.update(digest([getattr(own, name) for name in names]).encode())
            continue
        found.update(f"{own.dtype}{tuple(own.shape)}".encode())
        # without NumPy, which torch does not require
        if own.numel():
            found.update((ctypes.c_char * own.nbytes).from_address(own.data_ptr()))
    return found.hexdigest()


_HASH_DIGITS = 8
"""Hexadecimal digits of a sample's hash: 32 bits, so that sums are exact in any JSON reader."""


def samples_hash(batch: Any) -> int | None:
    """The sum of the hashes of a batch's samples, independent of their order and of their division
    into batches. None if no tensor of the batch has one entry per sample."""
    import torch

    number = counted(batch)[0]
    tensors = [each for each in leaves(batch) if isinstance(each, torch.Tensor) and each.dim()]
    own = [each.detach().cpu() for each in tensors if len(each) == number]
    if not own:
        return None
    return sum(int(digest(sample)[:_HASH_DIGITS], 16) for sample in zip(*own, strict=True))


def _has_loaded(module: str) -> bool:
    return module in sys.modules


def _are_shards(tensors: Sequence[Any]) -> bool:
    """Whether `tensors` are only this rank's shards of the parameters, as with FSDP and ZeRO."""
    if any(each.is_shard() for t in tensors for each in getattr(t, "placements", ())):
        return True
    if _has_loaded("deepspeed"):
        return True
    # FSDP1's optimiser has flat views of shards, which look like any other flat tensor
    if any(tensor.dim() != 1 for tensor in tensors):
        return False
    return any(type(each).__name__ == "FullyShardedDataParallel" for each in _modules())


def _count(tensors: Sequence[Any], shards: bool) -> int | None:
    """Number of trainable parameters; None without an optimiser, or if only shards are known."""
    if not tensors or (shards and not all(hasattr(t, "placements") for t in tensors)):
        return None
    return sum(int(tensor.numel()) for tensor in tensors)


def _modules() -> list[Any]:
    import gc

    import torch

    return [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]


def _layers_that_differ() -> list[str]:
    """Classes of the layers, in training mode, whose outputs depend on how a batch is divided among
    ranks."""
    from torch import nn

    kinds = (
        *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
        *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout),
    )
    found = [each for each in _modules() if isinstance(each, kinds) and each.training]
    return sorted({type(each).__name__ for each in found})


def _names(tensors: Sequence[Any]) -> list[str]:
    """Names of parameters in the outermost modules; `parameter N` for the N-th of `tensors`,
    counted from 0, if it has no name there."""
    modules = _modules()
    inside = {id(child) for module in modules for child in module.children()}
    names = {
        id(tensor): name.removeprefix("module.")
        for module in modules
        if id(module) not in inside
        for name, tensor in module.named_parameters()
    }
    return [names.get(id(tensor), f"parameter {n}") for n, tensor in enumerate(tensors)]


def _described(error: BaseException | None) -> str:
    """The last line of Python's message for the exception; empty for None or an exit with 0."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return ""
    return traceback.format_exception_only(error)[-1].strip()


def status_bytes(name: str) -> int:
    """Bytes of VmRSS, the resident memory, or of VmHWM, its peak (proc(5)); 0 if not found."""
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _peak_device_bytes() -> int:
    import torch

    return int(torch.cuda.max_memory_allocated())


def _timed_iterator(recorder: Recorder, iterate: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap DataLoader.__iter__ to count its batches."""

    @functools.wraps(iterate)
    def begin(loader: Any) -> Any:
        began = time.perf_counter()
        iterator = iterate(loader)
        if isinstance(iterator, _Counted):  # a subclass that calls its parent's __iter__
            return iterator
        key = id(loader)
        recorder.began_epoch(key, began, _length(loader))
        batched = loader.batch_size is not None or loader.batch_sampler is not None
        return _Counted(iterator, recorder, key, batched)

    return begin


def _length(loader: Any) -> int | None:
    """The number of batches in a pass over the loader; None if unknown."""
    import torch

    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return None  # after a call of len(), torch warns if there are more samples
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


class _Counted:
    """An iterator whose items are counted; all else is passed to the wrapped iterator."""

    def __init__(self, iterator: Any, recorder: Recorder, key: int, known: bool) -> None:
        self._own, self._recorder, self._key, self._known = iterator, recorder, key, known

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> Any:
        began = time.perf_counter()
        try:
            with self._recorder.on_read():
                batch = next(self._own)
        except StopIteration:
            self._recorder.ended_pass(self._key, began)
            raise
        self._recorder.fetched(self._key, began, batch, self._known)
        return batch

    def __len__(self) -> int:
        return len(self._own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def _observed_backward(recorder: Recorder, backward: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap Tensor.backward to record the loss of the first steps."""

    @functools.wraps(backward)
    def observed(loss: Any, *words: Any, **options: Any) -> Any:
        recorder.backward(loss)
        return backward(loss, *words, **options)

    return observed


@contextmanager
def observe(recorder: Recorder) -> Iterator[None]:
    """Install the recorder's hooks in this process, within the context."""
    import torch
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    with ExitStack() as undo:
        for register, hook in (
            (register_optimizer_step_pre_hook, recorder.before_step),
            (register_optimizer_step_post_hook, recorder.after_step),
        ):
            undo.callback(register(hook).remove)
        mark.listen(recorder.marked)
        undo.callback(mark.listen, None)
        replaced: list[tuple[Any, str, Any]] = [
            (torch.utils.data.DataLoader, "__iter__", _timed_iterator),
            (os, "_exit", _recorded_exit),
        ]
        if torch.distributed.is_available():
            replaced.append((torch.distributed, "init_process_group", _timed_group))
        if recorder.checks:
            replaced.append((torch.Tensor, "backward", _observed_backward))
        for owner, name, wrapper in replaced:
            original = getattr(owner, name)
            setattr(owner, name, wrapper(recorder, original))
            undo.callback(setattr, owner, name, original)
        yield


def _recorded_exit(recorder: Recorder, leave: Callable[[int], Any]) -> Callable[[int], None]:
    """Wrap os._exit, which ends a script without Python's usual shutdown, to record this end."""

    @functools.wraps(leave)
    def recorded(status: int) -> None:
        try:
            recorder.end(SystemExit(status))
        finally:
            leave(status)

    return recorded


def _timed_group(recorder: Recorder, form: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap init_process_group to time the forming of the process group."""

    @functools.wraps(form)
    def timed(*words: Any, **options: Any) -> Any:
        recorder.marks.setdefault("group_begins", time.perf_counter())
        try:
            return form(*words, **options)
        finally:
            recorder.marks.setdefault("group_formed", time.perf_counter())

    return timed
