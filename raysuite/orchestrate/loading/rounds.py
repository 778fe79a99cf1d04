"""Rounds over all candidates, each timing in a process of its own."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysuite.data import Prepared, Slice, permutation
from raysuite.data.bench import turn
from raysuite.data.decoders import cut_from
from raysuite.data.formats import open_source
from raysuite.data.reading import read
from raysuite.data.rendering import Rendering, fit_into
from raysuite.errors import RaysuiteError
from raysuite.orchestrate.loading.timing import Trial, timed
from raysuite.plan.loading import LoadingPlan, loader_options
from raysuite.records.loading import Failure, Stages, Timing

# What an image costs one thread of `native`, stage by stage.

_PART = 16
"""Images of a stage at a time, as a thread of `native` takes them."""


def staged(trial: Trial) -> Stages:
    """Walk through `native`'s stages, one after the other, for a third of a timing's length."""
    torch.set_num_threads(1)
    plan, prepared = trial.plan, trial.prepared
    facts = prepared.facts
    size, channels = facts.image_size, facts.channels
    rendering = Rendering(prepared, "exact")
    order = permutation(prepared.samples(plan.split), trial.seed, 0)
    draw = (trial.seed, 0) if plan.split == "train" else None
    spent = dict.fromkeys(("reading", "decoding", "resizing", "normalising"), 0.0)
    fitted = np.empty((_PART, size, size, channels), np.uint8)
    values = np.empty((_PART, channels, size, size), np.float32)
    mirrored = np.empty((size, size, channels), np.uint8)
    images = 0
    with closing(open_source(prepared, plan.split)) as source:
        for part in itertools.count(-1):  # the first one warms up
            ids = np.take(order, range((part + 1) * _PART, (part + 2) * _PART), mode="wrap")
            began = time.perf_counter()
            got = read(source, prepared, Slice(ids, _PART, _PART, draw))
            marks = {"reading": time.perf_counter() - began, "decoding": 0.0, "resizing": 0.0}
            for row, (sample, box) in enumerate(zip(got.samples, got.views.boxes, strict=True)):
                began = time.perf_counter()
                cut, shown = cut_from(sample, channels, box, source.place(int(ids[row])))
                between = time.perf_counter()
                fit_into(cut, shown, fitted[row])
                if got.views.flips[row]:
                    mirrored[...] = fitted[row, :, ::-1]
                    fitted[row] = mirrored
                marks["decoding"] += between - began
                marks["resizing"] += time.perf_counter() - between
            began = time.perf_counter()
            rendering.normalise(fitted, values)
            marks["normalising"] = time.perf_counter() - began
            if part < 0:
                continue
            images += _PART
            for name, seconds in marks.items():
                spent[name] += seconds
            if sum(spent.values()) >= plan.seconds / 3:
                return Stages(repeat=trial.repeat, images=images, seconds=spent)
    raise AssertionError("unreachable: the count of parts has no end")


STAGES = "stages of native"
_PATIENCE_S = 900.0
"""A set decoded into memory takes minutes; what takes longer than this hangs."""
_FAREWELL_S = 20.0

Fact = Timing | Stages | Failure
Work = Callable[[Trial], Timing | Stages]


def measure(
    plan: LoadingPlan, prepared: Prepared, messages: Path, begun: Callable[[str, int], None]
) -> Iterator[Fact]:
    """Every candidate once a round, and the stages of `native` at each round's end.

    `begun(name, repeat)` is told before each. What processes print goes to the file `messages`.
    A candidate that fails is left out of the rounds that follow.
    """
    tried = {each.name: each for each in plan.candidates if not each.excuse}
    loaders = (each for each in tried.values() if each.kind == "loader")
    native = next((each for each in loaders if loader_options(each).has_stages), None)
    failed: set[str] = set()
    for repeat in range(plan.repeats):
        names = [*turn(list(tried), repeat), *([STAGES] if native else [])]
        for place, name in enumerate(names):
            if name in failed:
                continue
            begun(name, repeat)
            candidate = native if name == STAGES else tried[name]
            assert candidate is not None
            seed = repeat * len(names) + place
            trial = Trial(plan, prepared, candidate, repeat, seed)
            got = _apart(staged if name == STAGES else timed, trial, messages)
            if isinstance(got, str):
                failed.add(name)
                yield Failure(candidate=name, repeat=repeat, reason=got)
            else:
                yield got


def _apart(work: Work, trial: Trial, messages: Path) -> Timing | Stages | str:
    """`work(trial)` in a fresh process, or why there is nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # torch is imported once, not for each timing
    ours, theirs = context.Pipe()
    # no daemon: loading processes and Ray are started from it
    process = context.Process(target=_serve, args=(work, trial, theirs, messages))
    process.start()
    theirs.close()
    try:
        if not ours.poll(_PATIENCE_S):
            return f"gave no answer in {_PATIENCE_S:.0f} s"
        got: Timing | Stages | str = ours.recv()
        return got
    except EOFError:
        process.join()
        return (
            f"its process was killed (exit code {process.exitcode}), often for want of memory; "
            f"{messages} has what it printed"
        )
    finally:
        if process.is_alive():
            process.join(_FAREWELL_S if ours.poll() else 0)
        if process.is_alive():
            process.terminate()  # it closes its loader then
            process.join(_FAREWELL_S)
        if process.is_alive():
            process.kill()
        process.join()
        ours.close()


def _serve(work: Work, trial: Trial, pipe: Connection, messages: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one that asked hears it, and ends us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with messages.open("a") as file:  # Ray and DALI print, and a bar may stand on the terminal
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    answer: Any
    try:
        answer = work(trial)
    except RaysuiteError as error:
        answer = str(error)
    except Exception as error:  # whatever a loader's library raises, the others continue
        answer = f"{type(error).__name__}: {error}"
    pipe.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
