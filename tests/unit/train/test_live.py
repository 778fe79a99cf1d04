"""The progress file of a run in this process."""

from __future__ import annotations

import time
from pathlib import Path

from raysuite.records import EpochFinished
from raysuite.records.live import LivePosition, live_position
from tests.unit.train.conftest import plan_of, run


def test_a_run_writes_where_it_is_and_removes_it_at_the_end(tmp_path: Path) -> None:
    file, seen = tmp_path / "progress.json", list[LivePosition]()

    def asked() -> None:  # between two steps
        deadline = time.monotonic() + 10
        while not seen and time.monotonic() < deadline:
            if (found := live_position(file)) is not None and found.step:
                seen.append(found)
            time.sleep(0.01)

    records = run(plan_of(), progress_file=file, requested_end=asked)
    first = next(record for record in records if isinstance(record, EpochFinished))
    position = seen[0]
    assert (position.epoch, position.steps) == (0, len(first.losses))
    assert position.images == 240 * position.step
    assert position.loss is not None
    assert abs(position.loss - first.losses[position.step - 1]) < 1e-5
    assert not file.exists()
