"""Phases of a command and parts of its runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from raysuite.cli.driver import Timings
from raysuite.cli.driver import timing_lines as lines
from raysuite.records import Journal, Results, RunFinished
from tests.fake_results import TWELVE_ROWS, write_results

ONE_RUN = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", "[ddp]").replace("[1, 2]", "[1]")


def finished(run_id: str, begins: float) -> RunFinished:
    return RunFinished(
        run_id=run_id,
        peak_process_bytes=[1],
        start_process_bytes=[1],
        peak_device_bytes=[0],
        time_to_accuracy=None,
        seconds=5.0,
        first_step_seconds=2.0,
        first_step_time=begins + 2.0,
        parts_seconds={"gate": 1.5, "training": 3.0},
    )


def test_the_start_of_the_workers_is_no_part_of_the_runs(tmp_path: Path) -> None:
    results = write_results(tmp_path, spec=ONE_RUN)
    timings = Timings()
    began = time.time()
    timings.seconds["runs"] = 20.0
    for place, plan in enumerate(results.plans()):
        run_id = plan["run_id"]
        Journal(results.journal_file(run_id)).write(finished(run_id, began + 6.0 + 7 * place))
    timings.split_runs(results, began)
    assert timings.seconds["workers"] == pytest.approx(6.0)
    assert timings.seconds["runs"] == pytest.approx(14.0)
    table = list(lines(results, timings))
    assert [line.split()[0] for line in table if line][:4] == ["phase", "driver", "workers", "runs"]
    assert table[-1].split()[1:] == ["5.00", "1.50", "3.00"]


def test_a_phase_counts_also_where_it_fails_and_commands_are_kept_apart(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.write_timings([{"began": 1.0, "seconds": {"driver": 2.0}}])
    timings = Timings()
    with pytest.raises(OSError, match="no"), timings.phase("report"):
        raise OSError("no")
    timings.write(results)
    timings.write(results)
    first, second = results.timings()
    assert first == {"began": 1.0, "seconds": {"driver": 2.0}}
    assert second["began"] == timings.began
    assert set(second["seconds"]) == {"driver", "report"}
