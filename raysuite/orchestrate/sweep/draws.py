"""Random draws that depend on a sweep's seed and a number alone, so that they can be made again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def seed_of(seed: int, number: int) -> int:
    """A seed of its own for each number."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


@contextmanager
def numpys_draws(seed: int) -> Iterator[None]:
    """For libraries that draw from numpy's own state, which is as before afterwards."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)
