"""What an image costs one thread of `native`, stage by stage."""

from __future__ import annotations

import itertools
import time
from contextlib import closing

import numpy as np
import torch

from raysuite.data import Slice, permutation
from raysuite.data.decoders import cut_from
from raysuite.data.reading import read
from raysuite.data.rendering import Rendering
from raysuite.data.resizing import fit_into
from raysuite.data.source import open_source
from raysuite.orchestrate.loading.timing import Trial
from raysuite.records.loading import Stages

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
