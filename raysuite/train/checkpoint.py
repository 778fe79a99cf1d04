"""The parts of a checkpoint that do not come from the engine: the progress of training.

FOLDER/loop.json     epoch, step, times, and the finished part of an epoch in progress
FOLDER/rank-R.pt     only within an epoch: the rank's random state and its buffers
FOLDER/average.pt    the average of the weights, if there is one
FOLDER/files.json    the size of each file; written last

All ranks write into one folder, on a shared file system. A new checkpoint is written to
FOLDER.partial; while the new checkpoint is renamed to FOLDER, the previous checkpoint is
FOLDER.old.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from raysuite.files import flush_folder, flush_names, write_whole
from raysuite.parallel.base import World, draws, read_state
from raysuite.parallel.comm import Comm
from raysuite.records.base import checked_line, content_of
from raysuite.records.power import PowerUse
from raysuite.spec.datasets import match_classes

_STATE, _FILES = "loop.json", "files.json"


class SoFar(BaseModel):
    """The finished part of an epoch in progress, over all attempts; the same on all ranks."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    steps: int = 0
    attempts: int = 0
    """Number of attempts that took steps of this epoch."""
    loss_sums: list[float] = Field(default_factory=list)
    """Summed loss of each step's samples, over all ranks."""
    figures: dict[str, list[float]] = Field(default_factory=dict)
    """Name of a figure -> its value in each step, as in EpochFinished."""
    skipped_steps: int = 0
    """Number of finished steps whose gradients overflowed in fp16."""
    seconds: float = 0.0
    """Sum over attempts of the training time of the slowest worker."""
    steady_images: int = 0
    steady_seconds: float = 0.0
    step_seconds: list[float] = Field(default_factory=list)
    """Duration of each step after the warm-up, on the slowest worker."""
    data_wait_seconds: list[float] = Field(default_factory=list)
    """Total time that each worker waited for data."""
    power: PowerUse | None = None
    compile_seconds: float = 0.0
    weights: list[float] = Field(default_factory=list)
    """Divisor of each step's summed loss; empty unless it is computed from the step's targets."""
    other_cores: list[float] = Field(default_factory=list)
    """Per worker: mean number of cores of its machine that other programs used; if there were
    several attempts, in the last attempt."""


class LoopState(BaseModel):
    """The progress of training."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    run_id: str
    epoch: int
    step: int
    elapsed_seconds: float
    time_to_accuracy: float | None
    best: float | None = None
    best_epoch: int = 0
    so_far: SoFar = SoFar()
    classes: tuple[str, ...] = ()
    """Class name of each label; empty in checkpoints of earlier versions."""

    def check_classes(self, found: Sequence[str]) -> None:
        """Raise DataError if a label has a class name that differs from that in the checkpoint."""
        remedy = "restore the earlier class names, or begin a new run"
        match_classes(self.classes, "the checkpoint", found, "the data set", remedy)

    def write(self, folder: Path) -> None:
        """Write the progress to a checkpoint's folder."""
        (folder / _STATE).write_bytes(checked_line(self))

    @classmethod
    def read(cls, folder: Path) -> LoopState:
        """Read the progress that `write` stored in a checkpoint's folder."""
        return cls.model_validate_json(content_of((folder / _STATE).read_bytes()))


class _Files(BaseModel):
    sizes: dict[str, int]
    """Path of a file, relative to the checkpoint's folder -> its size in bytes."""


def latest_checkpoint(folder: Path, run_id: str, epochs: int) -> tuple[Path | None, str]:
    """The newest complete checkpoint of the run `run_id` that `keep_checkpoint` wrote to `folder`
    (None if there is none), and the reasons why newer checkpoints are not used.

    `epochs`: number of epochs in the run's journal. A checkpoint after more epochs is not used,
    because the journal lacks the records of some of these epochs.
    """
    wrong = []
    for place in filter(Path.is_dir, places(folder)):
        try:
            state = LoopState.read(place)
        except (OSError, ValueError):
            wrong.append(f"{place / _STATE} is damaged")
            continue
        if state.run_id != run_id:
            continue
        if state.epoch > epochs:
            wrong.append(
                f"{place} was written after epoch {state.epoch}, but the journal has only {epochs} "
                "epochs"
            )
        elif damage := _damage(place):
            wrong.append(damage)
        else:
            return place, "; ".join(wrong)
    return None, "; ".join(wrong)


