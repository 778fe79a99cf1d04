"""Time several subjects in one process, in turn, so that a drift of the machine affects all alike.
Images are loaded in shuffled order, with the data set's augmentation."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import psutil
import torch

from raysuite.data import Prepared, Slice, make_loader, permutation, rank_slices
from raysuite.orchestrate.loader_timings import turn
from raysuite.spec.loaders import LoaderOptions

_SEED = 0


@dataclass(frozen=True)
class Rate:
    """One timing of one subject."""

    images: int
    seconds: float
    """Wall-clock time from the request for the first image to the arrival of the last image."""
    cpu_s: float
    """Processor time of this process and its children; above `seconds` if several cores work."""

    @property
    def images_per_s(self) -> float:
        """Throughput."""
        return self.images / self.seconds

    @property
    def cpu_ms_per_image(self) -> float:
        """Processor time per image; other programs affect it less than the throughput."""
        return 1000 * self.cpu_s / self.images


class Subject(Protocol):
    """Something that delivers images."""

    def run(self, images: int, epoch: int) -> int:
        """Deliver about `images` images of `epoch`; return the number delivered."""

    def close(self) -> None:
        """Free the resources."""


class LoaderSubject:
    """A loader as in training: batches are put on the device, and each is discarded at once."""

    def __init__(
        self,
        prepared: Prepared,
        options: LoaderOptions,
        batch: int,
        device: torch.device,
        split: str = "train",
    ) -> None:
        self._samples, self._batch, self._device = prepared.samples(split), batch, device
        self._loader = make_loader(prepared, split, options, device)

    def run(self, images: int, epoch: int) -> int:
        """Load whole batches from the beginning of the epoch."""
        slices = itertools.islice(self._slices(epoch), -(-images // self._batch))
        done = sum(len(batch.labels) for batch in self._loader.batches(list(slices)))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return done

    def close(self) -> None:
        """End the loader."""
        self._loader.close()

    def _slices(self, epoch: int) -> Iterator[Slice]:
        order = permutation(self._samples, _SEED, epoch)
        return itertools.chain(*rank_slices(order, self._batch, 1, 0, draw=(_SEED, epoch)))


def rounds(
    subjects: Mapping[str, Subject],
    repeats: int,
    images: int,
    told: Callable[[str, int, Rate], None] = lambda name, repeat, rate: None,
) -> dict[str, list[Rate]]:
    """Time each subject `repeats` times, in turn, after a shorter run that is not counted.

    Every second round runs in reverse order, and every pair of rounds begins one subject further,
    so that no subject always follows the same one. `told(name, repeat, rate)` gets each timing.
    """
    names = list(subjects)
    rates: dict[str, list[Rate]] = {name: [] for name in names}
    for subject in subjects.values():
        subject.run(max(1, images // 4), 0)
    for repeat in range(repeats):
        for name in turn(names, repeat):
            rate = timed(subjects[name], images, 1 + repeat)
            rates[name].append(rate)
            told(name, repeat, rate)
    return rates


def timed(subject: Subject, images: int, epoch: int) -> Rate:
    """Time one run of a subject."""
    cpu, began = _cpu_s(), time.perf_counter()
    done = subject.run(images, epoch)
    return Rate(done, time.perf_counter() - began, _cpu_s() - cpu)


def _cpu_s() -> float:
    """Processor time of this process and of its children so far."""
    total = time.process_time()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # the child has just ended
            times = child.cpu_times()
            total += times.user + times.system
    return total
