"""What the journal of a population's trial says: that it waits, and whose weights it has."""

from __future__ import annotations

from typing import Any

from raysuite.records import Journal, Results, RunJudged, RunPruned, RunStopped, run_figures
from raysuite.records.derive import current
from raysuite.records.judged import held_after, turns_of
from raysuite.records.sweep import trial_figures, wall_seconds
from raysuite.track.entries import mlflow_status
from raysuite.track.upload import trial_tags
from tests.fake_sweeps import START, write_sweep


def judged(run: str, epoch: int, source: str | None = None, time: float = START, **values: Any):
    return RunJudged(
        run_id=run,
        time=time,
        by="pbt",
        epoch=epoch,
        value=0.5,
        place=2,
        population=2,
        source=source,
        source_trial=None if source is None else int(source[1:]),
        values=values,
    )


def test_a_run_waits_until_it_is_judged() -> None:
    held = RunStopped(run_id="a", reason="interval", epoch=2, step=12)
    assert held_after([]) is None
    assert held_after([held]) == 2
    assert held_after([held.model_copy(update={"reason": "time_limit"})]) is None
    turn = judged("a", 1)
    assert held_after([held, turn]) is None
    assert turns_of([held, turn]) == (turn,)
    assert "after epoch 2" in held.words
    assert turn.words == "place 2 of 2 after epoch 2: continues"
    assert judged("a", 1, "b7").words == "place 2 of 2 after epoch 2: takes the weights of trial 7"


def test_figures_of_a_run_that_waited_and_changed(tmp_path) -> None:
    results = write_sweep(tmp_path, trials=1, scheduler="none")
    plan = results.plans()[0]
    first, verdict, *epochs, end = results.records(plan["run_id"])
    held = RunStopped(
        run_id=first.run_id, time=epochs[1].time + 1, reason="interval", epoch=2, step=9
    )
    turn = judged(first.run_id, 1, "t4", time=held.time + 500, **{"optimizer.lr": 0.25})
    again = first.model_copy(update={"time": held.time + 600, "first_epoch": 2, "first_step": 9})
    begun = [first, verdict, *epochs[:2], held]

    paused = run_figures(plan, begun)
    assert (paused.status, paused.end, len(paused.epochs)) == ("stopped", None, 2)
    assert paused.reason.startswith("waits for the others: after epoch 2")
    assert mlflow_status(paused) == "RUNNING"
    kept_own = judged(first.run_id, 0, None, time=held.time, **{"optimizer.lr": 0.5})
    trial = trial_figures(plan, [*begun, kept_own, turn])
    assert trial.turns == (kept_own, turn)
    assert trial_figures(plan, begun).values_now == plan["label"]
    assert trial.values == plan["label"]
    assert trial.values_now == {"optimizer.lr": 0.25}
    assert trial.taken == [turn]
    assert trial_tags(trial)["raysuite.pbt.values"] == '{"optimizer.lr": 0.25}'
    assert trial_tags(trial)["raysuite.pbt.judged"] == f"{kept_own.words}; {turn.words}"
    # nobody works while it waits
    assert wall_seconds([*begun, turn]) == held.time - first.time
    # nor before a driver that comes much later says how it ended
    late = {"run_id": first.run_id, "by": "asha", "epoch": 1, "value": 0.5}
    pruned = RunPruned(**late, time=held.time + 600, settled=True)
    assert wall_seconds([*begun, pruned]) == held.time - first.time
    whole = [*begun, turn, again, verdict.model_copy(update={"time": again.time + 1})]
    assert wall_seconds(whole) == held.time - first.time + 1

    kept = current([*whole, *epochs[2:], end])
    assert turn in kept
    assert held not in kept
    done = run_figures(plan, [*whole, *epochs[2:], end])
    assert (done.status, done.attempts, len(done.epochs)) == ("finished", 2, 9)


def test_it_survives_the_disk(tmp_path) -> None:
    results, turn = Results(tmp_path), judged("a", 1, "t3", **{"schedule": {"name": "step"}})
    Journal(results.journal_file("a")).write(turn)
    assert results.records("a") == [turn]
    assert results.end_of("a") is None
