"""What a checkpoint holds beside the engine's own files: the progress of training.

FOLDER/loop.json     epoch, step, times, and the finished part of an epoch in progress
FOLDER/rank-R.pt     in mid-epoch alone: the rank's random state and its running statistics
FOLDER/average.pt    the average of the weights, where there is one
FOLDER/files.json    the size of each file; written last

All ranks write into one folder, on a file system that they share. FOLDER.partial is being written,
FOLDER.old is the one before while the new one takes its place.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

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
    """In how many attempts those steps were taken."""
    loss_sums: list[float] = Field(default_factory=list)
    """Summed loss of each step's samples, over all ranks."""
    skipped_steps: int = 0
    """Those among them whose gradients overflowed in fp16."""
    seconds: float = 0.0
    """Training time of the slowest worker of each attempt."""
    steady_images: int = 0
    steady_seconds: float = 0.0
    step_seconds: list[float] = Field(default_factory=list)
    """Of each step after the warm-up, on the slowest worker."""
    data_wait_seconds: list[float] = Field(default_factory=list)
    """Per worker."""
    power: PowerUse | None = None
    compile_seconds: float = 0.0
    weights: list[float] = Field(default_factory=list)
    """Of each step, where they are known from its targets alone."""
    other_cores: list[float] = Field(default_factory=list)
    """Per worker; of an epoch in several attempts, of the last."""


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
    """By label; empty in checkpoints of earlier versions."""

    def check_classes(self, found: Sequence[str]) -> None:
        """Raise DataError where labels mean other classes now."""
        remedy = "restore the names that they had, or begin a new run"
        match_classes(self.classes, "the checkpoint", found, "the data set", remedy)

    def write(self, folder: Path) -> None:
        """Keep it in a checkpoint."""
        (folder / _STATE).write_bytes(checked_line(self))

    @classmethod
    def read(cls, folder: Path) -> LoopState:
        """What `write` kept."""
        return cls.model_validate_json(content_of((folder / _STATE).read_bytes()))


class _Files(BaseModel):
    """The files of a checkpoint."""

    sizes: dict[str, int]
    """Path in its folder -> bytes."""


def latest_checkpoint(folder: Path, run_id: str, epochs: int) -> tuple[Path | None, str]:
    """The newest whole checkpoint of a run that `keep_checkpoint` wrote to `folder`, None without
    any, and why newer ones are not taken.

    `epochs`: how many the run's journal has. A checkpoint that is further on is of epochs whose
    records are lost.
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
            wrong.append(f"{place} is after epoch {state.epoch}, and the journal has {epochs}")
        elif damage := _damage(place):
            wrong.append(damage)
        else:
            return place, "; ".join(wrong)
    return None, "; ".join(wrong)


def _damage(folder: Path) -> str:
    """The first file of a checkpoint that is not as it was written; empty where all are.

    torch.save's files are archives with a checksum of each tensor.
    """
    try:
        sizes = _Files.model_validate_json(content_of((folder / _FILES).read_bytes())).sizes
    except (OSError, ValueError):
        return f"{folder / _FILES} is missing or damaged"
    for name, size in sizes.items():
        file = folder / name
        try:
            if file.stat().st_size != size:
                return f"{file} has {file.stat().st_size} bytes, and had {size}"
            if file.suffix == ".pt":
                with zipfile.ZipFile(file) as archive:
                    if archive.testzip() is not None:
                        return f"{file} is damaged"
        except Exception as error:  # a damaged archive raises whatever its fields lead to
            return f"{file} is damaged ({type(error).__name__})"
    return ""


def places(folder: Path) -> tuple[Path, Path]:
    """The folders that may contain a checkpoint of `folder`."""
    return folder, _older(folder)


def keep_checkpoint(folder: Path, save: Callable[[Path], None], world: World, comm: Comm) -> None:
    """Have `save` write a checkpoint, and put it at `folder` instead of an older one; every rank
    calls it.

    A rank that dies meanwhile leaves the older one as it is.
    """
    partial = _partial(folder)
    partial.mkdir(parents=True, exist_ok=True)
    save(partial)
    comm.all_reduce(torch.zeros(1), "max")  # all ranks have written
    if world.local_rank == 0:
        flush_folder(partial)  # a node has what its ranks wrote
    comm.all_reduce(torch.zeros(1), "max")  # no rank looks at its files any more
    if world.rank == 0:  # which has opened them all: NFS gives no older sizes then
        write_sizes(partial)
        old = _older(folder)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        partial.rename(folder)
        flush_names(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    comm.all_reduce(torch.zeros(1), "max")  # before anybody writes the next one


def write_sizes(folder: Path) -> None:
    """Note the sizes of all files of a checkpoint, after the last of them."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != _FILES]
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
    write_whole(folder / _FILES, checked_line(_Files(sizes=sizes)))


def remove_checkpoint(folder: Path) -> None:
    """Remove what `keep_checkpoint` wrote to `folder`."""
    for place in (folder, _older(folder), _partial(folder)):
        shutil.rmtree(place, ignore_errors=True)


def remove_partial(folder: Path) -> None:
    """Remove a checkpoint that was being written when its ranks died."""
    shutil.rmtree(_partial(folder), ignore_errors=True)


def _older(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.old")


def _partial(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.partial")


def save_rank(folder: Path, world: World, models: Sequence[nn.Module]) -> None:
    """Write what each rank has of its own in mid-epoch: every rank calls it."""
    buffers = {name: value.cpu() for name, value in _buffers(models)}
    state = {"draws": draws(world.device), "buffers": buffers}
    torch.save(state, _rank_file(folder, world.rank))


def load_rank(folder: Path, world: World, models: Sequence[nn.Module]) -> dict[str, Tensor] | None:
    """Restore the buffers that `save_rank` wrote, and return the random state.

    A rank that there was not when they were written takes the buffers of rank 0, and has no random
    state: None.
    """
    own = _rank_file(folder, world.rank)
    state = read_state(own if own.exists() else _rank_file(folder, 0))
    with torch.no_grad():
        for name, buffer in _buffers(models):
            if name in state["buffers"]:  # a stage of a pipeline may hold others than before
                buffer.copy_(state["buffers"][name])
    found: dict[str, Tensor] = state["draws"]
    return found if own.exists() else None


def _rank_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.pt"


def _buffers(models: Sequence[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    for place, model in enumerate(models):
        yield from ((f"{place}.{name}", buffer) for name, buffer in model.named_buffers())
