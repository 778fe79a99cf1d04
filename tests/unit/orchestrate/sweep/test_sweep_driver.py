"""What a sweep's driver passes on from Ray Tune's thread, and how it ends."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from raysuite.orchestrate.capacity import Capacity
from raysuite.orchestrate.stopping import request_stop, requested_stop
from raysuite.orchestrate.suite import Listener
from raysuite.orchestrate.sweep import sweep_driver
from raysuite.plan import RunPlan
from raysuite.records import Results, RunPruned
from raysuite.train.stop_together import Stop
from tests.fake_sweeps import write_sweep
from tests.unit.orchestrate.sweep.test_schedulers import ASHA, Sweep


def test_new_trials_and_lines_are_handled_in_the_listeners_thread_in_their_order(
    tmp_path: Path,
) -> None:
    plan, seen = Sweep(tmp_path, {"name": "none"}).begin(), list[Any]()
    events: SimpleQueue[RunPlan | str] = SimpleQueue()
    listener = sweep_driver._with_events(
        Listener(lambda: None, lambda: seen.append("poll"), seen.append, seen.append), events
    )
    for each in ("a line", plan, "another"):
        events.put(each)
    listener.poll()
    listener.poll()
    assert seen == ["a line", plan, "another", "poll", "poll"]


@pytest.mark.parametrize("error", [None, ValueError("Ray Tune failed")])
def test_the_error_that_ended_ray_tune_is_raised_and_otherwise_its_stop_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    stop = Stop("preempted")

    def fit(tuner: Any, *given: Any) -> tuple[Exception | None, Stop]:
        assert requested_stop(results) is None
        _, source, _, tune_shutdown, _ = tuner
        assert (source.stopped, tune_shutdown.requested) == (False, False)
        given[-1]()
        assert (source.stopped, tune_shutdown.requested) == (True, True)
        return error, stop

    monkeypatch.setattr(sweep_driver, "_tuner", lambda *given: given)
    monkeypatch.setattr(sweep_driver, "fit", fit)
    sweep = Sweep(tmp_path, {"name": "none"})
    write_sweep(results := tmp_path / "sweep", missing=range(12))
    request_stop(results, Stop("down"))  # of an earlier command
    given = (sweep.document, Results(results), Capacity.here(), Listener(lambda: None))
    if error is None:
        assert sweep_driver.run(*given) == stop
    else:
        with pytest.raises(ValueError, match="Ray Tune failed"):
            sweep_driver.run(*given)


def test_a_stop_after_the_last_trial_stopped_no_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a sweep whose folder has no plans yet begins with none."""
    monkeypatch.setattr(sweep_driver, "_tuner", lambda *given: given)

    def fit(*_: object) -> tuple[None, Stop]:
        assert (results / "plan.json").exists(), "a cluster resumes no other folder"
        return None, Stop("preempted")

    monkeypatch.setattr(sweep_driver, "fit", fit)
    write_sweep(results := tmp_path / "sweep", trials=2, scheduler="none")
    sweep = Sweep(tmp_path / "other", {"name": "none"})
    given = (sweep.document, Results(results), Capacity.here(), Listener(lambda: None))
    assert sweep_driver.run(*given) is None
    (results / "decided.json").unlink(missing_ok=True)
    (results / "plan.json").unlink()
    assert sweep_driver.run(*given) == Stop("preempted")
    assert Results(results).plans() == []


@pytest.mark.parametrize("resume", [False, True])
def test_a_trial_that_was_to_be_pruned_ends_when_its_sweep_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    monkeypatch.setattr(sweep_driver, "_tuner", lambda *given: given)
    monkeypatch.setattr(sweep_driver, "fit", lambda *_: (None, None))
    sweep = Sweep(tmp_path, ASHA)
    assert [sweep.epoch(sweep.begin(), 0, accuracy) for accuracy in (0.5, 0.4)] == [False, True]
    sweep.results.write_search(sweep.document.data["search"], "unit", sweep.document.data)
    given = (sweep.document, sweep.results, Capacity.here(), Listener(lambda: None))
    sweep_driver.run(*given, resume=resume)
    ends = [sweep.results.end_of(plan.run_id) for plan in sweep.plans]
    assert [type(end) for end in ends] == [type(None), RunPruned if resume else type(None)]
