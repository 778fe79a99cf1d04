"""Measure the peak memory of this and its loading processes up to 10, 50 and 100 % of an epoch.

    python benchmarks/loader_memory.py IMAGENET OPTIONS-AS-JSON BATCH

Prints a line of JSON. A separate process is used, so that earlier loading does not count.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import psutil
import torch
from pydantic import TypeAdapter

from raysuite.data import Prepared, make_loader, permutation, prepare, rank_slices
from raysuite.plan import make_plans
from raysuite.spec import parse_document
from raysuite.spec.loaders import LoaderOptions

SHARES = (0.1, 0.5, 1.0)
_EVERY = 4
"""Number of batches between two readings of the memory."""


def prepared_at(path: Path) -> Prepared:
    """ImageNet, or its synthetic version, as image files in `path`."""
    spec = {
        "name": "loaders",
        "model": "resnet18",
        "data": {"name": "imagenet", "format": "folder", "path": str(path)},
        "training": {"epochs": 1, "global_batch": 64},
    }
    (plan,) = make_plans(parse_document(json.dumps(spec), "benchmarks/loaders.py"))
    return prepare(plan.spec.data, plan.dataset)


def main(prepared: Prepared, options: LoaderOptions, batch: int) -> dict[str, Any]:
    """Load one epoch; return the peak resident bytes up to each of SHARES."""
    torch.set_num_threads(1)
    loader = make_loader(prepared, "train", options, torch.device("cpu"))
    samples = prepared.samples("train")
    order = permutation(samples, 0, 0)
    slices = [each for (each,) in rank_slices(order, batch, 1, 0, draw=(0, 0))]
    marks = {share: round(share * len(slices)) for share in SHARES}
    peaks: dict[str, int] = {}
    peak = 0
    for number, _ in enumerate(loader.batches(slices), start=1):
        if number % _EVERY == 0 or number in marks.values():
            peak = max(peak, resident_bytes())
        peaks |= {f"{share:.0%}": peak for share, mark in marks.items() if mark == number}
    loader.close()
    return {"images": samples, "peak_bytes": peaks}


def resident_bytes() -> int:
    """Resident bytes of this process and its children; memory that they share counts in each."""
    total: int = psutil.Process().memory_info().rss
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += child.memory_info().rss
    return total


if __name__ == "__main__":
    asked: LoaderOptions = TypeAdapter(LoaderOptions).validate_json(sys.argv[2])
    print(json.dumps(main(prepared_at(Path(sys.argv[1])), asked, int(sys.argv[3]))))
