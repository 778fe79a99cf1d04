from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.records import FailReason, Journal, Results, RunFailed, RunPruned
from raysuite.records.ends import RunEnd
from raysuite.train.resuming import is_left, left_alone
from tests.unit.train.conftest import plan_of

PRUNED = RunPruned(run_id="a", by="asha", epoch=1, value=None)
FAILED = RunFailed(run_id="a", reason="diverged", message="losses are not finite")


@pytest.mark.parametrize(
    ("end", "left", "left_with_retry"),
    [(None, True, True), (PRUNED, False, False), (FAILED, False, True)],
)
def test_a_failed_run_is_left_on_request_alone(
    end: RunEnd | None, left: bool, left_with_retry: bool
) -> None:
    assert (is_left(end), is_left(end, retry_failed=True)) == (left, left_with_retry)


@pytest.mark.parametrize("reason", ["error", "diverged", "lost"])
def test_failed_runs_are_named_and_so_is_that_nothing_is_left(
    tmp_path: Path, reason: FailReason
) -> None:
    failed, new = plan_of(), plan_of(optimizer_lr=0.2)
    results = Results(tmp_path)
    assert left_alone([failed, new], results) == []
    end = RunFailed(run_id=failed.run_id, reason=reason, message="why")
    Journal(results.journal_file(failed.run_id)).write(end)
    (line,) = left_alone([failed, new], results)
    assert failed.title in line
    assert "--retry-failed" in line
    assert left_alone([failed], results)[0] == line
    assert "nothing to resume" in left_alone([failed], results)[1]
