"""Measure the throughput of loaders, of decoding alone, and of reading alone, each in a new
process."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from raysuite.data import (
    Batch,
    Loader,
    Prepared,
    Slice,
    Split,
    make_loader,
    permutation,
    prepare,
    rank_slices,
)
from raysuite.data.decoders import decode_whole
from raysuite.data.formats import open_source
from raysuite.data.pixels import header_of, size_of
from raysuite.errors import RaysuiteError
from raysuite.files import printable
from raysuite.measure.clock import now
from raysuite.measure.environment import environment
from raysuite.measure.processor import family_seconds, machine_seconds
from raysuite.orchestrate.ray_cluster import connect
from raysuite.plan.loading import LoadingPlan, loader_options
from raysuite.records.loader_rates import Candidate, Failure, LoadingBench, Material, Timing
from raysuite.units import GIB, human_bytes

# Two upper limits for loaders: only decoding JPEGs, and only reading the bytes.

_SEED = 0
_CHUNK = 16
"""Number of images that a thread processes at a time."""


class Limit:
    """Process samples in order with `threads` threads. After the last sample, the first sample
    follows again."""

    def __init__(
        self,
        work: Callable[[Any], object],
        samples: Iterable[Any],
        threads: int,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self._work, self._samples, self._end = work, itertools.cycle(samples), end
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="raysuite-limit")

    def run(self, images: int) -> None:
        """Process the next images."""
        chosen = list(itertools.islice(self._samples, images))

        def work(start: int) -> None:
            for sample in chosen[start : start + _CHUNK]:
                self._work(sample)

        list(self._pool.map(work, range(0, images, _CHUNK)))

    def close(self) -> None:
        """End the threads, and close the files."""
        self._pool.shutdown()
        self._end()


def decoding_limit(prepared: Prepared, threads: int, images: int, split: Split) -> Limit:
    """An upper limit of the throughput of loaders that decode: libjpeg-turbo decodes `images`
    images, and nothing else is done.

    Files are read in advance. Pixels are not cropped, resized or kept. Pillow decodes formats other
    than JPEG.
    """
    ids = permutation(prepared.samples(split), _SEED, 0)[:images].tolist()
    with closing(open_source(prepared, split)) as source:
        samples = [source.read(sample)[0] for sample in ids]
    channels = prepared.facts.channels
    return Limit(lambda sample: decode_whole(sample, channels, "an image"), samples, threads)


def reading_limit(prepared: Prepared, threads: int, split: Split) -> Limit:
    """An upper limit of every loader's throughput: only the samples' bytes are read, and after the
    first pass they come from the page cache."""
    order = permutation(prepared.samples(split), _SEED, 0).tolist()
    source = open_source(prepared, split)
    return Limit(source.read, order, threads, source.close)


def turn(names: Sequence[str], repeat: int) -> list[str]:
    """The order of the candidates in round `repeat`."""
    first = repeat // 2 % max(1, len(names))
    order = [*names[first:], *names[:first]]
    return order[::-1] if repeat % 2 else order


_WARM_S = 0.5
"""Minimum seconds of the warm-up, which is not counted. The warm-up also lasts until the batches
that were prefetched at the start are used up."""
_HELD = 3
"""Decoding alone is timed on this number of batches per thread, which are decoded repeatedly."""
_PASS = 1024
"""Minimum number of batches in one call of a loader. For a small data set, a call therefore loads
several epochs."""


@dataclass(frozen=True)
class Trial:
    """One timing of one candidate, in a new process."""

    plan: LoadingPlan
    prepared: Prepared
    candidate: Candidate
    repeat: int
    seed: int
    """Seed of the order of the images. It differs between trials, so that a trial does not begin
    with the images of an earlier trial."""


def timed(trial: Trial) -> Timing:
    """Start the candidate, warm it up, time it, and close it. Raises the candidate's errors."""
    torch.set_num_threads(1)  # only the candidate's own threads are compared
    with ExitStack() as stack:
        if trial.candidate.kind == "loader":
            return _loader(trial, stack)
        return _limit(trial, stack)


def _loader(trial: Trial, stack: ExitStack) -> Timing:
    plan, began = trial.plan, time.perf_counter()
    options = loader_options(trial.candidate)
    if options.needs_ray:
        stack.enter_context(connect(None))
    device = torch.device("cuda" if plan.device == "gpu" else "cpu")
    loader = make_loader(trial.prepared, plan.split, options, device)
    stack.callback(loader.close)
    batches = _endless(loader, trial)
    stack.callback(batches.close)
    next(batches)
    first = now(device)
    piled = 2 * max(1, trial.candidate.width) * getattr(options, "prefetch", 1)
    for number, _ in enumerate(batches, 1):
        if number >= piled and time.perf_counter() - first >= _WARM_S:
            break
    images, watch = 0, _Watch(device)
    for batch in batches:
        images += batch.real
        # the host's clock: waiting for the device at each batch would prevent overlapping copies
        if _enough(plan, images, time.perf_counter() - watch.began):
            break
    return watch.timing(trial, images, first - began)