def _damage(folder: Path) -> str:
    """A message about the first missing or damaged file of a checkpoint; empty if there is none.

    torch.save's files are archives with a checksum for each tensor.
    """
    try:
        sizes = _Files.model_validate_json(content_of((folder / _FILES).read_bytes())).sizes
    except (OSError, ValueError):
        return f"{folder / _FILES} is missing or damaged"
    for name, size in sizes.items():
        file = folder / name
        try:
            if file.stat().st_size != size:
                return f"{file} has {file.stat().st_size} bytes instead of {size}"
            if file.suffix == ".pt":
                with zipfile.ZipFile(file) as archive:
                    if archive.testzip() is not None:
                        return f"{file} is damaged"
        except Exception as error:  # reading a damaged archive can raise any exception
            return f"{file} is damaged ({type(error).__name__})"
    return ""


def places(folder: Path) -> tuple[Path, Path]:
    """The folders that may hold the checkpoint of `folder`: the new one and the previous one."""
    return folder, _older(folder)


def keep_checkpoint(folder: Path, save: Callable[[Path], None], world: World, comm: Comm) -> None:
    """Let `save` write a checkpoint, which replaces the older one in `folder`. All ranks must call
    it.

    If a rank dies before the new checkpoint is complete, the older one is unchanged.
    """
    partial = _partial(folder)
    partial.mkdir(parents=True, exist_ok=True)
    save(partial)
    comm.all_reduce(torch.zeros(1), "max")  # all ranks have written
    if world.local_rank == 0:
        flush_folder(partial)  # once per node: a node caches its own ranks' files
    comm.all_reduce(torch.zeros(1), "max")  # no rank opens its files any more
    if world.rank == 0:  # rank 0 has opened every file: NFS then reports current sizes
        write_sizes(partial)
        old = _older(folder)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        partial.rename(folder)
        flush_names(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    comm.all_reduce(torch.zeros(1), "max")  # no rank may write the next checkpoint earlier


def write_sizes(folder: Path) -> None:
    """Record the sizes of all files of a checkpoint; call it after the last file is written."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != _FILES]
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
    write_whole(folder / _FILES, checked_line(_Files(sizes=sizes)))


def remove_checkpoint(folder: Path) -> None:
    """Remove the checkpoint in `folder`, the previous checkpoint and a partial one."""
    for place in (folder, _older(folder), _partial(folder)):
        shutil.rmtree(place, ignore_errors=True)


def remove_partial(folder: Path) -> None:
    """Remove a partial checkpoint whose ranks died while they wrote it."""
    shutil.rmtree(_partial(folder), ignore_errors=True)


def _older(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.old")


def _partial(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.partial")


def save_rank(folder: Path, world: World, models: Sequence[nn.Module]) -> None:
    """Write this rank's random state and buffers for a checkpoint within an epoch. All ranks must
    call it."""
    buffers = {name: value.cpu() for name, value in _buffers(models)}
    state = {"draws": draws(world.device), "buffers": buffers}
    torch.save(state, _rank_file(folder, world.rank))


def load_rank(folder: Path, world: World, models: Sequence[nn.Module]) -> dict[str, Any] | None:
    """Restore the buffers that `save_rank` wrote, and return the rank's random state.

    A rank without a file (the checkpoint is from fewer ranks) loads rank 0's buffers, and returns
    None.
    """
    own = _rank_file(folder, world.rank)
    state = read_state(own if own.exists() else _rank_file(folder, 0))
    with torch.no_grad():
        for name, buffer in _buffers(models):
            if name in state["buffers"]:  # a pipeline stage may have different buffers than before
                buffer.copy_(state["buffers"][name])
    found: dict[str, Any] = state["draws"]
    return found if own.exists() else None


def _rank_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.pt"


def _buffers(models: Sequence[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    for place, model in enumerate(models):
        yield from ((f"{place}.{name}", buffer) for name, buffer in model.named_buffers())
