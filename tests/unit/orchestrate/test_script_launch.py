"""The Records of a script's run that is over."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest

from raysuite.orchestrate.script_launch import Ended, write_end
from raysuite.plan import make_plans
from raysuite.records import EpochFinished, Journal, Results, RunStarted
from raysuite.records.script_records import RankLog
from raysuite.spec.document import Document


@pytest.mark.parametrize(("profile", "counted"), [("torch", [0.5] * 4), ("off", None)])
def test_no_step_counts_until_the_one_after_a_profile_has_ended(
    profile: str, counted: list[float] | None, tmp_path: Path
) -> None:
    """Two steps of warm-up, the first one apart, two for the profiler to settle, three that it
    sees, and one that waits for its end."""
    (script := tmp_path / "train.py").touch()
    data = {
        "name": "own",
        "script": {"command": [str(script)]},
        "resources": {"workers": 1, "device": "cpu"},
        "measure": {"warmup_steps": 2, "profile": profile, "profile_steps": 3},
    }
    [plan] = make_plans(Document(data, "test"), gpus=0)
    results = Results.create(tmp_path / "results")
    results.write_plans([plan.model_dump(mode="json")])
    started = RunStarted(run_id=plan.run_id, plan={}, environment={})
    Journal(results.journal_file(plan.run_id)).write(started)
    seconds = [1.0] * 5 + [4.0] * 3 + [9.0] + [0.5] * 4
    log = RankLog(begin={"host": "a", "memory": 1}, model={"parameters": 1, "optimizer": "SGD"})
    log.rows = [[end, None, 0.0, 8, None, False, 0.0] for end in accumulate(seconds, initial=0.0)]
    del log.rows[0]
    marks = {"launcher": 0.0, "process": 0.1, "first_batch": 0.2, "first_step": 1.0}
    log.end = {"marks": marks, "memory": 5}
    write_end(plan, results, Ended([log], [b""]))
    records = results.records(plan.run_id)
    [epoch] = [each for each in records if isinstance(each, EpochFinished)]
    assert epoch.step_seconds == pytest.approx(counted or seconds[2:])
    assert epoch.steady_seconds == pytest.approx(sum(epoch.step_seconds))