def _endless(loader: Loader, trial: Trial) -> Generator[Batch]:
    """Batches of consecutive epochs, each with its own order, as in training."""
    plan = trial.plan
    samples = trial.prepared.samples(plan.split)
    steps = -(-samples // plan.batch)
    joined = max(1, -(-_PASS // steps))

    def epoch(number: int) -> Iterator[Slice]:
        draw = (trial.seed, number) if plan.split == "train" else None
        order = permutation(samples, trial.seed, number)
        return itertools.chain(*rank_slices(order, plan.batch, 1, 0, draw=draw))

    for first in itertools.count(0, joined):
        together = [epoch(number) for number in range(first, first + joined)]
        yield from loader.batches(list(itertools.chain(*together)))


def _limit(trial: Trial, stack: ExitStack) -> Timing:
    plan, width, began = trial.plan, trial.candidate.width, time.perf_counter()
    if trial.candidate.kind == "decoding":
        held = _HELD * width * plan.batch
        subject = decoding_limit(trial.prepared, width, held, plan.split)
    else:
        subject = reading_limit(trial.prepared, width, plan.split)
    stack.enter_context(closing(subject))
    part = width * plan.batch
    subject.run(part)
    first = time.perf_counter()
    while time.perf_counter() - first < _WARM_S:
        subject.run(part)
    images, watch = 0, _Watch(torch.device("cpu"))
    while not _enough(plan, images, time.perf_counter() - watch.began):
        waits_since = time.perf_counter()
        subject.run(part)
        images += part
        # make short parts longer: threads wait for each other at the end of a part
        if time.perf_counter() - waits_since < plan.seconds / 10:
            part *= 2
    return watch.timing(trial, images, first - began)


def _enough(plan: LoadingPlan, images: int, seconds: float) -> bool:
    return seconds >= plan.seconds if plan.images is None else images >= plan.images


class _Watch:
    """Measures wall-clock time, and processor time of the candidate's processes and of the whole
    machine."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own, self._machine = _own_s(), machine_seconds()
        self.began = now(device)

    def timing(self, trial: Trial, images: int, start_seconds: float) -> Timing:
        seconds = now(self._device) - self.began
        return Timing(
            candidate=trial.candidate.name,
            repeat=trial.repeat,
            images=images,
            seconds=seconds,
            cpu_seconds=_own_s() - self._own,
            machine_seconds=machine_seconds() - self._machine,
            start_seconds=start_seconds,
        )


def _own_s() -> float:
    """CPU seconds of the fork server's descendants. These are only this process and its loading
    processes, because the fork server runs one candidate at a time."""
    return family_seconds(psutil.Process(os.getppid()), itself=False)


_ANSWER_S = 900.0
"""Seconds after which a timing counts as hanging; decoding a set into memory takes minutes."""
_FAREWELL_S = 20.0

Fact = Timing | Failure


def measure(
    plan: LoadingPlan, prepared: Prepared, messages: Path, begun: Callable[[str, int], None]
) -> Iterator[Fact]:
    """Time every candidate once per round.

    `begun(name, repeat)` is called before each timing. The processes' output is written to the file
    `messages`. A candidate that fails is left out of later rounds.
    """
    tried = {each.name: each for each in plan.candidates if not each.excuse}
    failed: set[str] = set()
    for repeat in range(plan.repeats):
        for place, name in enumerate(turn(list(tried), repeat)):
            if name in failed:
                continue
            begun(name, repeat)
            trial = Trial(plan, prepared, tried[name], repeat, repeat * len(tried) + place)
            got = _apart(trial, messages)
            if isinstance(got, str):
                failed.add(name)
                yield Failure(candidate=name, repeat=repeat, reason=printable(got))
            else:
                yield got


def _apart(trial: Trial, messages: Path) -> Timing | str:
    """The timing, measured in a new process, or the reason why there is no timing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # torch is imported only once
    ours, theirs = context.Pipe()
    # not a daemon: a daemon process could not start loading processes and Ray
    process = context.Process(target=_serve, args=(trial, theirs, messages))
    process.start()
    theirs.close()
    try:
        if not ours.poll(_ANSWER_S):
            return f"its timing did not end within {_ANSWER_S:.0f} s"
        got: Timing | str = ours.recv()
        return got
    except EOFError:
        process.join()
        return (
            f"its process was killed (exit code {process.exitcode}), possibly for lack of memory; "
            f"{messages} contains its output"
        )
    finally:
        if process.is_alive():
            process.join(_FAREWELL_S if ours.poll() else 0)
        if process.is_alive():
            process.terminate()  # the process then closes its loader
            process.join(_FAREWELL_S)
        if process.is_alive():
            process.kill()
        process.join()
        ours.close()


def _serve(trial: Trial, pipe: Connection, messages: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it and ends this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with messages.open("a") as file:  # for output of Ray and DALI: the terminal has a progress bar
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    answer: Any
    try:
        answer = timed(trial)
    except RaysuiteError as error:
        answer = str(error)
    except Exception as error:  # other timings continue after any error of a loader's library
        answer = f"{type(error).__name__}: {error}"
    pipe.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


# The sizes of the images, and one pass over their files, before the timings.

_INSPECTED = 128
LARGEST_SHARE = 0.5
"""A data set of at most this share of the free memory is expected to stay in the page cache."""
_PATIENCE_S = 60.0


def inspect_split(prepared: Prepared, split: Split, threads: int) -> Material:
    """Measure some images' sizes; then read the whole split once, if it fits in the page cache.

    Without this pass, the first timings would read from the disk, and later timings from memory.
    Raises DataError if an image cannot be read.
    """
    samples, channels = prepared.samples(split), prepared.facts.channels
    ids = permutation(samples, 0, 0)
    with closing(open_source(prepared, split)) as source:
        sizes, areas, jpegs = [], [], 0
        for number in ids[:_INSPECTED].tolist():
            sample, _ = source.read(number)
            place = source.place(number)
            width, height = size_of(sample, place)
            sizes.append(len(sample) if isinstance(sample, bytes) else sample.nbytes)
            areas.append(width * height * channels)
            jpegs += isinstance(sample, bytes) and header_of(sample, place).kind == "jpeg"
        mean = float(np.mean(sizes))
        fits = mean * samples <= LARGEST_SHARE * psutil.virtual_memory().available
        end = time.monotonic() + _PATIENCE_S

        def touch(part: NDArray[np.int64]) -> bool:
            for number in part.tolist():
                if time.monotonic() > end:
                    return False
                source.read(number)
            return True

        if fits:
            with ThreadPoolExecutor(threads, thread_name_prefix="raysuite-look") as pool:
                fits = all(pool.map(touch, np.array_split(np.sort(ids), 8 * threads)))
    return Material(
        samples=samples,
        image_bytes=mean,
        pixel_bytes=float(np.mean(areas)),
        jpeg_share=jpegs / len(sizes),
        encoded=prepared.encoded,
        augment=prepared.augment,
        read_before=fits,
    )


MOST_DECODED = 2 * GIB
"""Size in bytes of a decoded data set above which the loader `memory` is timed only on request,
because each timing of this loader decodes the whole data set."""


def compare(
    plan: LoadingPlan,
    folder: Path,
    threads: int,
    named: bool,
    begun: Callable[[str, int], None],
    on_fact: Callable[[Fact], None],
) -> LoadingBench:
    """Time the loaders, and write the results to `folder` after each timing.

    threads: number of threads that read the set before the first timing. named: whether the user
    named the loaders. Raises DataError if the data set cannot be read at all.
    """
    prepared = prepare(plan.data, plan.facts)
    material = inspect_split(prepared, plan.split, threads)
    plan = plan.model_copy(
        update={"candidates": tuple(_excused(each, material, named) for each in plan.candidates)}
    )
    bench = LoadingBench(
        name=plan.title,
        time=time.time(),
        plan=plan.model_dump(mode="json", exclude={"candidates"}),
        candidates=plan.candidates,
        environment=environment(),
        material=material,
    )
    bench.save(folder)
    for fact in measure(plan, prepared, folder / "messages.log", begun):
        bench = bench.grown(fact)
        bench.save(folder)
        on_fact(fact)
    bench = bench.model_copy(update={"complete": True})
    bench.save(folder)
    return bench


def _excused(candidate: Candidate, material: Material, named: bool) -> Candidate:
    """The candidate, with the reason in `excuse` if it cannot or should not be timed."""
    if candidate.kind == "decoding" and not material.encoded:
        return candidate.model_copy(update={"excuse": "the files hold bare pixels"})
    if named or candidate.kind != "loader" or not loader_options(candidate).holds_decoded:
        return candidate
    size = material.pixel_bytes * material.samples
    if size <= min(MOST_DECODED, 0.5 * psutil.virtual_memory().available):
        return candidate
    excuse = (
        f"left out: the decoded data set takes about {human_bytes(size)}; to time this loader, "
        "give --loader memory"
    )
    return candidate.model_copy(update={"excuse": excuse})
